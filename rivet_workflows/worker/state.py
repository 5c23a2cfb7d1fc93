"""How a step's change of the state meets the changes of others (D-13): a three-way merge by top-level field.

A step reads the state, works for a while, and leaves another one; meanwhile an action may have changed the
stored one. A *field* is a top-level key of the encoded object (of a dict, dataclass, pydantic model or NamedTuple;
anything else is one single field), and two values of a field are the same when their encoded texts are.
Whoever changed a field alone keeps the change; where both changed it, it is a :class:`Conflict`, even if to one value.
Queued updates (``step.update(fn)``) are applied to what the merge gave, so they never conflict.

Pure functions over texts. Knows the shape in which the codec writes objects, and nothing of databases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rivet_workflows.records import StateWrite
from rivet_workflows.worker.orders import StateChange

#: A cell of a state that is not made of fields.
_WHOLE = ""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two writers changed these fields, to different values."""

    fields: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.fields)
        return (
            f"the state was changed meanwhile by somebody else, in the same field ({names}). For counters and "
            "lists use step.update(fn), which never conflicts"
        )


class InvalidUpdate(TypeError):
    """A function given to ``step.update`` returned something that is no state."""


@dataclass(slots=True)
class _Parts:
    """An encoded state taken apart: what holds the cells, and the text of each."""

    #: The class of the object, or of what kind the whole is. Two states merge only when it is the same.
    head: str
    cells: dict[str, str]
    #: A dict that is written as pairs, because JSON has no keys like its own.
    pairs: bool = False
    #: A pydantic model, which also keeps which of its fields were set.
    keeps_set: bool = False


def prepare(
    change: StateChange,
    load: Callable[[], tuple[int, str | None]],
    decode: Callable[[str], Any],
    encode: Callable[[Any], str],
) -> StateWrite | Conflict:
    """What to write so that ``change`` and everything stored since its base are both there.

    ``load`` reads the stored state as ``(version, text)``. The result holds for that version only; when the
    commit finds another one, this is called again. Raises what an update function raises.
    """
    version, found = load()
    # None: the actor is older than its state, and nobody has stored one since the step looked.
    stored = change.base or "null" if found is None else found
    text = stored
    if change.changed is not None:
        if change.base is None or version == change.base_version:
            text = change.changed
        else:
            merged = merge(change.base, change.changed, stored)
            if isinstance(merged, Conflict):
                return merged
            text = merged
    return StateWrite(version, apply_updates(text, change.updates, decode, encode))


def apply_updates(
    text: str,
    updates: Sequence[Callable[[Any], Any]],
    decode: Callable[[str], Any],
    encode: Callable[[Any], str],
) -> str:
    """``text`` after the queued updates, in the order in which they were queued.

    A function may return the new state, or change the one it is given and return None. Anything else that is not
    of the state's type is refused: ``lambda s: s.setdefault(…)`` would otherwise replace the state by a value of it.
    """
    if not updates:
        return text
    state = decode(text)
    for update in updates:
        result = update(state)
        if result is None:
            continue
        if type(result) is not type(state):
            raise InvalidUpdate(
                f"the function given to step.update returned a {type(result).__name__}, not a "
                f"{type(state).__name__}: return the new state, or change the given one and return None"
            )
        state = result
    return encode(state)


def merge(base: str, ours: str, theirs: str) -> str | Conflict:
    """The encoded state with the changes from ``base`` to ``ours`` and from ``base`` to ``theirs``."""
    if ours == base:
        return theirs
    if theirs == base:
        return ours
    old, mine, other = _split(base), _split(ours), _split(theirs)
    if not old.head == mine.head == other.head:
        # Somebody made it another kind of object: there are no common fields to go by.
        return Conflict(("the whole state",))
    cells = dict(other.cells)
    lost: list[str] = []
    for name in dict.fromkeys((*old.cells, *mine.cells)):
        before, now, there = old.cells.get(name), mine.cells.get(name), other.cells.get(name)
        if now == before:
            continue
        if there != before:
            # Also when both left the same value: two increments of one counter look like that.
            lost.append(_shown(name))
        elif now is None:
            del cells[name]
        else:
            cells[name] = now
    if lost:
        return Conflict(tuple(lost))
    return _join(_Parts(old.head, cells, mine.pairs or other.pairs, other.keeps_set))


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def _split(text: str) -> _Parts:
    data = json.loads(text)
    if not isinstance(data, dict):
        return _Parts("value", {_WHOLE: text})
    kind = data.get("$")
    if kind is None:
        return _Parts("dict", {_text(key): _text(value) for key, value in data.items()})
    if kind == "dict":
        return _Parts("dict", {_text(key): _text(value) for key, value in data["v"]}, pairs=True)
    if kind != "obj":
        return _Parts("value", {_WHOLE: text})
    cells: dict[str, str] = {}
    for part, content in data.items():
        if part in ("f", "p"):  # fields; private attributes of a pydantic model
            cells |= {f"{part}{name}": _text(value) for name, value in content.items()}
        elif part == "s":  # which fields of a pydantic model were set
            cells |= {f"s{name}": "" for name in content}
        elif part == "x":  # its extra fields, as pairs
            cells |= {f"x{_text(name)}": _text(value) for name, value in content}
    return _Parts(_text(data["c"]), cells, keeps_set="s" in data)


def _join(parts: _Parts) -> str:
    if parts.head == "value":
        return parts.cells[_WHOLE]
    if parts.head == "dict":
        if parts.pairs:
            return '{"$":"dict","v":[' + ",".join(f"[{k},{v}]" for k, v in parts.cells.items()) + "]}"
        return "{" + ",".join(f"{k}:{v}" for k, v in parts.cells.items()) + "}"
    of: dict[str, dict[str, str]] = {"f": {}, "s": {}, "x": {}, "p": {}}
    for name, value in parts.cells.items():
        of[name[0]][name[1:]] = value
    text = f'{{"$":"obj","c":{parts.head},"f":{{{_members(of["f"])}}}'
    if parts.keeps_set:
        text += f',"s":{_text(sorted(of["s"]))}'
    if of["x"]:
        text += ',"x":[' + ",".join(f"[{name},{value}]" for name, value in of["x"].items()) + "]"
    if of["p"]:
        text += f',"p":{{{_members(of["p"])}}}'
    return text + "}"


def _members(fields: dict[str, str]) -> str:
    return ",".join(f"{_text(name)}:{value}" for name, value in fields.items())


def _shown(name: str) -> str:
    """A cell as people call it."""
    if name == _WHOLE:
        return "the whole state"
    if name[0] in "fpsx" and not name.startswith(('"', "[", "{")):
        return name[1:].strip('"')
    return name.strip('"')
