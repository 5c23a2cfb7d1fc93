"""Generated workflows, undisturbed, evicted after every commit, and crashed at random points: all must come out alike.

What is compared: the result or the error, every entry of the history with its times and numbers, and the order of
the effects (a step whose commit was lost has run again; its repetition is left out).
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rivet_workflows.engine import Loop
from rivet_workflows.exceptions import JoinError, RaceError, StepFailed
from tests.engine.driver import START, Driver

FAILURES = (StepFailed, JoinError, RaceError)


@dataclass
class Node:
    kind: str
    children: list[Node] = field(default_factory=list)
    number: int = 0
    flag: bool = False
    id: int = -1

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.children))
        return f"{self.kind}({self.number}{'!' if self.flag else ''}{', ' + inner if inner else ''})"


def leaves() -> st.SearchStrategy[Node]:
    step = st.builds(Node, st.just("step"), number=st.sampled_from([0, 0, 0, 1, 2]), flag=st.booleans())
    sleep = st.builds(Node, st.just("sleep"), number=st.integers(0, 4))
    wait = st.builds(Node, st.just("wait"), number=st.integers(0, 4), flag=st.booleans())
    send = st.builds(Node, st.just("send"))
    return st.one_of(step, step, sleep, wait, send)


def nodes() -> st.SearchStrategy[Node]:
    def extend(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        many = st.lists(inner, min_size=1, max_size=3)
        kinds = st.sampled_from(["all", "all", "join", "race", "map", "try", "guard", "native", "callable"])
        return st.builds(Node, kinds, many, number=st.integers(1, 4), flag=st.booleans())

    return st.recursive(leaves(), extend, max_leaves=14)


def numbered(root: Node) -> Node:
    counter = itertools.count()

    def walk(node: Node) -> None:
        node.id = next(counter)
        for child in node.children:
            walk(child)

    walk(root)
    return root


class Interpreter:
    """Runs a tree of nodes as a workflow. Every result is written into the log of the place where it arrives, so
    that the order of deliveries is part of the output."""

    def __init__(self, root: Node, rollback: bool, ephemeral: bool) -> None:
        self.root = root
        self.ephemeral = ephemeral
        self.rollback = rollback
        self.effects: list[Any] = []

    def work(self, step: Any, what: Any, fails: int) -> Any:
        self.effects.append((step.seq, step.attempt, what))
        if step.attempt <= fails:
            raise ValueError(f"{what} fails {step.attempt}")
        return what

    def undo(self, step: Any, output: Any) -> None:
        self.effects.append((step.seq, "undo", output))

    async def run(self, ctx: Any) -> Any:
        log: list[Any] = []
        if self.rollback:
            await ctx.rollback_checkpoint("cp")
        await self.node(ctx, self.root, log)
        return log, ctx.uuid4()

    async def node(self, ctx: Any, node: Node, log: list[Any]) -> None:
        await getattr(self, f"do_{node.kind}")(ctx, node, log)
        log.append((node.id, (ctx.now().timestamp() * 1e6 - START) // 1e6))

    async def do_step(self, ctx: Any, node: Node, log: list[Any]) -> None:
        options: dict[str, Any] = {"max_retries": 1, "ephemeral": node.flag and self.ephemeral}
        if self.rollback:
            options["rollback"] = self.undo
        log.append(await ctx.step(f"s{node.id}", self.work, node.id, node.number, **options))

    async def do_sleep(self, ctx: Any, node: Node, _log: list[Any]) -> None:
        await ctx.sleep(f"z{node.id}", node.number)

    async def do_wait(self, ctx: Any, node: Node, log: list[Any]) -> None:
        names = "a" if node.flag else ("a", "b")
        got = await ctx.queue.next_batch("w", names=names, timeout=node.number, count=2)
        log.append([message.body for message in got])

    async def do_send(self, ctx: Any, node: Node, _log: list[Any]) -> None:
        await ctx.queue.send("b", f"own {node.id}")

    async def do_all(self, ctx: Any, node: Node, log: list[Any]) -> None:
        for child in node.children:
            await self.node(ctx, child, log)

    async def do_join(self, ctx: Any, node: Node, log: list[Any]) -> None:
        branches = {f"b{c.id}": (lambda b, c=c: self.node(b, c, log)) for c in node.children}
        await ctx.join(f"j{node.id}", branches)

    async def do_map(self, ctx: Any, node: Node, log: list[Any]) -> None:
        async def one(b: Any, item: int) -> Any:
            await self.do_all(b, node, log)
            return item

        concurrency = 2 if node.flag else None
        log.append(await ctx.map(f"m{node.id}", one, list(range(node.number)), concurrency=concurrency))

    async def do_race(self, ctx: Any, node: Node, log: list[Any]) -> None:
        async def branch(b: Any, child: Node) -> Any:
            own: list[Any] = []  # what a loser saw is not seen again
            await self.node(b, child, own)
            return own

        branches = {f"b{c.id}": (lambda b, c=c: branch(b, c)) for c in node.children}
        outcome = await ctx.race(f"r{node.id}", branches)
        log.append((outcome.winner, outcome.value))

    async def do_try(self, ctx: Any, node: Node, log: list[Any]) -> None:
        result = await ctx.try_block(f"t{node.id}", lambda b: self.do_all(b, node, log))
        log.append(result.failure and (result.failure.source, result.failure.name))

    async def do_guard(self, ctx: Any, node: Node, log: list[Any]) -> None:
        try:
            await self.do_all(ctx, node, log)
        except FAILURES as exc:
            log.append(type(exc).__name__)

    async def do_native(self, ctx: Any, node: Node, log: list[Any]) -> None:
        async for it in ctx.loop(f"l{node.id}", state=[], history_prune_interval=2):
            own = list(it.loop_state)
            await self.do_all(it, node, own)
            it.loop_state = own
            if it.iteration >= node.number:
                break
        log.append(it.loop_state)  # type: ignore[possibly-undefined]

    async def do_callable(self, ctx: Any, node: Node, log: list[Any]) -> None:
        async def body(it: Any, state: list[Any]) -> Loop:
            own = list(state)
            await self.do_all(it, node, own)
            return Loop.stop(own) if it.iteration >= node.number else Loop.next(own)

        log.append(await ctx.loop(f"l{node.id}", body, state=[], history_prune_interval=3))


def drive(
    root: Node,
    rollback: bool,
    mail: list[tuple[int, str]],
    *,
    ephemeral: bool = False,
    replay: bool = False,
    crashes: random.Random | None = None,
) -> tuple[Interpreter, Driver]:
    """Run to the end: steps in order of their number, then messages and timers in order of time."""
    interpreter = Interpreter(root, rollback, ephemeral)
    driver = Driver(interpreter.run, replay=replay, auto=False, find_handler=lambda _path: interpreter.undo)
    if crashes is not None:
        driver.before_commit = lambda _number: crashes.random() > 0.25
    driver.limits = type(driver.limits)(max_starts=1_000)
    driver.start()
    waiting = sorted(mail)
    for _ in range(20_000):
        if driver.over:
            break
        if driver.pending:
            driver.finish(min(driver.pending, key=lambda order: order.seq))
            driver.settle()
            if crashes is not None and not driver.over and crashes.random() < 0.1:
                driver.crash()
            continue
        due = driver.machine.next_due
        arrives = START + waiting[0][0] * 1_000_000 if waiting else None
        if arrives is not None and (due is None or arrives <= due):
            driver.now = max(driver.now, arrives)
            driver.send(waiting[0][1], waiting.pop(0)[0])
        else:
            assert due is not None, "nothing will ever happen"
            driver.now = max(driver.now, due)
            driver.apply(driver.machine.time(driver.now))
            driver.settle()
    assert driver.outcome is not None, driver.set_aside
    return interpreter, driver


def shown(interpreter: Interpreter, driver: Driver) -> Any:
    rows = [
        (
            r.seq,
            r.done_seq,
            r.scope,
            r.name,
            r.occurrence,
            r.kind,
            r.status,
            r.done_at,
            r.output,
            r.rolled_back_at,
        )
        for r in driver.entries()
    ]
    error = None if driver.outcome.error is None else str(driver.error)
    output = None if driver.outcome.output is None else driver.output
    return output, error, rows, list(dict.fromkeys(interpreter.effects)), [m.body for m in driver.queue]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    nodes(),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from("ab")), max_size=6),
    st.integers(0, 2**32),
)
# A message that comes while a sleep is due at the same moment.
@example(
    Node("map", [Node("wait", number=2), Node("all", [Node("sleep", number=2)])], number=2),
    False,
    False,
    [(0, "a"), (2, "a")],
    0,
)
def test_a_workflow_comes_out_alike_however_it_is_disturbed(
    root: Node, rollback: bool, ephemeral: bool, mail: list[tuple[int, str]], seed: int
) -> None:
    root = numbered(root)
    calm = shown(*drive(root, rollback, mail, ephemeral=ephemeral))
    evicted = shown(*drive(root, rollback, mail, ephemeral=ephemeral, replay=True))
    assert evicted == calm
    if not ephemeral:  # what is lost of those runs again, and that may be later
        crashed = shown(*drive(root, rollback, mail, crashes=random.Random(seed)))
        assert crashed == calm


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(nodes(), st.lists(st.tuples(st.integers(0, 8), st.sampled_from("ab")), max_size=6))
def test_a_finished_workflow_replays_to_the_same_result(root: Node, mail: list[tuple[int, str]]) -> None:
    interpreter, driver = drive(numbered(root), False, mail)
    first = shown(interpreter, driver)
    if driver.outcome.output is None:
        return
    driver.outcome = None
    driver.inflight = '{"e":[]}'
    driver.crash()
    assert shown(interpreter, driver) == first
