"""From text back to values.

Marks are understood inside out, by the hook of the C decoder, so that a text without a mark costs
what the standard library costs. Only text this codec wrote belongs here: what comes from outside
(REST, WebSocket) is plain JSON and must be parsed as such, never by `loads`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from rivet_workflows import jsontext
from rivet_workflows.codec import names
from rivet_workflows.codec.builders import build_enum, build_object, build_url
from rivet_workflows.codec.encode import MARK, dumps
from rivet_workflows.codec.scalars import DECODERS, SCALAR_TREES
from rivet_workflows.exceptions import SerializationError

Tag = dict[str, Any]


def loads(text: str) -> object:
    """The value that `dumps` made `text` of.

    Raises `SerializationError` when the text is damaged, or names a class or field that is not
    there any more; the message says what to do.
    """
    try:
        if MARK not in text:
            return jsontext.decode(text)
        return _decode_marked(text)
    except SerializationError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SerializationError(
            f"Stored text cannot be read ({type(error).__name__}: {str(error)[:200]}). It was damaged, or "
            f"written by something else; text from outside is not read here."
        ) from error


def roundtrip(value: object, *, what: str = "value") -> tuple[object, str]:
    """What replay will see of `value`, and its text.

    Callers hand on the former also the first time, so that code never sees more than replay keeps
    (another list, a cached attribute, an object shared with the step). Immutable values are given
    back as they are: decoding an equal one would show nothing.
    """
    text = dumps(value, what=what)
    return (value if type(value) in SCALAR_TREES else loads(text)), text


def roundtrip_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], *, what: str
) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """`roundtrip` for the arguments of a call. The text is that of `[[*args], {**kwargs}]`."""
    if not kwargs:
        texts: list[str] = []
        for value in args:
            if type(value) not in SCALAR_TREES:
                break
            texts.append(dumps(value, what=what))
        else:
            return args, {}, f"[[{','.join(texts)}],{{}}]"
    found: Any
    found, text = roundtrip([list(args), dict(kwargs)], what=what)
    return tuple(found[0]), found[1], text


def _custom(tag: Tag) -> object:
    custom = names.custom(tag["c"])
    try:
        return custom.decode(tag["v"])
    except Exception as error:
        raise SerializationError(
            f"The decode registered for {custom.name!r} raised {type(error).__name__}: {error}. Let it read "
            f"every form that was ever stored."
        ) from error


_DECODERS: Final[dict[str, Callable[[Tag], object]]] = {
    **DECODERS,
    "tuple": lambda tag: tuple(tag["v"]),
    "set": lambda tag: set(tag["v"]),
    "frozenset": lambda tag: frozenset(tag["v"]),
    "dict": lambda tag: dict(tag["v"]),
    "odict": lambda tag: OrderedDict(tag["v"]),
    "obj": build_object,
    "enum": build_enum,
    "url": build_url,
    "custom": _custom,
}


def _hook(found: Tag) -> object:
    if "$" not in found:
        return found
    decoder = _DECODERS.get(found["$"])
    if decoder is None:
        raise SerializationError(
            f"Stored text has a part of the kind {found['$']!r}, which this version does not know: it was "
            f"written by a newer one."
        )
    return decoder(found)


_decode_marked: Final = jsontext.decoder(_hook)
