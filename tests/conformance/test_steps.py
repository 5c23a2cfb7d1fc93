"""Steps: R-STEP, R-RECOVER's ground, R-ERR's step events, D-02, D-10, D-11, D-13's share in the engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rivet_workflows.engine import Limits
from rivet_workflows.exceptions import (
    CriticalError,
    ErrorInfo,
    PayloadTooLarge,
    RollbackCheckpointError,
    RollbackError,
    SerializationError,
    StateConflict,
    StepExhausted,
    StepFailed,
    StepTimeout,
)
from rivet_workflows.records import Blocked, EntryStatus, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import START, Driver, Result
from tests.engine.steps import Ledger, echo, fail


def test_r_step_01_defaults() -> None:
    async def run(ctx: Any) -> None:
        await ctx.step("a", echo)

    driver = Driver(run, auto=False).start()
    options = driver.order("a").options
    assert (options.max_retries, options.retry_backoff_base, options.retry_backoff_max) == (3, 0.1, 30)
    assert (options.timeout, options.retry_on_timeout, options.ephemeral, options.rollback) == (
        30,
        False,
        False,
        None,
    )


def test_r_step_01_forms(drive: Drive) -> None:
    def named(_step: Any, a: int, b: int = 0) -> int:
        return a + b

    async def run(ctx: Any) -> Any:
        one = await ctx.step(named, 1)
        two = await ctx.step("other", named, 1, kwargs={"b": 5}, max_retries=0)
        return one, two

    driver = drive(run)
    assert driver.output == (1, 6)
    assert driver.names() == ["named", "other"]


def test_r_step_01_unknown_option_and_nameless_function(drive: Drive) -> None:
    async def run(ctx: Any) -> list[str]:
        said = []
        for make in (
            lambda: ctx.step("a", echo, amount=3),
            lambda: ctx.step(lambda _s: 1),
            lambda: ctx.step("a", None),
            lambda: ctx.step("a", echo, timeout=0),
            lambda: ctx.step("", echo),
        ):
            try:
                await make()
            except (TypeError, ValueError) as exc:
                said.append(str(exc))
        return said

    said = drive(run).output
    assert "kwargs=" in said[0]
    assert "needs a name" in said[1]
    assert "needs a function" in said[2]
    assert "None switches it off" in said[3]
    assert len(said) == 5


def test_r_step_02_first_execution(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.step("a", echo, 5)

    driver = drive(run)
    row = driver.row("a")
    assert (driver.output, row.output, row.status) == (5, "5", EntryStatus.COMPLETED)
    assert row.done_seq == 2


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}])
def test_r_step_03_completed_step_is_replayed_whatever_it_returned(drive: Drive, value: Any) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        got = await ctx.step("a", ledger.write, value)
        await ctx.sleep("z", 1)
        return got

    driver = drive(run).evict().crash().advance(1)
    assert driver.output == value
    assert ledger.lines == [value]


def test_r_step_04_attempts(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", fail)

    driver = drive(run).advance(10)
    assert driver.started == ["a"] * 4
    driver = drive(run, step_defaults=_options(max_retries=0))
    assert driver.started == ["a"]


def _options(**given: Any) -> Any:
    from rivet_workflows.engine.options import DEFAULTS

    return DEFAULTS.merged(given)


def test_r_step_05_backoff_is_exact_and_from_the_start_of_the_attempt(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", fail)

    driver = drive(run)
    dues = []
    while driver.machine.next_due is not None and driver.outcome is None:
        dues.append(driver.machine.next_due - driver.now)
        driver.advance((driver.machine.next_due - driver.now) / 1e6)
    assert dues == [200_000, 400_000, 800_000]


def test_r_step_05_slow_attempt(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", fail)

    driver = drive(run, auto=False)
    driver.now += 150_000
    driver.finish("a")
    assert driver.machine.next_due == START + 200_000


def test_r_step_06_backoff_survives_and_is_no_failure_of_the_workflow(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            return await ctx.step("a", echo, 1)
        except StepFailed:
            return "seen"

    driver = drive(run, start=False)
    driver.fail_next["a"] = [ValueError("once")]
    driver.start()
    assert driver.outcome is None
    assert driver.opened("a")["b"] == START + 200_000
    driver.crash().advance(0.2)
    assert driver.output == 1
    assert driver.row("a").error is None  # R-STEP-15: a success clears it; the attempts are kept
    assert "once" in (driver.row("a").attempts or "")


def test_r_step_07_reached_before_its_time_uses_no_attempt(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", fail)

    driver = drive(run).evict().crash().evict()
    assert driver.started == ["a"]
    assert driver.machine.next_due == START + 200_000


def test_r_step_08_09_exhausted_and_again(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.step("a", fail, "text: with colon")
        except StepExhausted as exc:
            info: Any = exc.error
            await ctx.sleep("z", 1)
            return exc.kind, exc.step_name, exc.attempts, info.message, info.is_a("ValueError")

    driver = drive(run).advance(10)
    assert driver.output == ("exhausted", "a", 4, "text: with colon", True)
    assert len(driver.failures) == 4


@pytest.mark.parametrize(
    ("error", "kind", "cls"),
    [
        (CriticalError("stop: now"), "critical", CriticalError),
        (RollbackError("undo"), "rollback", RollbackError),
    ],
)
def test_r_step_10_terminal_at_once(drive: Drive, error: Exception, kind: str, cls: type) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.step("a", echo)
        except StepFailed as exc:
            info: Any = exc.error
            await ctx.sleep("z", 1)
            return type(exc).__name__, exc.kind, exc.attempts, info.message

    driver = drive(run, start=False)
    driver.fail_next["a"] = [error]
    driver.start().crash().advance(60)  # R-STEP-21: it does not run again, ever
    assert driver.output == (cls.__name__, kind, 1, str(error))
    assert driver.started == ["a"]


def test_d_10_no_retry(drive: Drive) -> None:
    class Declined(Exception):
        pass

    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo, no_retry=(Declined,))

    driver = drive(run, start=False)
    driver.fail_next["a"] = [Declined("card")]
    driver.start()
    assert (driver.error.kind, driver.started) == ("critical", ["a"])


@pytest.mark.parametrize("error", [CriticalError, SerializationError, PayloadTooLarge])
def test_what_another_attempt_would_meet_again_ends_the_step(drive: Drive, error: type[Exception]) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo)

    driver = drive(run, start=False)
    driver.fail_next["a"] = [error("no")]
    driver.start()
    assert (driver.error.kind, driver.started) == ("critical", ["a"])


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_r_step_12_timeout_is_terminal(drive: Drive, retries: int) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.step("a", echo, max_retries=retries)
        except StepTimeout as exc:
            await ctx.sleep("z", 1)
            return exc.kind, exc.attempts

    driver = drive(run, auto=False)
    driver.finish("a", error=TimeoutError("30 s"), timed_out=True)
    driver.crash().advance(1)
    assert driver.output == ("timeout", 1)


def test_r_step_13_r_step_22_retry_on_timeout(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.step("a", echo, retry_on_timeout=True, max_retries=1)
        except StepExhausted as exc:
            await ctx.sleep("z", 1)
            return exc.kind, exc.attempts

    driver = drive(run, auto=False)
    driver.finish("a", error=TimeoutError(), timed_out=True).advance(1)
    driver.finish("a", error=TimeoutError(), timed_out=True).crash().advance(1)
    assert driver.output == ("timeout", 2)


def test_d_13_conflicts_used_up(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo, max_retries=0)

    driver = drive(run, auto=False)
    driver.finish("a", error=StateConflict("changed"), conflict=True)
    assert isinstance(driver.error, StateConflict)
    assert driver.error.kind == "conflict"


def test_r_step_14_late_result_is_dropped(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo, retry_on_timeout=True)

    driver = drive(run, auto=False)
    late = driver.order("a")
    driver.finish("a", error=TimeoutError(), timed_out=True)
    driver.pending.append(late)
    driver.finish(late)
    assert driver.outcome is None
    assert "dropped" in driver.notes[-1]


def test_r_step_16_ephemeral_steps_have_no_commit_of_their_own() -> None:
    async def run(ctx: Any) -> Any:
        a = await ctx.step("a", echo, 1, ephemeral=True)
        b = await ctx.step("b", echo, 2, ephemeral=True)
        return a + b + await ctx.step("c", echo, 3)

    driver = Driver(run).start()
    assert driver.output == 6
    assert driver.commits == 2  # c's start with the rows of a and b; c's end with the run's
    assert driver.names() == ["a", "b", "c"]


def test_r_step_16_lost_ephemeral_step_runs_again(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.step("a", ledger.write, 1, ephemeral=True)
        await ctx.step("b", ledger.write, 2, ephemeral=True)
        return await ctx.step("c", ledger.write, 3)

    driver = drive(run, auto=False)
    driver.finish("a")
    driver.crash()
    driver.auto = True
    assert driver.settle().output == 3
    assert ledger.lines == [1, 1, 2, 3]


def test_r_step_17_and_d_11_starts_are_durable_and_counted(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.step("a", echo, 1)

    driver = drive(run, auto=False)
    for _ in range(4):
        assert driver.opened("a")["z"] >= 1
        driver.crash()
    assert not driver.over
    driver.crash()
    assert driver.set_aside.reason is Blocked.POISONED
    assert "5 times" in driver.set_aside.error.message


def test_d_11_the_start_is_committed_before_the_function_is_called() -> None:
    seen: list[str] = []

    async def run(ctx: Any) -> Any:
        await ctx.step("a", lambda _s: seen.append(driver.opened("a")["n"]))
        await ctx.step("b", lambda _s: seen.append(driver.opened("b")["n"]))

    driver = Driver(run)
    driver.start()
    assert seen == ["a", "b"]
    assert driver.commits == 3  # start of a; end of a with start of b; end of b with the run's


def test_r_step_19_rollback_without_checkpoint(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        try:
            await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        except Exception as exc:  # never raised into run
            return exc

    driver = drive(run)
    assert driver.outcome.lifecycle is Lifecycle.FAILED
    assert driver.error.error.is_a(RollbackCheckpointError.__name__)
    assert ledger.lines == []


def test_r_step_20_r_div_02_another_kind_at_the_place(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.sleep("a", 1)

    async def new(ctx: Any) -> Any:
        await ctx.step("a", echo)

    driver = drive(old).deploy(new)
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert "recorded as a sleep" in driver.set_aside.error.message


def test_r_step_25_the_context_is_left_out_on_request(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.step("a", lambda x: x + 1, 1, context=False)

    assert drive(run).output == 2


def test_d_02_arguments_are_copies_as_a_replay_would_give_them(drive: Drive) -> None:
    given: list[Any] = []

    def change(_step: Any, order: Any) -> None:
        given.append(order)
        order["lines"].append(2)

    async def run(ctx: Any) -> Any:
        order = {"lines": [1]}
        await ctx.step("a", change, order)
        return order

    assert drive(run).output == {"lines": [1]}
    assert given == [{"lines": [1, 2]}]


def test_d_02_unencodable_argument_is_refused_at_the_call_and_leaves_no_trace(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.step("a", echo, open)
        except TypeError as exc:
            await ctx.step("a", echo, "fine")
            return str(exc)

    driver = drive(run)
    assert "step 'a'" in driver.output
    assert driver.names() == ["a"]


def test_d_02_other_arguments_under_a_repeated_name(drive: Drive) -> None:
    items = ["x", "y", "z"]

    async def run(ctx: Any) -> Any:
        for item in items:
            await ctx.step("charge", echo, item)
        await ctx.sleep("z", 1)

    driver = drive(run)
    items[:] = ["y", "x", "z"]
    driver.crash()
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert "charge" in driver.set_aside.error.message
    items[:] = ["x", "y", "z"]
    assert driver.deploy(run).advance(1).outcome.lifecycle is Lifecycle.COMPLETED


def test_d_02_other_arguments_when_only_the_first_of_the_name_is_recorded(drive: Drive) -> None:
    """A set in another order after a crash: x was charged, and must not be taken for y."""
    items = ["x", "y"]
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        for item in items:
            await ctx.step("charge", ledger.write, item)

    driver = drive(run, auto=False)
    driver.finish("charge")
    driver.before_commit = lambda _n: False
    driver.inflight, driver.next_seq = '{"e":[]}', 3
    items[:] = ["y", "x"]
    driver.before_commit = lambda _n: True
    driver.crash()
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert ledger.lines == ["x"]


def test_d_02_other_arguments_under_a_unique_name(drive: Drive) -> None:
    value = [1]

    async def run(ctx: Any) -> Any:
        got = await ctx.step("a", echo, value[0])
        await ctx.sleep("z", 1)
        return got

    driver = drive(run)
    value[0] = 2
    driver.crash().advance(1)
    assert driver.output == 1
    assert any("recorded result is used" in note for note in driver.notes)
    value[0] = 1
    driver = drive(run, strict_args=True)
    value[0] = 2
    assert driver.crash().set_aside.reason is Blocked.DIVERGED


def test_d_02_other_arguments_of_a_step_that_is_under_way(drive: Drive) -> None:
    given = [1]

    async def run(ctx: Any) -> Any:
        return await ctx.step("a", echo, given[0])

    driver = drive(run, auto=False, strict_args=True)
    given[0] = 2
    assert driver.crash().set_aside.reason is Blocked.DIVERGED
    assert driver.pending == []


def test_d_02_the_first_of_several_that_are_recorded_with_other_arguments(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.step("a", echo, 1)
        await ctx.step("a", echo, 2)
        await ctx.sleep("z", 1)

    async def new(ctx: Any) -> Any:
        await ctx.step("a", echo, 2)
        await ctx.sleep("z", 1)

    assert "paired by their order" in drive(old).deploy(new).set_aside.error.message


def test_d_10_the_first_time_as_on_replay(drive: Drive) -> None:
    """BR-097: whatever is raised in a step becomes a record; classes are not imported to raise it."""

    class Odd(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.a, self.b, self.lock = a, b, object()

        def __str__(self) -> str:
            raise RuntimeError("broken")

    async def run(ctx: Any) -> Any:
        try:
            await ctx.step("a", echo, max_retries=0)
        except StepFailed as exc:
            info: Any = exc.error
            await ctx.sleep("z", 1)
            return (
                type(exc).__name__,
                exc.__cause__,
                info.type.rsplit(".", 1)[-1],
                dict(info.metadata),
            )

    driver = drive(run, start=False)
    driver.fail_next["a"] = [Odd(1, 2)]
    driver.start().crash().advance(1)
    assert driver.output == ("StepExhausted", None, "Odd", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), RecursionError("deep"), ExceptionGroup("g", [ValueError("x")]), asyncio.CancelledError()],
    ids=lambda e: type(e).__name__,
)
def test_br_097_any_exception_is_recorded(drive: Drive, error: BaseException) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.step("a", echo, max_retries=0)
        except StepExhausted as exc:
            info: Any = exc.error
            return info.type

    driver = drive(run, auto=False)
    order = driver.order("a")
    driver.pending.remove(order)
    from tests.engine.driver import Result

    result = Result(False, error=ErrorInfo.from_exception(error))
    driver.apply(driver.machine.step_done(order.seq, 1, result, driver.now))
    assert driver.output == type(error).__name__ or driver.output.endswith("CancelledError")


def test_r_err_01_02_events(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", fail)

    driver = drive(run).advance(10)
    events = driver.failures
    assert [(e.source, e.attempt, e.remaining_retries, e.will_retry) for e in events] == [
        ("step", 1, 3, True),
        ("step", 2, 2, True),
        ("step", 3, 1, True),
        ("step", 4, 0, False),
    ]
    assert [e.retry_delay for e in events] == [0.2, 0.4, 0.8, None]
    assert all(e.error.is_a("ValueError") for e in events)  # R-ERR-04: no workflow event


def test_br_067_fan_out_with_retries(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def one(branch: Any, item: int) -> Any:
            return await branch.step("work", echo, item)

        return await ctx.map("all", one, range(50))

    driver = drive(run, start=False)
    driver.fail_next["work"] = [ValueError(str(i)) for i in range(100)]
    driver.start().advance(5)
    assert driver.output == list(range(50))
    assert len(driver.started) == 150


def test_br_076_backoff_cannot_overflow() -> None:
    options = _options(retry_backoff_base=2, retry_backoff_max=3600, max_retries=2**40)
    assert options.backoff(5_000) == 3_600_000_000
    assert options.backoff(2**31 + 1) == 3_600_000_000


def test_attempts_keep_the_first_and_the_last(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", fail, max_retries=60)

    driver = drive(run, limits=Limits(attempts_shown=8)).advance(10_000)
    import json

    attempts = json.loads(driver.row("a").attempts or "[]")
    assert len(attempts) == 8
    assert attempts[0][0] == START
    assert attempts[-1][0] > attempts[-2][0]


def test_what_is_kept_of_the_attempts_of_a_step_that_went_well_in_the_end(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("at-once", echo)
        await ctx.step("again", echo)
        await ctx.step("later", echo)

    def attempts(name: str) -> Any:
        kept = json.loads(driver.row(name).attempts or "[]")
        return [(error and error["message"], reruns) for _began, _ended, error, *reruns in kept]

    driver = drive(run, auto=False).finish("at-once")
    assert attempts("at-once") == []
    assert driver.row("at-once").input is None  # it was given nothing
    driver.finish("again", error=ValueError("closed")).advance(1).finish("again")
    assert attempts("again") == [("closed", []), (None, [])]
    order = driver.order("later")
    driver.machine.open[order.seq]["y"] = 3  # reruns of this attempt so far, of a worker that let go
    driver.finish(order, error=ValueError("closed"), reruns=1)
    assert "y" not in driver.opened("later")
    order = driver.advance(1).pending.pop()
    driver.apply(driver.machine.step_done(order.seq, 2, Result(True, "1", 1, reruns=2), driver.now))
    assert attempts("later") == [("closed", [1]), (None, [2])]


def test_reruns_of_the_only_attempt_are_kept(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo)

    driver = drive(run, auto=False)
    order = driver.pending.pop()
    driver.apply(driver.machine.step_done(order.seq, 1, Result(True, "1", 1, reruns=4), driver.now))
    assert [kept[2:] for kept in json.loads(driver.row("a").attempts or "")] == [[None, 4]]
