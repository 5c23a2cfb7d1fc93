"""Runs tests against mutants, each in a forked process that is given the changed functions.

Of a mutant those tests are run that run its line, first those that killed its neighbours. It is killed when a test
fails, or takes many times its usual processor time, or too much memory. What only an import runs gets a pytest of
its own, with the changed module.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import io
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from .mutants import Mutant

#: How each mutant ended: killed, timeout, survived, not run.
Results = dict[Mutant, str]

#: One process, no random choice, and no clock but the mutant's own.
PYTEST = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-o", "timeout=0", "--assert=plain", "--tb=native"]
MEMORY = 4 << 30
#: Seconds that a mutant is waited for, whatever it does.
PATIENCE = 150


def run(mutants: Sequence[Mutant], tests: Sequence[str], longest: float, out: Path | None) -> Results:
    """Run ``tests``, those that take at most ``longest`` seconds, against each of the mutants."""
    quick = Quick([mutant for mutant in mutants if not mutant.at_import], longest, out)
    slow = [mutant for mutant in mutants if mutant.at_import]
    hypothesis.settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    hypothesis.settings.load_profile("mutation")
    results: Results = {}
    for mutant in slow:
        results[mutant] = imported_anew(mutant, tests)
        note(out, results[mutant], mutant)
    pytest.main([*PYTEST, *tests], plugins=[quick])
    return results | quick.results


def note(out: Path | None, end: str, mutant: Mutant, more: str = "") -> None:
    if out is not None:
        with out.open("a") as lines:
            print(end, mutant.id, more, sep="\t", file=lines)


# -- a process for each mutant -----------------------------------------------------------------------


def in_child(work: Callable[[Callable[[Any], None]], None]) -> list[Any]:
    """What ``work`` has told by the end of its process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

            def tell(value: Any) -> None:
                os.write(write, pickle.dumps(value))

            work(tell)
        finally:
            os._exit(0)
    os.close(write)
    data = io.BytesIO()
    end = time.monotonic() + PATIENCE
    while select.select([read], [], [], max(0.0, end - time.monotonic()))[0]:
        chunk = os.read(read, 1 << 20)
        if not chunk:
            break
        data.write(chunk)
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    os.waitpid(pid, 0)
    told, size = [], data.tell()
    data.seek(0)
    while data.tell() < size:
        told.append(pickle.load(data))
    return told


def limit(seconds: float) -> None:
    """End this process once it has used so much of a processor."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


# -- what only an import runs ------------------------------------------------------------------------


class Source(importlib.machinery.SourceFileLoader):
    """Loads a module from the mutant's source."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.path.resolve()))
        self.source = mutant.source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class Changed(importlib.abc.MetaPathFinder):
    """Finds the mutant's module before the unchanged one is found."""

    def __init__(self, mutant: Mutant) -> None:
        name = ".".join(mutant.path.with_suffix("").parts).removesuffix(".__init__")
        self.spec = importlib.machinery.ModuleSpec(name, Source(name, mutant), origin=str(mutant.path))

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        return self.spec if fullname == self.spec.name else None


def imported_anew(mutant: Mutant, tests: Sequence[str]) -> str:
    assert "rivet_workflows.engine" not in sys.modules

    def work(tell: Callable[[Any], None]) -> None:
        sys.meta_path.insert(0, Changed(mutant))
        limit(PATIENCE)
        tell("began")
        tell(pytest.main([*PYTEST, *tests]) == 0)

    told = in_child(work)
    return "timeout" if len(told) < 2 else "survived" if told[1] else "killed"


# -- what can be changed in a warm process -----------------------------------------------------------


def places(code: CodeType) -> Iterator[tuple[Any, CodeType]]:
    """All code in ``code`` by its place: qualified name, and number among those of that name."""
    seen: Counter[str] = Counter()
    stack = [code]
    while stack:
        current = stack.pop()
        yield (current.co_qualname, seen[current.co_qualname]), current
        seen[current.co_qualname] += 1
        stack += reversed([const for const in current.co_consts if isinstance(const, CodeType)])


def _key(code: CodeType) -> Any:
    """What tells code of one file apart. Not its bytes: pytest has rewritten its asserts."""
    return code.co_qualname, code.co_firstlineno, code.co_name == "<lambda>" and code.co_code


class Loaded:
    """The functions of one source file that are in memory, by place."""

    def __init__(self, path: Path, functions: Sequence[FunctionType]) -> None:
        self.name = str(path.resolve())
        self.before = dict(places(self._compiled(path.read_text())))
        self.functions: dict[Any, list[FunctionType]] = defaultdict(list)
        for function in functions:
            loaded = function.__code__
            if loaded.co_filename == self.name:
                for place, code in self.before.items():
                    if _key(loaded) == _key(code):
                        self.functions[place].append(function)

    def _compiled(self, source: str) -> CodeType:
        return compile(source, self.name, "exec", dont_inherit=True)

    def change(self, source: str) -> None:
        for place, code in places(self._compiled(source)):
            if code != self.before.get(place):
                for function in self.functions[place]:
                    function.__code__ = code


