"""A page of the history as a tree: calls in their order, those of loops, branches and blocks under the one that
opened them. Pure; a row that cannot be read becomes a line that says so.

Entries of branches interleave by ``seq`` and are grouped here by where they were made (their ``scope``). An entry
whose opener is on an earlier page appears under a heading that says it is continued.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from rivet_workflows.inspector.reading import Line, from_open, from_row, unread
from rivet_workflows.records import Kind, scope_steps

__all__ = ["Group", "Node", "Tree", "build", "missing_openers"]

#: Of a loop with more iterations than this on a page, those that went well are folded, the last excepted.
UNFOLDED_ITERATIONS = 4


@dataclass(slots=True)
class Group:
    """What was called in one iteration, branch or block."""

    label: str
    index: int
    nodes: list[Node] = field(default_factory=list)
    folded: bool = False

    def walk(self) -> Iterator[Node]:
        for node in self.nodes:
            yield node
            for group in node.groups.values():
                yield from group.walk()

    @property
    def failed(self) -> bool:
        return any(node.line.status == "failed" for node in self.walk())

    @property
    def size(self) -> int:
        """How many calls are in it, the headings of earlier pages left out."""
        return sum(not node.continued for node in self.walk())


@dataclass(slots=True)
class Node:
    """One call with what was called inside it."""

    line: Line
    #: Where it is, as ``replay_from`` takes it.
    location: str
    #: Its own entry is on an earlier page; here it is a heading.
    continued: bool = False
    groups: dict[int, Group] = field(default_factory=dict)

    def group(self, index: int) -> Group:
        if index not in self.groups:
            self.groups[index] = Group(_group_label(self.line, index), index)
        return self.groups[index]

    def children(self) -> list[Group]:
        """Groups in order; long loops with what went well folded away."""
        groups = [self.groups[index] for index in sorted(self.groups)]
        if self.line.kind == Kind.LOOP and len(groups) > UNFOLDED_ITERATIONS:
            for group in groups[:-1]:
                group.folded = not group.failed
        return groups


@dataclass(slots=True)
class Tree:
    """A page of history."""

    root: Group
    nodes: dict[int, Node]

    def __bool__(self) -> bool:
        return bool(self.root.nodes)


def missing_openers(rows: Sequence[dict[str, Any]], opened: Sequence[dict[str, Any]]) -> set[int]:
    """Entries whose scopes the rows are in, and that are not among them."""
    known = {row["seq"] for row in rows} | {entry.get("s") for entry in opened}
    scopes = [row["scope"] for row in rows] + [entry.get("p", "") for entry in opened]
    return {seq for scope in scopes for seq, _index, _within in _steps(scope)} - known


def build(
    rows: Sequence[dict[str, Any]],
    opened: Sequence[dict[str, Any]],
    openers: Iterable[Line] = (),
    began: int | None = None,
) -> Tree:
    """The tree of finished ``rows`` and ``opened`` entries. ``openers``: those of other pages that enclose them.

    ``began`` is when the actor was made: entries say how long after that they started.
    """
    finished = {row["seq"] for row in rows}
    lines = [from_row(row, began) for row in rows]
    lines += [line for line in (from_open(entry, began) for entry in opened) if line.seq not in finished]
    tree = Tree(Group("", 0), {})
    elsewhere = {line.seq: line for line in openers}
    for line in sorted(lines, key=lambda line: line.seq):
        home, place = _place(tree, line.scope, elsewhere)
        node = tree.nodes.get(line.seq)
        if node is None or node.continued:
            node = Node(line, "/".join([*place, line.label]))
            tree.nodes[line.seq] = node
            home.nodes.append(node)
    return tree


def _place(tree: Tree, scope: str, elsewhere: dict[int, Line]) -> tuple[Group, list[str]]:
    """The group that a scope names, made with headings where its openers are not on the page; and its location."""
    place: list[str] = []
    group, around = tree.root, ""
    for seq, index, within in _steps(scope):
        node = tree.nodes.get(seq)
        if node is None:
            line = elsewhere.get(seq) or unread(seq, around, _("its entry is gone"))
            node = tree.nodes[seq] = Node(line, "/".join([*place, line.label]), continued=True)
            group.nodes.append(node)
        place.append(node.line.label)
        if node.line.kind != Kind.TRY:
            place.append(f"~{index}" if node.line.kind == Kind.LOOP else node.line.branch(index))
        group = node.group(index)
        around = within
    return group, place


def _steps(scope: str) -> Iterator[tuple[int, int, str]]:
    """What ``scope_steps`` says; of a damaged scope, what can be read."""
    with contextlib.suppress(ValueError):
        yield from scope_steps(scope)


def _group_label(line: Line, index: int) -> str:
    if line.kind == Kind.LOOP:
        return _("iteration %(n)d") % {"n": index}
    if line.kind == Kind.MAP:
        return _("item %(n)d") % {"n": index}
    if line.kind in (Kind.JOIN, Kind.RACE):
        return _("branch %(name)s") % {"name": line.branch(index)}
    return ""
