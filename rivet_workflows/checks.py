"""System checks: what ``manage.py check`` says about settings, database, channel layer and declared actors.

Ids are stable. Errors that a class makes impossible are raised as it is defined (``declaration``, E101 to E113);
the rest is here:

====  ==========================================================================
E001  unknown key in RIVET_WORKFLOWS, or it is no dict
E002  a setting of a wrong type
E003  a setting out of range
E004  a setting's dotted path does not lead to something callable
E005  DATABASE is not in DATABASES
E006  LEASE is less than twice HEARTBEAT
E007  a database engine that is not supported
E010  a local carried across the iterations of a native loop
E011  something of an event loop, or a blocking sleep, in a workflow
E012  a declared type that nothing can be checked against
W001  SQLite without immediate transactions
W002  SQLite without write-ahead log
W003  SQLite with ATOMIC_REQUESTS
W004  in-memory channel layer (``check --deploy``)
W005  channels_redis with a redis client whose timeout ends idle consumers
W006  SQLITE_SYNCHRONOUS that may lose a finished step at power loss
W007  a transaction pooler without LISTEN_DSN
W008  DATABASE is not "default": transactions of other databases do not cover the actors
W009  no permission rule: every signed-in user may use every actor (``check --deploy``)
W010  a clock, chance or I/O in a workflow
W011  a set iterated in a workflow
W012  a method that is called almost like a hook
W013  a container filled across the iterations of a native loop
W014  after a native loop, a value of an iteration before the last
====  ==========================================================================

Queries nothing. Knows the settings, the registry and the reading of workflow code.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from rivet_workflows import conf
from rivet_workflows.actors import Actor
from rivet_workflows.declaration import HOOKS
from rivet_workflows.registry import ActorType, registry
from rivet_workflows.replay_lint import lint
from rivet_workflows.validation import adapter

TAG = "rivet_workflows"
_SUPPORTED = frozenset({"sqlite", "postgresql", "mysql"})
_WAL = re.compile(r"journal_mode\s*=\s*['\"]?wal", re.IGNORECASE)


def _message(id: str, message: str, hint: str, obj: Any = None) -> CheckMessage:
    kind: Callable[..., CheckMessage] = Error if id.startswith("E") else Warning
    return kind(message, hint=hint, obj=obj, id=f"rivet_workflows.{id}")


@register(TAG)
def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """E001 to E006, W006."""
    found = [_message(p.code, p.message, p.hint) for p in conf.problems()]
    if not found and conf.settings.SQLITE_SYNCHRONOUS == "NORMAL" and _vendor() == "sqlite":
        found.append(
            _message(
                "W006",
                "SQLITE_SYNCHRONOUS is NORMAL: after a power loss a finished step may be unfinished, and run again.",
                "Set it to FULL, unless every step may safely run twice; silence this check then.",
            )
        )
    return found


@register(TAG)
def check_alias(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """W008: a bare ``transaction.atomic()`` is about "default"."""
    raw = getattr(django_settings, conf.NAME, {})
    alias = raw.get("DATABASE", "default") if isinstance(raw, Mapping) else "default"
    if alias == "default" or _database() is None:
        return []
    return [
        _message(
            "W008",
            f"The actors are in the database {alias!r}: sends, creates and calls join transactions on that alias only. "
            "Made inside transaction.atomic() of another database, they stay when it is rolled back.",
            f"Wrap them with transaction.atomic(using={alias!r}), and silence this check once that is done.",
        )
    ]


@register(TAG, deploy=True)
def check_permission(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """W009: nothing says who may do what."""
    raw = getattr(django_settings, conf.NAME, {})
    actor_types = registry.all()
    if (
        not actor_types
        or (isinstance(raw, Mapping) and raw.get("PERMISSION") is not None)
        or any(actor_type.cls.has_permission is not Actor.has_permission for actor_type in actor_types)
    ):
        return []
    return [
        _message(
            "W009",
            "No actor class defines has_permission and PERMISSION is not set: over REST and WebSocket every signed-in "
            "user may create, call and send to every actor, whoever it belongs to.",
            "Define has_permission on the actors, or set RIVET_WORKFLOWS['PERMISSION'] to one rule for all; silence "
            "this check if the default is what you want, or nothing is served.",
        )
    ]


@register(TAG, Tags.compatibility)
def check_database(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """E007, W001 to W003, W007: how the database of the tables is configured."""
    config = _database()
    if config is None:
        return []  # E005 says so
    vendor = _vendor()
    if vendor == "sqlite":
        return list(_sqlite(config))
    if vendor == "postgresql":
        return list(_postgresql(config))
    if vendor not in _SUPPORTED:
        return [
            _message(
                "E007",
                f"rivet_workflows has no support for {config.get('ENGINE')!r}.",
                "Use PostgreSQL, SQLite or MariaDB/MySQL; RIVET_WORKFLOWS['DATABASE'] can name one for these tables.",
            )
        ]
    return []


@register(TAG, deploy=True)
def check_channel_layer(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """W004: what serves in development alone."""
    layer = getattr(django_settings, "CHANNEL_LAYERS", {}).get("default", {})
    if layer.get("BACKEND") != "channels.layers.InMemoryChannelLayer":
        return []
    return [
        _message(
            "W004",
            "The channel layer is in memory: what consumers of your own send to a group stays in their process. "
            "(Events of actors come through the database, and need no layer.)",
            "Configure channels_redis, or another layer that processes share, in CHANNEL_LAYERS.",
        )
    ]


@register(TAG)
def check_redis_timeout(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """W005: redis-py 8 ends a read after five seconds; channels_redis 4.3 waits in one."""
    layer = getattr(django_settings, "CHANNEL_LAYERS", {}).get("default", {})
    if layer.get("BACKEND") != "channels_redis.core.RedisChannelLayer" or _major("redis") < 8:
        return []
    hosts = layer.get("CONFIG", {}).get("hosts", [None])
    if all(isinstance(host, Mapping) and host.get("socket_timeout", 5) is None for host in hosts):
        return []
    return [
        _message(
            "W005",
            "redis 8 and later ends reads after 5 seconds, which drops idle consumers of channels_redis.",
            'Give each host {"address": url, "socket_timeout": None}, or install redis<8.',
        )
    ]


@register(TAG)
def check_actors(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """E010 to E012, W010 to W014, for every declared actor (of the given apps, when some are given)."""
    found: list[CheckMessage] = []
    for actor_type in registry.all():
        if app_configs is not None and not any(
            _is_in(actor_type.cls.__module__, config.name) for config in app_configs
        ):
            continue
        found.extend(_actor(actor_type))
    return found


def _actor(actor_type: ActorType) -> Iterator[CheckMessage]:
    obj = f"{actor_type.cls.__module__}.{actor_type.cls.__qualname__}"
    for finding in lint(actor_type):
        yield _message(
            finding.id, finding.message, finding.hint, f"{obj} ({finding.filename}:{finding.line})"
        )
    yield from _types(actor_type, obj)
    for name, value in vars(actor_type.cls).items():
        if name in HOOKS or not callable(value) or hasattr(value, "__rivet_action__"):
            continue
        close = (
            difflib.get_close_matches(name, HOOKS, 1, cutoff=0.75) if name.startswith(_HOOK_PREFIXES) else []
        )
        if close:
            yield _message(
                "W012", f"{name} is no hook and is never called.", f"Did you mean {close[0]}?", obj=obj
            )


_HOOK_PREFIXES = ("on_", "create_", "migrate_", "has_")


def _types(actor_type: ActorType, obj: str) -> Iterator[CheckMessage]:
    declared: list[tuple[str, Any]] = [("state", actor_type.state_type)]
    for queue in actor_type.queues.values():
        declared += [(f"queue {queue.name}", queue.body), (f"the reply on queue {queue.name}", queue.reply)]
    declared += [(f"event {event.name}", event.payload) for event in actor_type.events.values()]
    for what, hint in declared:
        if hint is None or hint is Any:
            continue
        try:
            adapter(hint)
        except Exception as error:  # building a type's checker runs the project's code
            yield _message(
                "E012", f"The type of {what} cannot be used: {error}", "Declare another type.", obj=obj
            )


def _database() -> Mapping[str, Any] | None:
    raw = getattr(django_settings, conf.NAME, {})
    alias = raw.get("DATABASE", "default") if isinstance(raw, Mapping) else "default"
    return django_settings.DATABASES.get(alias) if isinstance(alias, str) else None


def _vendor() -> str:
    """Vendor as Django calls it, from the engine's name: connecting is not this check's to do."""
    engine = str((_database() or {}).get("ENGINE", ""))
    for part, vendor in (
        ("sqlite", "sqlite"),
        ("spatialite", "sqlite"),
        ("mysql", "mysql"),
        ("mariadb", "mysql"),
    ):
        if part in engine:
            return vendor
    return "postgresql" if "postg" in engine else engine.rsplit(".", 1)[-1]


def _sqlite(config: Mapping[str, Any]) -> Iterator[CheckMessage]:
    options = config.get("OPTIONS") or {}
    if str(options.get("transaction_mode") or "").upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield _message(
            "W001",
            "SQLite's transactions are deferred: one that reads and then writes fails at once with 'database is "
            "locked' while another writes, whatever its timeout.",
            'Add "transaction_mode": "IMMEDIATE" to the database\'s OPTIONS.',
        )
    if not _WAL.search(str(options.get("init_command") or "")) and not _is_wal_file(
        str(config.get("NAME") or "")
    ):
        yield _message(
            "W002",
            "SQLite has no write-ahead log: readers and the worker wait for one another.",
            'Add "init_command": "PRAGMA journal_mode=WAL;" to the database\'s OPTIONS.',
        )
    if config.get("ATOMIC_REQUESTS"):
        yield _message(
            "W003",
            "ATOMIC_REQUESTS with SQLite: each page takes the one write lock for as long as it runs, and the worker "
            "waits.",
            "Set it to False and use transaction.atomic where it is needed.",
        )


def _is_wal_file(name: str) -> bool:
    """WAL is a property of the file: bytes 18 and 19 of its header. In memory there is nothing to lock."""
    if name == "" or ":memory:" in name or "mode=memory" in name:
        return True
    try:
        with Path(name).open("rb") as file:
            return file.read(20)[18:20] == b"\x02\x02"
    except OSError:
        return False


def _postgresql(config: Mapping[str, Any]) -> Iterator[CheckMessage]:
    pooled = config.get("DISABLE_SERVER_SIDE_CURSORS") or str(config.get("PORT")) == "6432"
    raw = getattr(django_settings, conf.NAME, {})
    if pooled and not (isinstance(raw, Mapping) and raw.get("LISTEN_DSN")):
        yield _message(
            "W007",
            "The database is reached through a transaction pooler, it seems: LISTEN does not work there, and workers "
            "find new work by polling alone.",
            "Set RIVET_WORKFLOWS['LISTEN_DSN'] to a direct connection, and DISABLE_SERVER_SIDE_CURSORS in DATABASES, "
            "which also keeps workers from prepared statements and session settings.",
        )


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _major(package: str) -> int:
    try:
        return int(version(package).split(".")[0])
    except (PackageNotFoundError, ValueError):
        return 0
