"""The mutants of a source file: mutmut's operators, and statements left out. Nothing is run here.

Not made are mutants of text for people: docstrings, and whatever is within a string that holds a space. Of some others
that one test would treat alike there is one: a string is changed once, and False becomes True but not None as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import (
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    WhitespaceInclusivePositionProvider,
)
from mutmut.mutation.mutators import mutation_operators


@dataclass(frozen=True)
class Mutant:
    """One changed place. ``id`` has no line number in it: it stays while the code around changes."""

    path: Path
    #: As in ``__qualname__``, without ``<locals>``.
    function: str
    #: The lines that differ, on one line.
    old: str
    new: str
    #: Which one of several in this function that read alike.
    number: int
    #: The lines of its statement, or of a compound statement's head: what does not run these cannot notice it.
    lines: range
    #: Outside of any function's body: only an import runs it.
    at_import: bool
    source: str

    @property
    def id(self) -> str:
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{self.path.stem}.{self.function}{again}: `{self.old}` → `{self.new}`"


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of the file, in the order of its text."""
    source = path.read_text()
    finder = _Finder(source)
    MetadataWrapper(cst.parse_module(source)).visit(finder)
    seen: Counter[Any] = Counter()
    found = []
    for changed, (function, lines, at_import) in dict(finder.found).items():
        old, new = _differing(source, changed)
        seen[function, old, new] += 1
        number = seen[function, old, new]
        found.append(Mutant(path, function, old, new, number, lines, at_import, changed))
    return found


def _differing(source: str, changed: str) -> tuple[str, str]:
    before, after = ([line.strip() for line in text.splitlines()] for text in (source, changed))
    while before and after and before[-1] == after[-1]:
        before.pop(), after.pop()
    same = next((i for i, lines in enumerate(zip(before, after, strict=False)) if lines[0] != lines[1]), 0)
    return " ".join(before[same:]), " ".join(after[same:])


#: The function around a node, the lines of its statement, and whether only an import runs it.
_Place = tuple[str, range, bool]


class _Finder(cst.CSTVisitor):
    """Collects changed sources, and where they are changed."""

    METADATA_DEPENDENCIES = (PositionProvider, WhitespaceInclusivePositionProvider, ParentNodeProvider)

    def __init__(self, source: str) -> None:
        super().__init__()
        self.lines = source.splitlines(keepends=True)
        self.found: list[tuple[str, _Place]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._is_no_behaviour(node):
            return False
        for kind, operator in (*mutation_operators, *STATEMENTS):
            if isinstance(node, kind):
                made = [mutated for mutated in operator(node) if not _changes_nothing(node, mutated)]
                if isinstance(node, cst.SimpleString):
                    made = made[:1]  # as wrong in lower case as with another letter
                self.found += [(self._replaced(node, mutated), self._place(node)) for mutated in made]
        return True

    def _replaced(self, node: cst.CSTNode, mutated: cst.CSTNode) -> str:
        """The source with another text in this place."""
        position = self.get_metadata(WhitespaceInclusivePositionProvider, node)
        start, end = position.start, position.end
        before = [*self.lines[: start.line - 1], self.lines[start.line - 1][: start.column]]
        after = [self.lines[end.line - 1][end.column :], *self.lines[end.line :]]
        return "".join([*before, _code(mutated), *after])

    def _is_no_behaviour(self, node: cst.CSTNode) -> bool:
        """Types, imports, slots, and text."""
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Subscript):
            return not isinstance(node, cst.Subscript) or self._place(node)[2]
        if isinstance(node, cst.If):
            return "TYPE_CHECKING" in _code(node.test)
        if isinstance(node, cst.Assign):
            return _code(node.targets[0].target) in ("__slots__", "__all__")
        if isinstance(node, cst.Call):
            return _code(node.func) in ("len", "isinstance", "TypeVar")
        return _is_text(node)

    def _place(self, node: cst.CSTNode) -> _Place:
        names: list[str] = []
        at_import = True
        top: cst.CSTNode | None = None
        lines: range | None = None
        below: cst.CSTNode = node
        for above in self._upwards(node):
            if lines is None:
                if isinstance(above, cst.SimpleStatementLine):
                    lines = self._range(above)
                elif isinstance(above, cst.BaseCompoundStatement):
                    lines = self._range(top or above)
                elif isinstance(above, cst.BaseExpression | cst.Param):
                    top = above
            if isinstance(above, cst.FunctionDef | cst.ClassDef):
                names.append(above.name.value)
            if isinstance(above, cst.FunctionDef | cst.Lambda) and below is above.body:
                at_import = False
            below = above
        assert lines is not None
        return ".".join(reversed(names)) or "<module>", lines, at_import

    def _upwards(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        above: cst.CSTNode | None = node
        while above is not None:
            yield above
            above = self.get_metadata(ParentNodeProvider, above, None)

    def _range(self, node: cst.CSTNode) -> range:
        position = self.get_metadata(PositionProvider, node)
        return range(position.start.line, position.end.line + 1)


# -- operators ---------------------------------------------------------------------------------------


def _without_statement(node: cst.BaseSmallStatement) -> Iterator[cst.BaseSmallStatement]:
    """Calls for their effect, ``del``, ``raise``, and returns of nothing, left out."""
    call = isinstance(node, cst.Expr) and isinstance(node.value, cst.Call)
    empty = isinstance(node, cst.Return) and node.value is None
    if call or empty or isinstance(node, cst.Del | cst.Raise):
        yield cst.Pass()


STATEMENTS: list[tuple[type, Callable[[Any], Iterable[Any]]]] = [(cst.BaseSmallStatement, _without_statement)]


# -- text --------------------------------------------------------------------------------------------


def _code(node: cst.CSTNode) -> str:
    return str(cst.Module([]).code_for_node(node))


def _is_text(node: cst.CSTNode) -> bool:
    """A string for people: one with a space in it."""
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.FormattedString):
        return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts)
    if isinstance(node, cst.ConcatenatedString):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, cst.BinaryOperation):
        return _is_text(node.left)
    return False


def _changes_nothing(node: cst.CSTNode, mutated: cst.CSTNode) -> bool:
    """A text is lost, and nothing else; or ``False`` becomes None, or None an empty text, which are as false."""
    if isinstance(node, cst.Call) and isinstance(mutated, cst.Call):
        kept = {id(arg) for arg in mutated.args}
        return any(_is_text(arg.value) for arg in node.args if id(arg) not in kept)
    if isinstance(node, cst.Assign | cst.AnnAssign):
        return node.value is not None and (_is_text(node.value) or _code(node.value) in ("False", "None"))
    return False
