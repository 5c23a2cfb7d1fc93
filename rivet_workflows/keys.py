"""Actor names and keys: what a caller may pass, and the one text each key is stored as.

A key is a text, an int, a UUID or several of them in a tuple. It is stored as an ASCII JSON list of texts, so any
text fits (NUL, ``/`` and lone surrogates included), every database compares it byte by byte, and parts can never
run into each other: ``("a", "b")`` is not ``"a/b"``. Ints and UUIDs are kept as their text, so ``1`` and ``"1"``
are one key, and so are ``"a"`` and ``("a",)``.

A leaf: knows no Django and nothing else of the package but its errors.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias
from uuid import UUID

from rivet_workflows.exceptions import ValidationFailed

__all__ = [
    "MAX_KEY_BYTES",
    "MAX_NAME_LENGTH",
    "MAX_PART_BYTES",
    "Key",
    "KeyPart",
    "decode",
    "encode",
    "readable",
]

KeyPart: TypeAlias = str | int | UUID
#: What a caller may pass.
Key: TypeAlias = KeyPart | tuple[KeyPart, ...]

#: Limits (A-KEY-05), in bytes of UTF-8.
MAX_PART_BYTES = 128
MAX_KEY_BYTES = 1024
MAX_NAME_LENGTH = 64


def encode(key: Key) -> str:
    """The stored text of ``key``.

    ``ValidationFailed`` when a part has another type, or a part or the whole is too long; the message has the limit.
    """
    # A list is what JSON has for a tuple: REST passes keys on as they came.
    parts: tuple[Any, ...] = tuple(key) if isinstance(key, tuple | list) else (key,)
    texts = [_text(part) for part in parts]
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
    for text, size in zip(texts, sizes, strict=True):
        if size > MAX_PART_BYTES:
            raise _refused(
                f"a part of an actor's key may have {MAX_PART_BYTES} bytes; {_short(text)} has {size}"
            )
    if sum(sizes) > MAX_KEY_BYTES:
        raise _refused(f"an actor's key may have {MAX_KEY_BYTES} bytes; this one has {sum(sizes)}")
    return json.dumps(texts, separators=(",", ":"), ensure_ascii=True)


def decode(stored: str) -> str | tuple[str, ...]:
    """The key as callers read it: a text, or a tuple of texts when it has several parts (or none)."""
    parts = json.loads(stored)
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"not a stored key: {stored[:80]!r}")
    return parts[0] if len(parts) == 1 else tuple(parts)


def readable(stored: str) -> str:
    """One line for people: parts joined by ``/``, with what would not print escaped. Not reversible."""
    key = decode(stored)
    text = key if isinstance(key, str) else "/".join(key)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _text(part: Any) -> str:
    if isinstance(part, bool):
        raise _refused(f"an actor's key cannot hold {part!r}: pass a text, an int or a UUID")
    if isinstance(part, str):
        return str.__str__(part)  # the content also of enum members, whose own str() is their name
    if isinstance(part, int):
        try:
            return int.__repr__(part)
        except ValueError:  # Python refuses to print ints of thousands of digits
            raise _refused(f"a part of an actor's key may have {MAX_PART_BYTES} bytes") from None
    if isinstance(part, UUID):
        return str(part)
    hint = "; parts cannot be nested" if isinstance(part, tuple | list) else ""
    raise _refused(
        f"an actor's key is a text, an int, a UUID or a tuple of them, not {type(part).__name__}{hint}"
    )


def _refused(message: str) -> ValidationFailed:
    return ValidationFailed(
        message, metadata={"issues": [{"path": ["key"], "message": message, "type": "key"}]}
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 24 else text[:24] + "…")
