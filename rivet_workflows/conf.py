"""The settings: one dict, ``RIVET_WORKFLOWS = {...}``, every key optional.

:class:`Settings` holds every key with its default, its bounds and what it means; it is the only place where
a key exists. ``settings`` reads the project's dict when a key is first asked for and again when Django says
that settings changed, so ``override_settings`` works. :func:`problems` is the one validator: ``manage.py
check`` shows what it finds, and reading a dict that has problems raises the same text.

Durations are seconds, as a number or a ``timedelta``; they are read as numbers.
Knows Django's settings, and of the package the step options alone.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from rivet_workflows import codec
from rivet_workflows.engine.options import DEFAULTS as STEP_OPTIONS

__all__ = ["Problem", "Settings", "problems", "settings"]

NAME = "RIVET_WORKFLOWS"
DAY = 24 * 60 * 60
_SYNCHRONOUS = ("NORMAL", "FULL", "EXTRA")


def _key(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] | None = None,
    dotted: bool = False,
) -> Any:
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "choices": choices, "dotted": dotted}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every key of ``RIVET_WORKFLOWS``. Durations are seconds, sizes are bytes."""

    DATABASE: str = _key("default", "Alias of the database that the tables live on.")

    # -- the worker
    LEASE: float = _key(
        6.0, "A worker whose heartbeat is older is taken for dead; at least twice HEARTBEAT.", minimum=1
    )
    HEARTBEAT: float = _key(2.0, "How often a worker renews its lease.", minimum=0.1)
    POLL_INTERVAL: float = _key(
        5.0, "How often a worker looks for work that no bell announced.", minimum=0.05
    )
    GRACE: float = _key(15.0, "How long a worker that was told to stop lets running steps finish.", minimum=0)
    HOOK_TIMEOUT: float = _key(
        30.0,
        "How long create_vars, on_wake, on_sleep and on_error may run before the worker goes on.",
        minimum=0.01,
    )
    RUN_TIMEOUT: float | None = _key(
        10.0,
        "How long the code of run may compute without an await before its actor is set aside; None: for ever.",
        minimum=0.01,
    )
    CONCURRENCY: int = _key(50, "async def steps that one worker process runs at a time.", minimum=1)
    STEP_THREADS: int = _key(8, "def steps that one worker process runs at a time, a thread each.", minimum=1)
    MAX_PARKED: int = _key(1000, "Waiting actors that a worker keeps in memory.", minimum=0)
    EVICT_AFTER: float = _key(60.0, "An actor that has waited this long leaves the memory.", minimum=0)
    GROUP_SIZE: int = _key(200, "Actors whose changes one commit carries at most.", minimum=1, maximum=5000)
    MAX_STARTS: int = _key(
        5, "Starts of one step that end with its process before the actor is set aside.", minimum=1
    )
    LISTEN_DSN: str | None = _key(
        None, "PostgreSQL only: a direct connection for LISTEN, where DATABASE goes through a pooler."
    )
    SQLITE_SYNCHRONOUS: str = _key(
        "FULL",
        "SQLite only: PRAGMA synchronous of the worker. NORMAL is faster, and a power loss may make a "
        "finished step run again.",
        choices=_SYNCHRONOUS,
    )

    # -- callers
    ACTION_LOCK_TIMEOUT: float = _key(
        5.0, "How long an action waits for its actor before ActorBusy.", minimum=0.01
    )
    WORKER_ACTION_TIMEOUT: float = _key(
        30.0, "How long the caller of an @action(on_worker=True) waits before NoWorker.", minimum=0.01
    )
    DEDUPE_PERIOD: float = _key(7.0 * DAY, "How long a dedupe key is remembered.", minimum=0)
    PERMISSION: str | None = _key(
        None,
        "Dotted path of a function (actor, request, operation, name) -> bool: the rule for all actors whose "
        "class has no has_permission of its own.",
        dotted=True,
    )

    # -- limits
    MAX_PAYLOAD: int = _key(1_048_576, "Encoded size of one value: argument, output, event.", minimum=1024)
    MAX_STATE: int = _key(1_048_576, "Encoded size of an actor's state.", minimum=1024)
    MAX_INPUT_SIZE: int = _key(4 * 1_048_576, "Encoded size of an actor's input.", minimum=1024)
    MAX_QUEUE_SIZE: int = _key(1000, "Messages that wait in one actor's queues, together.", minimum=1)
    MAX_MESSAGE_SIZE: int = _key(65_536, "Encoded size of a message's body.", minimum=1024)
    MAX_SCOPE_ENTRIES: int = _key(10_000, "History entries directly in one scope of a workflow.", minimum=10)
    MAX_SCHEDULES: int = _key(1000, "Schedules and cron jobs of one actor.", minimum=1)

    # -- keeping and changing
    RETENTION: float | None = _key(
        30.0 * DAY, "History, messages and events go this long after an actor's end; None: never.", minimum=0
    )
    RENAMED: dict[str, str] = _key(  # noqa: RUF009
        {}, "Old dotted path -> new one, of moved classes and rollback handlers."
    )
    STEP_DEFAULTS: dict[str, Any] = _key(  # noqa: RUF009
        {}, "Options of every step that says nothing else, as of @step."
    )

    #: Keys that may be given as ``timedelta``.
    DURATIONS: ClassVar[frozenset[str]] = frozenset(
        {"LEASE", "HEARTBEAT", "POLL_INTERVAL", "GRACE", "EVICT_AFTER", "ACTION_LOCK_TIMEOUT"}
        | {"HOOK_TIMEOUT", "WORKER_ACTION_TIMEOUT", "DEDUPE_PERIOD", "RETENTION"}
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the dict: the number of its check, what is wrong, how to mend it."""

    code: str
    key: str
    message: str
    hint: str


class _LiveSettings:
    """Reads like a :class:`Settings`; the project's dict is read at first use and after each change of it."""

    def __init__(self) -> None:
        self._current: Settings | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._current is None:
            self._current = _load()
            # The codec knows no settings; whoever reads stored values has read some of these before.
            codec.configure(self._current.RENAMED)
        return getattr(self._current, name)

    def forget(self) -> None:
        self._current = None


_live = _LiveSettings()
#: The settings in force. Typed as what it reads like.
settings = cast(Settings, _live)


def _forget(*, setting: str, **_: object) -> None:
    if setting == NAME:
        _live.forget()


setting_changed.connect(_forget, dispatch_uid="rivet_workflows.conf")


def _raw() -> Any:
    from django.conf import settings as django_settings

    return getattr(django_settings, NAME, {})


def _load() -> Settings:
    raw = _raw()
    # Whether a path imports is the check's to say: a project may read settings before its code can import.
    found = list(_problems(raw, importing=False))
    if found:
        raise ImproperlyConfigured("; ".join(f"{p.message} {p.hint}" for p in found))
    return Settings(**{key: _plain(key, value) for key, value in raw.items()})


def _plain(key: str, value: Any) -> Any:
    """Durations as seconds; mappings copied, so that nobody changes the project's own."""
    if key in Settings.DURATIONS and isinstance(value, timedelta):
        return value.total_seconds()
    return dict(value) if isinstance(value, Mapping) else value


def problems(raw: Any = None) -> list[Problem]:
    """All that is wrong with ``raw`` (default: the project's ``RIVET_WORKFLOWS``). Imports dotted paths."""
    return list(_problems(_raw() if raw is None else raw, importing=True))


@cache
def _fields() -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(Settings)
    return {f.name: (f, hints[f.name]) for f in dataclasses.fields(Settings)}


def _problems(raw: Any, *, importing: bool) -> Iterator[Problem]:
    if not isinstance(raw, Mapping):
        yield Problem(
            "E001", NAME, f"{NAME} is a {type(raw).__name__}, not a dict.", "Make it a dict of keys."
        )
        return
    for key, value in raw.items():
        if key not in _fields():
            close = difflib.get_close_matches(str(key).upper(), _fields(), 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(sorted(_fields()))}."
            yield Problem("E001", str(key), f"{NAME} has an unknown key {key!r}.", hint)
            continue
        yield from _problems_of_key(key, value, importing=importing)
    yield from _problems_between(raw)


def _problems_of_key(key: str, value: Any, *, importing: bool) -> Iterator[Problem]:
    spec, hint = _fields()[key]
    what = f"{NAME}[{key!r}]"
    expected = _expected(key, hint)
    if not _fits(key, hint, value):
        yield Problem("E002", key, f"{what} is {value!r}, not {expected}.", f"{spec.metadata['doc']}")
        return
    if value is None:
        return
    number = value.total_seconds() if isinstance(value, timedelta) else value
    low, high = spec.metadata["minimum"], spec.metadata["maximum"]
    if low is not None and number < low:
        yield Problem("E003", key, f"{what} is {value!r}, below {low}.", spec.metadata["doc"])
    if high is not None and number > high:
        yield Problem("E003", key, f"{what} is {value!r}, above {high}.", spec.metadata["doc"])
    choices = spec.metadata["choices"]
    if choices and value not in choices:
        yield Problem("E003", key, f"{what} is {value!r}.", f"Choose one of {', '.join(choices)}.")
    if spec.metadata["dotted"] and importing:
        yield from _problems_of_path(key, what, value)
    if key == "DATABASE":
        yield from _problems_of_alias(what, value)
    if key == "STEP_DEFAULTS":
        try:
            STEP_OPTIONS.merged(value)
        except (TypeError, ValueError) as error:
            yield Problem("E002", key, f"{what}: {error}.", "Give options as @step takes them.")


def _problems_of_path(key: str, what: str, value: str) -> Iterator[Problem]:
    try:
        found = import_string(value)
    except Exception as error:  # importing runs the project's code, which may raise anything
        yield Problem(
            "E004", key, f"{what}: {value!r} cannot be imported ({error}).", "Correct the dotted path."
        )
        return
    if not callable(found):
        yield Problem("E004", key, f"{what}: {value!r} is not callable.", "Name a function or a class.")


def _problems_of_alias(what: str, value: str) -> Iterator[Problem]:
    from django.conf import settings as django_settings

    if value not in django_settings.DATABASES:
        known = ", ".join(sorted(django_settings.DATABASES)) or "none"
        yield Problem(
            "E005", "DATABASE", f"{what} is {value!r}, which DATABASES does not have.", f"It has: {known}."
        )


def _problems_between(raw: Mapping[str, Any]) -> Iterator[Problem]:
    lease, heartbeat = (_plain(key, raw.get(key, getattr(_DEFAULTS, key))) for key in ("LEASE", "HEARTBEAT"))
    if not (_is_number(lease) and _is_number(heartbeat)):
        return  # told already
    if lease < 2 * heartbeat:
        yield Problem(
            "E006",
            "LEASE",
            f"{NAME}: LEASE ({lease:g} s) is less than twice HEARTBEAT ({heartbeat:g} s): one late heartbeat "
            "and a live worker loses its actors.",
            "Raise LEASE or lower HEARTBEAT.",
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _fits(key: str, hint: Any, value: Any) -> bool:
    optional = type(None) in typing.get_args(hint)
    if value is None:
        return optional
    base = next(a for a in typing.get_args(hint) if a is not type(None)) if optional else hint
    origin = typing.get_origin(base) or base
    if origin is float:
        return _is_number(value) or (key in Settings.DURATIONS and isinstance(value, timedelta))
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is dict:
        return _fits_dict(base, value)
    return isinstance(value, origin)


def _fits_dict(hint: Any, value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    key_type, value_type = typing.get_args(hint)
    return all(
        isinstance(k, key_type) and (value_type is Any or isinstance(v, value_type)) for k, v in value.items()
    )


def _expected(key: str, hint: Any) -> str:
    bases = [a for a in (typing.get_args(hint) or (hint,)) if a is not type(None)]
    if key in Settings.DURATIONS:
        text = "a number of seconds or a timedelta"
    elif typing.get_origin(hint) is dict:
        text = "a dict of strings" if bases[1] is str else "a dict with string keys"
    else:
        text = {int: "a whole number", str: "a string", float: "a number"}[bases[0]]
    return f"{text}, or None" if type(None) in typing.get_args(hint) else text


_DEFAULTS = Settings()
