"""Stored values and errors as people read them: plain JSON, cut, with a placeholder for what cannot be read. Pure.

Nothing here raises, whatever a row holds: a page about trouble must not add to it. No stored class is ever made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from rivet_workflows.codec import plain_text
from rivet_workflows.exceptions import ErrorInfo

__all__ = ["Failure", "Value", "failure", "failure_of", "items", "printable", "value"]

#: Characters of one pretty-printed value on a page; the stored text is cut in the database before.
SHOWN = 20_000
#: A value this short stands in its line; a longer one is folded away.
SHORT = 60
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Value:
    """One stored value. ``short`` fits into a line; ``text`` is the whole, or its beginning (``cut``)."""

    short: str
    text: str
    cut: bool = False

    @property
    def inline(self) -> bool:
        """The line says it all."""
        return self.short == self.text and not self.cut


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a page shows it. ``step``, ``kind`` and ``attempts`` where a step's failure ended something."""

    type: str
    message: str
    traceback: str = ""
    metadata: list[tuple[str, str]] = field(default_factory=list)
    step: str = ""
    kind: str = ""
    attempts: int = 0
    #: Errors of branches, by branch.
    branches: list[tuple[str, Failure]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The class without its module."""
        return self.type.rsplit(".", 1)[-1]

    @property
    def line(self) -> str:
        """One line of it."""
        first = self.message.strip().split("\n", 1)[0]
        return _shorten(f"{self.name}: {first}" if first else self.name, 200)


def printable(text: object) -> str:
    """Text that can be sent as UTF-8 and shown: half a surrogate pair and NUL as their escapes."""
    plain = str(text).encode("utf-8", "backslashreplace").decode()
    return plain.replace("\0", "\\x00")


def value(stored: str | None, limit: int) -> Value | None:
    """The value in a stored text of which at most ``limit + 1`` characters were read; None where there is none."""
    if stored is None:
        return None
    if len(stored) > limit:
        # Its form cannot be told from a part; the beginning as it is stored still says what it is.
        head = printable(stored[:limit])
        return Value(_shorten(head, SHORT), head, cut=True)
    plain = plain_text(stored)
    try:
        line = json.dumps(plain, ensure_ascii=False)
        text = line if len(line) <= SHORT else json.dumps(plain, ensure_ascii=False, indent=2)
    except (ValueError, TypeError, RecursionError):
        line = text = _("<cannot be shown>")
    line, text = printable(line), printable(text)
    return Value(_shorten(line, SHORT), text[:SHOWN], cut=len(text) > SHOWN)


def failure(stored: str | None) -> Failure | None:
    """The error in a stored text, or in its beginning; None where there is none."""
    if not stored:
        return None
    try:
        record = _DECODER.raw_decode(stored)[0]
        if isinstance(record, dict):
            return failure_of(record)
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    # Cut, or damaged. The first part is the error itself: it is whole even where a thousand branches follow.
    start = re.search(r'"(?:error|cause)":\s*(?=\{)', stored)
    try:
        inner = _DECODER.raw_decode(stored, start.end() if start else 0)[0]
        return failure_of(inner)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Failure(_("An error that cannot be read"), printable(stored[:500]))


def failure_of(record: dict[str, Any]) -> Failure:
    """The error in a record: what ``failure_record`` or ``ErrorInfo.to_dict`` made.

    Of a step's failure the project's own exception is shown (the cause), for that is where the mend is.
    """
    outer = record.get("error") if isinstance(record.get("error"), dict) else record
    info = ErrorInfo.from_dict(record.get("cause") or outer or {})
    branches = record.get("errors") or ()
    return Failure(
        type=printable(info.type),
        message=printable(info.message),
        traceback=printable(info.traceback),
        metadata=_metadata(info),
        step=printable(record.get("step") or ""),
        kind=printable(record.get("kind") or ""),
        attempts=int(record.get("attempts") or 0),
        branches=[(printable(key), failure_of(inner)) for key, inner in list(branches)[:20]],
    )


#: Attributes of our own errors that the page tells in words.
_TOLD = frozenset({"message", "error", "name", "step_name", "kind", "attempts"})


def _metadata(info: ErrorInfo) -> list[tuple[str, str]]:
    ours = info.type.startswith("rivet_workflows.")
    shown = {str(key): inner for key, inner in info.metadata.items() if not (ours and key in _TOLD)}
    return [(printable(key), printable(shown[key])) for key in sorted(shown)]


def items(stored: str | None) -> Iterable[Any]:
    """The elements of a stored JSON list, one by one, for as long as they can be read: it may have been cut."""
    at = 1
    text = (stored or "").strip()
    while text.startswith("[") and at < len(text):
        try:
            element, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield element
        while at < len(text) and text[at] in ", \n\t":
            at += 1


def _shorten(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"
