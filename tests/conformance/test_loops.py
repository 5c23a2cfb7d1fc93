"""Loops: R-LOOP, D-05 to D-07; BR-051, BR-052, BR-053."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from rivet_workflows.engine import Limits, Loop
from rivet_workflows.exceptions import NotReplaySafe, StepFailed
from rivet_workflows.records import Blocked, EntryStatus, Lifecycle, scope_steps
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo, fail


def test_r_loop_01_03_forms(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("native", state={"n": 0}):
            it.loop_state["n"] += await it.step("a", echo, it.iteration)
            if it.iteration == 3:
                break
        native = it.loop_state

        async def body(it: Any, state: int) -> Loop:
            state += await it.step("a", echo, it.iteration)
            return Loop.stop(state) if it.iteration == 3 else Loop.next(state)

        async def plain(it: Any) -> Any:
            await it.step("b", echo)
            return Loop.stop("end") if it.iteration == 2 else None

        return native, await ctx.loop("callable", body, state=0), await ctx.loop("plain", plain)

    assert drive(run).output == ({"n": 6}, 6, "end")


def test_r_loop_02_a_body_of_two_parameters_has_a_state_that_begins_as_none(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def body(it: Any, state: Any) -> Loop:
            await it.step("a", echo)
            return Loop.next([state]) if it.iteration == 0 else Loop.stop(state)

        return await ctx.loop("x", body)

    assert drive(run).output == [None]


def test_r_loop_02_a_body_that_does_not_tell_its_parameters_is_given_the_iteration_alone(
    drive: Drive,
) -> None:
    class Compiled:
        """As of a function of an extension module."""

        __signature__ = "unknown"

        async def __call__(self, *given: Any) -> Loop:
            await given[0].step("a", echo)
            return Loop.stop(len(given))

    async def run(ctx: Any) -> Any:
        return await ctx.loop("x", Compiled())

    assert drive(run).output == 1


@pytest.mark.parametrize("state", [0, None])
def test_r_loop_04_stateful_body_returning_nothing(drive: Drive, state: Any) -> None:
    async def run(ctx: Any) -> Any:
        async def body(it: Any, state: Any) -> None:
            await it.step("a", echo)

        await ctx.loop("pages", body, state=state)

    assert "pages" in drive(run).error.error.message


def test_r_loop_02_and_arguments(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        for bad in (0, -1, True, 1.5):
            with pytest.raises(ValueError, match=r"^history_size must be"):
                ctx.loop("x", history_size=bad)
            with pytest.raises(ValueError, match=r"^history_prune_interval must be"):
                ctx.loop("x", history_prune_interval=bad)
        with pytest.raises(TypeError):
            ctx.loop("x", state=open)
        async for it in ctx.loop("x"):
            await it.step("a", echo)
            if it.iteration == 24:
                break

    driver = drive(run)
    assert driver.iterations("x") == list(range(5, 25))  # default 20; R-LOOP-13, -14


@pytest.mark.parametrize("form", ["native", "callable"])
@pytest.mark.parametrize(
    ("interval", "size", "last", "kept"),
    [
        (3, None, 8, [6, 7, 8]),
        (2, None, 4, [3, 4]),
        (3, None, 5, [3, 4, 5]),
        (10, None, 2, [0, 1, 2]),
        (1, None, 3, [3]),
        (4, 2, 9, [8, 9]),
        (2, 1, 6, [6]),
    ],
)
def test_r_loop_11_to_14_prune(
    drive: Drive, interval: int, size: int | None, last: int, kept: list[int], form: str
) -> None:
    """The last ones stay, and no range is deleted twice. (Of an interval of 1 or 2 the original keeps one more.)"""

    async def run(ctx: Any) -> Any:
        async def body(it: Any) -> Loop | None:
            await it.step("a", echo, it.iteration)
            return Loop.stop() if it.iteration == last else None

        if form == "callable":
            await ctx.loop("x", body, history_prune_interval=interval, history_size=size)
            return
        async for it in ctx.loop("x", history_prune_interval=interval, history_size=size):
            if await body(it) is not None:
                break

    driver = drive(run)
    assert driver.iterations("x") == kept


def test_r_loop_14_no_range_is_deleted_twice() -> None:
    ranges: list[tuple[int, int]] = []

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("x", history_prune_interval=3):
            await it.step("a", echo)
            if it.iteration == 8:
                break

    driver = Driver(run)
    write = driver._write

    def spy(turn: Any) -> None:
        for prune in turn.prunes:
            first, end = (list(scope_steps(scope))[-1][1] for scope in (prune.first, prune.end))
            ranges.append((first, end))
        write(turn)

    driver._write = spy  # type: ignore[method-assign]
    driver.start()
    assert ranges == [(0, 3), (3, 6)]


def test_r_loop_05_06_07_resume_in_the_iteration(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("x", state=0):
            await it.step("a", ledger.write, it.iteration)
            await it.sleep("z", 1)
            it.loop_state += 1
            if it.iteration == 3:
                break
        return it.loop_state

    driver = drive(run)
    for _ in range(4):
        driver.crash().evict().advance(1)
    assert driver.output == 4
    assert ledger.lines == [0, 1, 2, 3]  # R-SLEEP-11
    steps = [row for row in driver.rows if row.name == "a"]
    assert len({row.scope for row in steps}) == 4
    assert {row.occurrence for row in steps} == {1}


@pytest.mark.parametrize("how", ["break", "return", "raise", "caught"])
def test_d_06_the_last_iteration_comes_out_as_it_did(drive: Drive, how: str) -> None:
    async def run(ctx: Any) -> Any:
        seen = None
        try:
            async for it in ctx.loop("x"):
                seen = await it.step("a", echo, it.iteration)
                if it.iteration == 2:
                    if how == "break":
                        break
                    if how == "return":
                        return seen
                    if how == "raise":
                        raise KeyError("out")
                    await it.step("f", fail, max_retries=0)
        except (KeyError, StepFailed) as exc:
            seen = type(exc).__name__
        await ctx.sleep("z", 1)
        return seen, it.iteration  # type: ignore[possibly-undefined]

    driver = drive(run)
    if how != "return":
        driver.crash().advance(1)
    expected = {"break": (2, 2), "return": 2, "raise": ("KeyError", 2), "caught": ("StepExhausted", 2)}
    assert driver.output == expected[how]
    assert driver.row("x").status is EntryStatus.COMPLETED


def test_r_loop_08_finished_loop_is_not_run(drive: Drive) -> None:
    entered: list[int] = []

    async def run(ctx: Any) -> Any:
        async def body(it: Any) -> Loop:
            entered.append(it.iteration)
            await it.step("a", echo)
            return Loop.stop()

        value = await ctx.loop("x", body)
        await ctx.sleep("z", 1)
        return value

    driver = drive(run)
    before = len(entered)
    driver.crash().advance(1)
    assert driver.output is None
    assert len(entered) == before


def test_r_loop_09_16_r_div_05_iteration_is_checked_at_its_end(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        async for it in ctx.loop("x"):
            await it.step("a", echo)
            await it.sleep("z", 1)

    async def new(ctx: Any) -> Any:
        async for it in ctx.loop("x"):
            await it.sleep("z", 1)

    driver = drive(old).deploy(new).advance(1)
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert "x/~0/a" in driver.set_aside.error.message


def test_r_loop_10_errors_pass_unchanged_and_are_recorded(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def body(it: Any) -> Loop:
            await it.step("a", echo)
            if it.iteration == 1:
                raise KeyError("body")
            return Loop.next()

        try:
            await ctx.loop("x", body)
        except KeyError as exc:
            await ctx.sleep("z", 1)
            return str(exc)

    driver = drive(run)
    assert driver.row("x").status is EntryStatus.FAILED
    driver.crash().advance(1)
    assert driver.output == "'body'"


def test_failed_loops_leave_nothing_in_the_position(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("outer"):
            try:
                async for inner in it.loop("inner"):
                    await inner.step("f", fail, max_retries=0)
            except StepFailed:
                pass

            async def body(inner: Any) -> Loop:
                raise KeyError

            try:
                await it.loop("callable", body)
            except KeyError:
                pass
            if it.iteration == 30:
                break
        await ctx.sleep("z", 1)

    driver = drive(run)
    assert driver.inflight.count('"s":') == 1
    assert driver.crash().advance(1).outcome.lifecycle is Lifecycle.COMPLETED


@pytest.mark.parametrize("crash", [False, True])
def test_r_loop_15_16_br_051_nested_in_an_iteration_followed_by_a_wait(drive: Drive, crash: bool) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("outer", state=0, history_prune_interval=2):
            async for inner in it.loop("inner"):
                await inner.step("i", ledger.write, (it.iteration, inner.iteration))
                if inner.iteration == 2:
                    break

            async def left(b: Any) -> Any:
                return await b.step("l", echo, 1)

            async def right(b: Any) -> Any:
                race = await b.race("r", one=left, two=lambda c: c.sleep("long", 100))
                return race.value + 1

            got = await it.join("j", left=left, right=right)
            it.loop_state += got["left"] + got["right"]
            await it.sleep("pause", 1)
            if it.iteration == 4:
                break
        return it.loop_state

    driver = drive(run)
    for _ in range(5):
        if crash:
            driver.crash()
        driver.advance(1)
    assert driver.output == 15
    assert ledger.lines == [(i, j) for i in range(5) for j in range(3)]


def test_br_052_inner_loop_goes_on_where_it_was(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        async for outer in ctx.loop("outer"):
            async for inner in outer.loop("inner"):
                await inner.step("a", ledger.write, (outer.iteration, inner.iteration))
                await inner.sleep("z", 1)
                if inner.iteration == 4:
                    break
            if outer.iteration == 2:
                break

    driver = drive(run).advance(8)
    assert ledger.lines[-1] == (1, 3)
    driver.crash().advance(7)
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED
    assert ledger.lines == [(o, i) for o in range(3) for i in range(5)]


def test_br_053_r_loop_17_rollback_leaves_the_progress(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        async for it in ctx.loop("x", history_prune_interval=2):
            await it.step("a", ledger.write, it.iteration, rollback=ledger.undo)
            if it.iteration == 4:
                raise ValueError("no")

    driver = drive(run, **ledger.handlers)
    assert driver.outcome.lifecycle is Lifecycle.FAILED
    assert '"iteration": 4' in (driver.row("x").input or "")
    assert ledger.lines == [0, 1, 2, 3, 4, *(f"undo {i}" for i in (4, 3, 2, 1, 0))]


@pytest.mark.parametrize("form", ["native", "callable"])
def test_d_18_a_lost_loop_that_catches_everything_does_not_turn_again(drive: Drive, form: str) -> None:
    turns: list[int] = []

    async def body(it: Any) -> None:
        turns.append(it.iteration)
        try:
            await it.queue.next("never", names="never")
        except BaseException:
            pass

    async def lost(b: Any) -> Any:
        if form == "callable":
            await b.loop("l", body)
        else:
            async for it in b.loop("l"):
                await body(it)

    async def run(ctx: Any) -> Any:
        return (await ctx.race("r", lost=lost, timer=lambda b: b.sleep("z", 1))).winner

    assert drive(run).advance(1).output == "timer"
    assert set(turns) == {0}


def test_d_06_loop_state_is_round_tripped_and_must_be_encodable(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        states = []
        async for it in ctx.loop("x", state=(1, {2: "b"})):
            states.append(it.loop_state)
            await it.step("a", echo)
            if it.iteration == 1:
                break
        try:
            async for it in ctx.loop("y"):
                await it.step("a", echo)
                it.loop_state = open
        except TypeError:
            states.append("refused")
        await ctx.sleep("z", 1)
        return states[-1], it.iteration

    driver = drive(run).crash().advance(1)
    assert driver.output == ("refused", 0)


def test_a_loop_that_records_nothing_is_refused(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for _ in ctx.loop("spin"):
            pass

    assert drive(run, limits=Limits(max_idle_iterations=50)).error.error.is_a(NotReplaySafe.__name__)


@pytest.mark.parametrize("form", ["native", "callable"])
def test_a_loop_that_ends_in_a_turn_of_its_own_is_stored_as_ended(drive: Drive, form: str) -> None:
    """The turn before it was long and is committed; nothing else happens in this one."""

    async def run(ctx: Any) -> Any:
        async def body(_it: Any) -> Loop:
            return Loop.stop()

        async def sends(it: Any) -> Loop:
            for number in range(10):
                await it.queue.send("own", number)
            return Loop.stop()

        async def x(b: Any) -> Any:
            if form == "callable":
                await sends(b)
                await b.loop("l", body)
            else:
                async for it in b.loop("l"):
                    await sends(it)
                    break

        await ctx.join("j", y=lambda b: b.sleep("z", 60), x=x)

    driver = drive(run, limits=Limits(max_turn_rows=10))
    commits = driver.commits
    driver.advance(60)
    assert driver.commits == commits + 1
    assert driver.row("l").status is EntryStatus.COMPLETED


@pytest.mark.parametrize("form", ["send", "sleep", "gate"])
def test_a_loop_that_never_waits_gives_others_their_turn(drive: Drive, form: str) -> None:
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("busy", history_prune_interval=5):
            if form == "send":
                await it.queue.send("own", it.iteration)
            elif form == "sleep":
                await it.sleep("z", 0)
            else:
                await it.get_version("g", 1)
            if it.iteration == 99:
                break

    driver = drive(run, limits=Limits(max_turn_rows=10))
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED
    assert driver.commits >= 10


def test_changed_end_of_a_finished_loop_is_a_divergence(drive: Drive) -> None:
    last = [1]

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("x"):
            await it.step("a", echo)
            if it.iteration == last[0]:
                break
        await ctx.sleep("z", 1)

    driver = drive(run)
    last[0] = 2
    assert "iteration 1" in driver.crash().set_aside.error.message


def test_now_uuid_and_random_are_equal_on_replay_across_loops_and_joins(drive: Drive) -> None:
    seen: list[Any] = []

    async def run(ctx: Any) -> Any:
        own: list[Any] = []

        def note(c: Any) -> None:
            own.append((c.now(), c.uuid4(), c.random.random()))

        note(ctx)
        async for it in ctx.loop("x"):
            if it.iteration == 2:
                break  # before any call: its start is the loop's turn
            await it.sleep("z", 1)
        after = ctx.now()

        async def body(it: Any) -> Loop:
            start = it.now()
            await it.sleep("z", 1)
            return Loop.stop([start, it.now()]) if it.iteration == 2 else Loop.next()

        times = await ctx.loop("c", body)

        async def branch(b: Any) -> Any:
            note(b)
            await b.sleep("z", 2)
            return b.now(), b.uuid4()

        joined = await ctx.join("j", a=branch, b=branch)
        note(ctx)
        await ctx.sleep("end", 1)
        seen.append((own, after, times, joined, ctx.now(), ctx.uuid4()))

    driver = drive(run).advance(8)
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED
    driver.outcome = None
    driver.inflight = '{"e":[]}'
    driver.crash()
    assert seen[0] == seen[1]
    own, after, times, _joined, _now, _uuid = seen[0]
    assert own[0][0] < after < times[0] < times[1] <= own[-1][0]
    assert len({number for _, number, _ in own}) == len(own)


def test_random_on_the_outer_context_is_refused_where_a_replay_may_not_pass(drive: Drive) -> None:
    async def loop(ctx: Any) -> Any:
        async for _ in ctx.loop("x"):
            ctx.uuid4()

    async def branch(ctx: Any) -> Any:
        async def inner(_b: Any) -> Any:
            return ctx.random.random()

        await ctx.race("r", a=inner)

    for run in (loop, branch):
        assert "outer context" in drive(run).error.error.message


def test_a_hundred_levels_hold_and_what_a_history_cannot_hold_is_refused_where_it_is_made(
    drive: Drive,
) -> None:
    def nest(depth: int) -> Any:
        async def run(ctx: Any) -> Any:
            async def within(ctx: Any, left: int) -> Any:
                if not left:
                    return await ctx.step("deep", echo, depth)
                outcome = await ctx.try_block("block", functools.partial(within, left=left - 1))
                return outcome.unwrap()

            return await within(ctx, depth)

        return run

    assert drive(nest(100)).output == 100
    failed = drive(nest(200))
    assert failed.outcome.lifecycle is Lifecycle.FAILED
    assert "lies 148 loops, branches and blocks deep, which is more than" in str(failed.error)


def test_a_loop_that_a_deploy_adds_at_the_end_of_a_branch_is_stored(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.join("j", a=lambda b: b.step("s", echo), z=lambda b: b.sleep("z", 5))
        await ctx.sleep("after", 1)

    async def new(ctx: Any) -> Any:
        async def longer(b: Any) -> Any:
            await b.step("s", echo)
            async for _ in b.loop("l"):
                break

        await ctx.join("j", a=longer, z=lambda b: b.sleep("z", 5))
        await ctx.sleep("after", 1)
        return "fine"

    assert drive(old).deploy(new).advance(5).crash().advance(1).output == "fine"


def test_what_a_failed_body_left_without_await_is_given_up(drive: Drive) -> None:
    async def body(it: Any) -> Any:
        it.step("left", echo)
        raise ValueError("first")

    async def run(ctx: Any) -> Any:
        with pytest.raises(ValueError, match="first"):
            await ctx.loop("l", body)
        await ctx.sleep("z", 1)
        return "on"

    driver = drive(run)
    assert driver.row("left").status is EntryStatus.CANCELLED
    assert driver.crash().advance(1).output == "on"
    assert driver.started == []


def test_r_eip_what_is_left_in_an_iteration_that_breaks_is_refused(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            it.step("left", echo)
            break
        await ctx.sleep("z", 1)

    assert "l/~0 ended while step 'left' is unfinished" in drive(run).error.error.message


def test_a_uuid_is_of_the_random_kind(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return ctx.uuid4().version

    assert drive(run).output == 4


def test_a_failed_loop_that_would_stop_well_now_is_a_divergence(drive: Drive) -> None:
    fails = [True]

    async def body(it: Any) -> Any:
        await it.step("s", echo)
        if fails[0]:
            raise ValueError("first")
        return Loop.stop(1)

    async def run(ctx: Any) -> Any:
        with pytest.raises(ValueError, match="first"):
            await ctx.loop("l", body)
        await ctx.sleep("z", 1)

    driver = drive(run)
    fails[0] = False
    assert "loop 'l' ended in iteration 0" in driver.crash().set_aside.error.message


def test_r_loop_02_a_parameter_with_a_default_keeps_it(drive: Drive) -> None:
    async def body(_it: Any, times: int = 3) -> Any:
        return Loop.stop(times)

    async def run(ctx: Any) -> Any:
        return await ctx.loop("l", body)

    assert drive(run).output == 3