class Quick:
    """A plugin of pytest: collects as usual, and then runs the tests for each mutant."""

    def __init__(self, mutants: Sequence[Mutant], longest: float, out: Path | None) -> None:
        self.mutants = mutants
        self.longest = longest
        self.out = out
        self.results: Results = {}
        self.items: list[pytest.Item] = []
        self.seconds: list[float] = []
        #: Tests by the line of a file that they run.
        self.tests_of: dict[tuple[str, int], set[int]] = defaultdict(set)
        #: How often a test has killed, by function and by file.
        self.kills: dict[Any, Counter[int]] = defaultdict(Counter)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = session.items
        functions = [f for f in gc.get_objects() if isinstance(f, FunctionType)]
        self.loaded = {p: Loaded(p, functions) for p in dict.fromkeys(m.path for m in self.mutants)}
        self.caches = [
            value.cache_clear
            for name, module in list(sys.modules.items())
            if name.startswith("rivet_workflows.engine.")
            for value in vars(module).values()
            if hasattr(value, "cache_clear")
        ]
        gc.collect()
        gc.freeze()
        self._learn()
        for mutant in self.mutants:
            self.results[mutant], killer = self._end_of(mutant)
            note(self.out, self.results[mutant], mutant, killer)
        return True

    def _run(self, index: int, following: int | None) -> bool:
        for clear in self.caches:
            clear()
        item = self.items[index]
        after = None if following is None else self.items[following]
        return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=after))

    def _learn(self) -> None:
        """Run all tests once, unchanged: how long each takes, and which lines it runs."""

        def work(tell: Callable[[Any], None]) -> None:
            lines: set[tuple[str, int]] = set()
            watch: Any = sys.monitoring  # type: ignore[attr-defined]  # Python 3.12
            watch.use_tool_id(watch.COVERAGE_ID, "mutation")

            def line(code: CodeType, number: int) -> Any:
                lines.add((code.co_filename, number))
                return watch.DISABLE

            def start(code: CodeType, _offset: int) -> Any:
                lines.add((code.co_filename, code.co_firstlineno))  # a function of one line has no line event
                return watch.DISABLE

            watch.register_callback(watch.COVERAGE_ID, watch.events.LINE, line)
            watch.register_callback(watch.COVERAGE_ID, watch.events.PY_START, start)
            watched = watch.events.LINE | watch.events.PY_START
            for loaded in self.loaded.values():
                for functions in loaded.functions.values():
                    for code in {code for function in functions for _, code in places(function.__code__)}:
                        watch.set_local_events(watch.COVERAGE_ID, code, watched)
            for index in range(len(self.items)):
                lines.clear()
                watch.restart_events()
                before = time.process_time()
                passed = self._run(index, index + 1 if index + 1 < len(self.items) else None)
                tell((passed, time.process_time() - before, lines))

        for index, (passed, seconds, lines) in enumerate(in_child(work)):
            self.seconds.append(seconds)
            if not passed:
                raise pytest.UsageError(f"{self.items[index].nodeid} fails without any mutant")
            for place in lines:
                self.tests_of[place].add(index)
        if len(self.seconds) < len(self.items):
            raise pytest.UsageError("the tests did not come to their end without any mutant")

    def _end_of(self, mutant: Mutant) -> tuple[str, str]:
        loaded, near, around = self.loaded[mutant.path], self.kills[mutant.function], self.kills[mutant.path]
        chosen = set().union(*(self.tests_of[loaded.name, number] for number in mutant.lines))
        if not chosen:
            return "not run", ""
        order = sorted(
            (index for index in chosen if self.seconds[index] <= self.longest),
            key=lambda index: (
                -near[index],
                -around[index] / (self.seconds[index] + 0.01),
                self.seconds[index],
            ),
        )

        def work(tell: Callable[[Any], None]) -> None:
            loaded.change(mutant.source)
            for index, following in zip(order, [*order[1:], None], strict=True):
                tell(index)
                limit(2 + 10 * self.seconds[index])
                if not self._run(index, following):
                    tell("failed")
                    return
            tell("passed")

        told = in_child(work)
        if told[-1:] == ["passed"]:
            return "survived", ""
        end = "killed" if told[-1:] == ["failed"] else "timeout"
        killer = next((index for index in reversed(told) if isinstance(index, int)), None)
        if killer is None:
            return "timeout", "?"
        near[killer] += 1
        around[killer] += 1
        return end, self.items[killer].nodeid
