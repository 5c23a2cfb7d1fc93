"""Where calls lie, and what a place may hold: R-LOC, R-EIP, R-DIV, R-REM; R-RUN-06."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.engine import Limits, Loop
from rivet_workflows.exceptions import EntryInProgress
from rivet_workflows.records import Blocked, EntryStatus, Kind, Lifecycle, scope_steps
from tests.conformance.conftest import Drive
from tests.engine.steps import Ledger, echo

#: The calls that open a scope, each with a body that is given the context of one.
OPENERS: dict[str, Any] = {
    "iteration": lambda ctx, body: ctx.loop("x", lambda it: stopping(it, body)),
    "join": lambda ctx, body: ctx.join("x", a=body),
    "race": lambda ctx, body: ctx.race("x", a=body),
    "map": lambda ctx, body: ctx.map("x", lambda b, _item: body(b), [1]),
    "try": lambda ctx, body: ctx.try_block("x", body),
}


async def stopping(it: Any, body: Any) -> Loop:
    await body(it)
    return Loop.stop()


def step(name: str) -> Any:
    return lambda c: c.step(name, echo)


# -- scopes ------------------------------------------------------------------------------------------


def test_r_loc_01_a_place_is_the_way_from_the_root_with_the_numbers_of_iterations(drive: Drive) -> None:
    async def run(ctx: Any) -> None:
        async for it in ctx.loop("outer"):
            async for inner in it.loop("inner"):
                await inner.join("j", a=step("s"), b=step("s"))
                if inner.iteration == 1:
                    break
            if it.iteration == 1:
                break

    driver = drive(run)
    names = {row.seq: row.name for row in driver.rows}
    places = {
        tuple((names[seq], index) for seq, index, _within in scope_steps(row.scope))
        for row in driver.rows
        if row.name == "s"
    }
    assert places == {
        (("outer", i), ("inner", k), ("j", branch)) for i in range(2) for k in range(2) for branch in range(2)
    }


@pytest.mark.parametrize("form", OPENERS)
def test_r_loc_06_each_body_is_a_scope_of_its_own_and_a_step_is_none(drive: Drive, form: str) -> None:
    async def run(ctx: Any) -> None:
        await ctx.step("s", echo)
        await OPENERS[form](ctx, step("s"))
        await ctx.step("s", echo)

    driver = drive(run)
    found = sorted((row.scope == "", row.occurrence) for row in driver.rows if row.name == "s")
    assert found == [(False, 1), (True, 1), (True, 2)]


@pytest.mark.parametrize("form", OPENERS)
def test_r_eip_02_calls_within_another_are_on_their_own_context(drive: Drive, form: str) -> None:
    async def run(ctx: Any) -> None:
        async def body(c: Any) -> None:
            await c.step("one", echo)
            await c.sleep("two", 1)

        await OPENERS[form](ctx, body)

    driver = drive(run).advance(1)
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED


@pytest.mark.parametrize("form", OPENERS)
def test_r_step_18_a_step_on_the_outer_context_meanwhile_is_refused(drive: Drive, form: str) -> None:
    async def run(ctx: Any) -> None:
        await OPENERS[form](ctx, lambda _c: ctx.step("s", echo))

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert driver.started == []


# -- what was not met --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", OPENERS)
def test_r_div_05_a_scope_that_ends_well_has_met_all_that_is_recorded_of_it(drive: Drive, form: str) -> None:
    async def old(ctx: Any) -> None:
        async def body(c: Any) -> None:
            await c.step("left out", echo)
            await c.sleep("z", 1)

        await OPENERS[form](ctx, body)

    async def new(ctx: Any) -> None:
        await OPENERS[form](ctx, lambda c: c.sleep("z", 1))

    driver = drive(old).deploy(new).advance(1)
    assert driver.set_aside.reason is Blocked.DIVERGED
    text = driver.set_aside.error.message
    assert "left out (step, entry 2) exists in the history and was not met. Code may have changed" in text
    assert 'ctx.removed("left out", "step")' in text


def test_r_div_10_a_divergence_cannot_be_caught_and_is_told_once(drive: Drive) -> None:
    async def old(ctx: Any) -> None:
        await ctx.try_block("t", lambda b: b.sleep("z", 1))

    async def new(ctx: Any) -> str:
        try:
            await ctx.try_block(
                "t", lambda b: b.try_step("z", echo), catch=["step", "join", "race", "rollback"]
            )
        except BaseException:
            pass
        return "handled"

    driver = drive(old).deploy(new)
    assert driver.outcome is None
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert [(event.source, event.set_aside) for event in driver.failures] == [("workflow", Blocked.DIVERGED)]


# -- removed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind.label for kind in Kind])
@pytest.mark.parametrize("how", ["call", "class"])
def test_r_rem_01_an_entry_of_any_kind_can_be_declared_removed(drive: Drive, kind: str, how: str) -> None:
    async def body(c: Any, *_: Any) -> Loop:
        await c.sleep("in", 0)
        return Loop.stop()

    async def old(ctx: Any) -> None:
        await {
            "step": lambda: ctx.step("old", echo),
            "loop": lambda: ctx.loop("old", body),
            "sleep": lambda: ctx.sleep("old", 0),
            "message": lambda: ctx.queue.next_batch("old", timeout=0),
            "rollback_checkpoint": lambda: ctx.rollback_checkpoint("old"),
            "join": lambda: ctx.join("old", a=body),
            "race": lambda: ctx.race("old", a=body),
            "removed": lambda: ctx.removed("old", "step"),
            "version_check": lambda: ctx.get_version("old", 1),
            "send": lambda: ctx.queue.send("old"),
            "map": lambda: ctx.map("old", body, [1]),
            "child": lambda: ctx.child("old", "Ship", 1),
            "try": lambda: ctx.try_block("old", body),
        }[kind]()
        await ctx.sleep("z", 1)

    async def new(ctx: Any) -> str:
        if how == "call":
            await ctx.removed("old", kind)
        await ctx.sleep("z", 1)
        await ctx.step("new", echo)
        return "new"

    async def dropped(ctx: Any) -> None:
        await ctx.step("new", echo)

    driver = drive(old)
    if kind == "child":
        driver.child_done(next(iter(driver.children)))
    if kind != "removed":
        driver.deploy(dropped)
        assert f'say ctx.removed("old", "{kind}")' in driver.set_aside.error.message
    options = {} if how == "call" else {"removed": {"old": kind}}
    assert driver.deploy(new, **options).advance(1).output == "new"


def test_r_rem_02_what_never_was_there_leaves_a_placeholder(drive: Drive) -> None:
    async def run(ctx: Any) -> None:
        await ctx.removed("old", "sleep")
        await ctx.sleep("z", 1)

    driver = drive(run)
    placeholder = driver.row("old")
    assert (placeholder.kind.label, placeholder.status, placeholder.input) == (
        "removed",
        EntryStatus.REMOVED,
        '"sleep"',
    )
    assert driver.crash().advance(1).names() == ["old", "z"]


# -- limits -------------------------------------------------------------------------------------------


def test_a_name_is_as_long_as_a_history_can_hold_and_a_longer_one_is_refused_at_its_call(
    drive: Drive,
) -> None:
    def named(length: int) -> Any:
        async def run(ctx: Any) -> Any:
            return await ctx.step("n" * length, echo, 1)

        return run

    assert drive(named(255)).output == 1
    assert "longer than 255 characters" in str(drive(named(256)).error)


def test_a_result_is_as_large_as_the_limit_and_no_larger(drive: Drive) -> None:
    def returning(length: int) -> Any:
        async def run(ctx: Any) -> Any:
            return "x" * length

        return run

    limits = Limits(max_value=20)  # with its quotes
    assert drive(returning(18), limits=limits).output == "x" * 18
    assert "21 bytes, more than 20" in str(drive(returning(19), limits=limits).error)


def test_iterations_without_a_call_are_counted_since_the_last_that_had_one(drive: Drive) -> None:
    async def run(ctx: Any) -> int:
        async for it in ctx.loop("l"):
            if it.iteration % 4 == 3:
                await it.step("s", echo)
            if it.iteration == 20:
                break
        return 1

    assert drive(run, limits=Limits(max_idle_iterations=3)).output == 1
    assert "turned 3 times" in str(drive(run, limits=Limits(max_idle_iterations=2)).error)


# -- once more ---------------------------------------------------------------------------------------


def test_r_run_06_a_failed_run_that_runs_again_fails_again_and_runs_nothing(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> None:
        await ctx.step("a", ledger.write, 1)
        await ctx.step("bad", lambda _step: ledger.undo_badly(_step, 2), max_retries=1)

    driver = drive(run).advance(1)
    first, told, lines = driver.outcome, len(driver.failures), list(ledger.lines)
    driver.outcome = None
    driver.crash()
    assert (driver.outcome.lifecycle, driver.outcome.error) == (Lifecycle.FAILED, first.error)
    assert ledger.lines == lines
    assert len(driver.failures) == told
