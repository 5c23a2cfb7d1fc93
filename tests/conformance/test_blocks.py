"""Try blocks, and children: R-TRY, D-07; BR-088."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.exceptions import (
    ChildFailed,
    CriticalError,
    JoinError,
    QueueTimeout,
    RollbackError,
    StepFailed,
    failure_record,
)
from rivet_workflows.records import Blocked, EntryStatus, Kind, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import echo, fail, step

# -- try ---------------------------------------------------------------------------------------------


def test_r_try_01_02_05(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        good = await ctx.try_step("a", echo, 1)
        bad = await ctx.try_step("b", fail, "text", max_retries=1)
        await ctx.sleep("z", 1)
        with pytest.raises(StepFailed):
            bad.unwrap()
        f = bad.failure
        return good.ok, good.value, good.unwrap(), bad.ok, f.kind, f.step_name, f.attempts, f.error.message

    driver = drive(run)
    assert driver.outcome is None
    driver.advance(1).crash().advance(2)
    assert driver.output == (True, 1, 1, False, "exhausted", "b", 2, "text")


@pytest.mark.parametrize("catch", [None, ["rollback"], [RollbackError], ["critical"]])
@pytest.mark.parametrize("error", [CriticalError("c"), RollbackError("r")])
def test_r_try_03_04_kinds(drive: Drive, catch: Any, error: Exception) -> None:
    async def run(ctx: Any) -> Any:
        options = {} if catch is None else {"catch": catch}
        return (await ctx.try_step("a", echo, **options)).failure.kind

    driver = drive(run, start=False)
    driver.fail_next["a"] = [error]
    driver.start()
    kind = "rollback" if isinstance(error, RollbackError) else "critical"
    caught = kind == "critical" if catch is None else catch[0] in (kind, type(error))
    if caught:
        assert driver.output == kind
    else:
        assert driver.error.kind == kind


@pytest.mark.parametrize("catch", [["exhaust"], [int], "step", [None]])
def test_an_unknown_kind_to_catch_is_refused(drive: Drive, catch: Any) -> None:
    async def run(ctx: Any) -> Any:
        with pytest.raises(TypeError, match="catch"):
            ctx.try_step("a", echo, catch=catch)

    assert drive(run).outcome.lifecycle is Lifecycle.COMPLETED


@pytest.mark.parametrize("how", ["step", "join", "race", "block", "step-rollback", "plain", "ok"])
def test_r_try_06_to_11(drive: Drive, how: str) -> None:
    async def body(b: Any) -> Any:
        bad = lambda c: c.step("f", fail, max_retries=0)  # noqa: E731
        await b.step("first", echo)
        if how == "step":
            await bad(b)
        elif how == "join":
            await b.join("j", a=bad)  # R-TRY-09
        elif how == "race":
            await b.race("r", a=bad)
        elif how == "block":
            raise RollbackError("direct")
        elif how == "step-rollback":
            await b.step("rb", echo)
        elif how == "plain":
            raise KeyError("plain")
        return "fine"

    async def run(ctx: Any) -> Any:
        catch = ["step", "join", "race", "rollback"]
        got = await ctx.try_block("block", body, catch=catch)
        await ctx.sleep("z", 1)
        f = got.failure
        return (got.value,) if got.ok else (f.source, f.name, f.step and f.step.kind)

    driver = drive(run, start=False)
    driver.fail_next["rb"] = [RollbackError("from a step")]
    driver.start()
    if how == "plain":
        assert driver.error.error.type == "KeyError"
        return
    driver.crash().advance(1)
    assert (
        driver.output
        == {
            "step": ("step", "f", "exhausted"),
            "join": ("join", "j", None),
            "race": ("race", "r", None),
            "block": ("block", "block", None),
            "step-rollback": ("step", "rb", "rollback"),
            "ok": ("fine",),
        }[how]
    )


@pytest.mark.parametrize("direct", [True, False])
def test_r_try_08_rollback_is_opt_in(drive: Drive, direct: bool) -> None:
    async def body(b: Any) -> Any:
        if direct:
            raise RollbackError("direct")
        await b.step("rb", echo)

    async def run(ctx: Any) -> Any:
        await ctx.try_block("block", body)

    driver = drive(run, start=False)
    driver.fail_next["rb"] = [RollbackError("from a step")]
    assert driver.start().error.kind == "rollback"


def test_r_try_12_r_div_05_the_body_runs_again_and_is_checked(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.try_block("t", step("a", 1))
        await ctx.sleep("z", 1)

    async def new(ctx: Any) -> Any:
        async def nothing(_b: Any) -> None: ...

        await ctx.try_block("t", nothing)
        await ctx.sleep("z", 1)

    driver = drive(old).deploy(new)
    assert "t/a" in driver.set_aside.error.message


def test_d_07_nothing_new_is_made_in_a_block_that_has_ended(drive: Drive) -> None:
    more = [False]

    async def run(ctx: Any) -> Any:
        async def body(c: Any) -> Any:
            await c.step("in", echo)
            if more[0]:
                await c.step("more", echo)

        await ctx.join("j", a=lambda b: b.try_block("t", body), b=lambda b: b.sleep("z", 60))

    driver = drive(run)
    more[0] = True
    assert "inside something that the history holds as finished" in driver.crash().set_aside.error.message


def test_r_try_14_no_workflow_event(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.try_step("a", fail, max_retries=0)

    assert [event.source for event in drive(run).failures] == ["step"]


# -- child -------------------------------------------------------------------------------------------


def test_child_is_ordered_and_its_result_replayed(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        got = await ctx.child("ship", "shipping", ("order", 7), input={"a": (1,)})
        await ctx.sleep("z", 1)
        return got

    driver = drive(run)
    (order,) = driver.children.values()
    assert (order.actor, order.key, order.input) == ("shipping", '["order", 7]', driver_dumps({"a": (1,)}))
    driver.crash()
    assert driver.children.keys() == {order.seq}  # ordered again until its end is told
    driver.child_done(order.seq, (1, 2))
    assert driver.crash().advance(1).output == (1, 2)
    assert driver.row("ship").kind is Kind.CHILD
    assert driver.children == {}


def driver_dumps(value: Any) -> str:
    from rivet_workflows import codec

    return codec.dumps(value)


def test_child_failure_is_a_record(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.child("ship", "shipping", "k")
        except ChildFailed as exc:
            await ctx.sleep("z", 1)
            return exc.error and (exc.error.type, exc.error.message)

    driver = drive(run)
    driver.child_done(1, error=failure_record(KeyError("gone")))
    assert driver.crash().advance(1).output == ("KeyError", "'gone'")
    assert driver.row("ship").status is EntryStatus.FAILED


@pytest.mark.parametrize(
    "error", [JoinError("join 'j': failed branches: a", name="j"), QueueTimeout("message 'm' timed out")]
)
def test_child_that_failed_by_an_error_of_ours_says_which(drive: Drive, error: Exception) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.child("ship", "shipping", "k")
        except ChildFailed as exc:
            await ctx.sleep("z", 1)
            return str(exc), exc.error and exc.error.is_a(type(error).__name__)

    driver = drive(run)
    driver.child_done(1, error=failure_record(error))
    text = f"child 'ship' (shipping [\"k\"]) failed: {type(error).__name__}: {error}"
    assert driver.crash().advance(1).output == (text, True)


def test_child_that_ends_without_a_value_or_a_reason(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        nothing = await ctx.child("good", "shipping", "k")
        try:
            await ctx.child("bad", "shipping", "l")
        except ChildFailed as exc:
            await ctx.sleep("z", 1)
            return nothing, str(exc.error)

    driver = drive(run)
    for ok in (True, False):
        seq, _ = driver.children.popitem()
        driver.apply(driver.machine.child_done(seq, ok, None, None, driver.now))
    assert driver.crash().advance(1).output == (None, "Exception")


def test_child_in_a_lost_race_and_late_end(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        got = await ctx.race("r", c=lambda b: b.child("c", "x", "k"), t=lambda b: b.sleep("z", 1))
        await ctx.sleep("after", 10)
        return got.winner

    driver = drive(run)
    (seq,) = driver.children
    driver.advance(1)
    driver.children[seq] = None
    driver.child_done(seq, 1)
    assert driver.advance(10).output == "t"


def test_br_088_waiting_for_a_child_is_not_a_result(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.child("c", "x", "k")

    driver = drive(run).crash().evict()
    assert driver.children[1].input is None
    assert driver.child_done(1, "real").output == "real"


def test_child_that_is_another_now(drive: Drive) -> None:
    key = ["k"]

    async def run(ctx: Any) -> Any:
        await ctx.child("c", "x", key[0])

    driver = drive(run)
    key[0] = "other"
    assert driver.crash().set_aside.reason is Blocked.DIVERGED


def test_br_064_a_result_is_delivered_once() -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.step("a", echo, 1)

    driver = Driver(run, auto=False).start()
    order = driver.order("a")
    driver.finish(order)
    turn = driver.machine.step_done(order.seq, order.attempt, None, driver.now)  # type: ignore[arg-type]
    assert not turn.rows
    assert turn.outcome is None


@pytest.mark.parametrize("items", [{"a", "b"}, frozenset("ab")])
def test_a_set_is_refused_by_map_as_its_order_is_another_after_a_restart(drive: Drive, items: Any) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.map("m", lambda b, item: b.step("s", echo, item), items)

    assert "give it a list, like sorted(items)" in str(drive(run).error)
