"""What whoever holds a machine is told of it: what to run, what failed, what to log; R-ERR, D-11, D-14."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from rivet_workflows import codec
from rivet_workflows.engine import BlockFailure, Limits, StepFailure, TryResult
from rivet_workflows.engine.options import StepOptions
from rivet_workflows.engine.results import Loop, Message
from rivet_workflows.exceptions import (
    ErrorInfo,
    JoinError,
    RaceError,
    RivetError,
    SerializationError,
    StepExhausted,
    StepFailed,
)
from rivet_workflows.records import Blocked, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import START, Driver, Result
from tests.engine.steps import Ledger, echo, fail

FIRST = START


def decorated(**options: Any) -> Any:
    """A step function as ``@step(...)`` leaves it."""

    def charge(_step: Any, value: Any = None) -> Any:
        return value

    charge.__rivet_step__ = options  # type: ignore[attr-defined]
    return charge


# -- steps -------------------------------------------------------------------------------------------


def test_d_11_the_order_of_a_step_says_all_that_a_worker_needs(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("s", echo, 1, kwargs={"value": [2]}, timeout=5, max_retries=2)

    driver = drive(run, auto=False)
    order = driver.order("s")
    assert {name: getattr(order, name) for name in type(order).__dataclass_fields__} == {
        "seq": 1,
        "attempt": 1,
        "name": "s",
        "function": echo,
        "args": (1,),
        "kwargs": {"value": [2]},
        "options": StepOptions(timeout=5.0, max_retries=2),
        "durable": True,
        "is_rollback": False,
        "remaining_retries": 2,
    }
    driver.finish("s", error=ValueError()).advance(1)
    again = driver.order("s")
    assert (again.attempt, again.remaining_retries, again.durable) == (2, 1, True)


def test_the_place_of_a_step_holds_without_its_number(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            await it.step("s", echo)
            await it.step("s", echo)

    driver = drive(run, auto=False)
    scope = driver.opened("s")["p"]
    assert driver.machine.place(driver.order("s").seq) == f"{scope}/s#1"
    driver.finish("s")
    assert driver.machine.place(driver.order("s").seq) == f"{scope}/s#2"


def test_an_ephemeral_step_may_run_before_its_start_is_stored(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("s", echo, ephemeral=True)

    assert drive(run, auto=False).order("s").durable is False


def test_what_must_be_stored_is_whatever_else_its_turn_records(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("paid", echo)
        await ctx.step("cheap", echo, ephemeral=True)
        async for it in ctx.loop("l"):
            await it.sleep("z", 1)
            break
        await ctx.step("cheap", echo, ephemeral=True)

    driver = drive(run, auto=False).finish("paid")
    assert [order.name for order in driver.pending] == ["cheap"]
    assert driver.names() == ["paid"]
    driver.finish("cheap").advance(1)
    assert [order.name for order in driver.pending] == ["cheap"]
    assert driver.names() == ["paid", "cheap", "l", "z"]


def test_r_step_01_a_functions_own_options_and_name(drive: Drive) -> None:
    named = decorated(name="charge-card", timeout=7, max_retries=1)

    async def run(ctx: Any) -> Any:
        await ctx.join(
            "j",
            by_function=lambda b: b.step(named, 1),
            by_name=lambda b: b.step("other", named, 2, timeout=9),
            plain=lambda b: b.step(decorated(max_retries=0)),
            bare=lambda b: b.step(echo, 3),
        )

    driver = drive(run, auto=False, step_defaults=StepOptions(max_retries=8, retry_backoff_base=2.0))
    seen = [(o.name, o.args, o.options.timeout, o.options.max_retries) for o in driver.pending]
    assert seen == [
        ("charge-card", (1,), 7.0, 1),
        ("other", (2,), 9.0, 1),
        ("charge", (), 30.0, 0),
        ("echo", (3,), 30.0, 8),
    ]
    assert {order.options.retry_backoff_base for order in driver.pending} == {2.0}


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (lambda step: 1, None, "a step needs a name: ctx.step"),
        (7, None, "a step needs a name: ctx.step"),
        ("s", None, "step 's' needs a function, not None"),
        ("s", 5, "step 's' needs a function, not 5"),
    ],
)
def test_a_step_without_name_or_function_is_refused(drive: Drive, first: Any, second: Any, text: str) -> None:
    async def run(ctx: Any) -> Any:
        with pytest.raises(TypeError, match=f"^{text}"):
            ctx.step(first, second) if second is not None else ctx.step(first)
        return await ctx.step("fine", echo, 1)

    assert drive(run).output == 1


def test_r_err_01_the_event_of_a_failed_attempt_says_what_will_happen(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("s", fail, "closed", max_retries=1)

    driver = drive(run).advance(1)
    events = [asdict(event) for event in driver.failures]
    assert [event.pop("error")["message"] for event in events] == ["closed", "closed"]
    common = {"source": "step", "step_name": "s", "max_retries": 1, "set_aside": None}
    assert events == [
        common
        | {
            "attempt": 1,
            "remaining_retries": 1,
            "will_retry": True,
            "retry_delay": 0.2,
            "retry_at": FIRST + 200_000,
        },
        common
        | {"attempt": 2, "remaining_retries": 0, "will_retry": False, "retry_delay": None, "retry_at": None},
    ]


def test_a_failure_without_a_reason_is_one_too(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("s", echo, max_retries=0)

    driver = drive(run, auto=False)
    order = driver.pending.pop()
    driver.apply(driver.machine.step_done(order.seq, 1, Result(False), driver.now))
    assert (driver.error.error.type, driver.error.error.message) == ("Exception", "the step failed")


def test_a_late_result_changes_nothing_and_is_noted(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.step("s", echo, 1)

    driver = drive(run, auto=False)
    for seq, attempt in ((1, 2), (9, 1)):
        driver.apply(driver.machine.step_done(seq, attempt, Result(True, "5", 5), driver.now))
        driver.apply(driver.machine.child_done(seq, True, "5", None, driver.now))
    assert driver.notes == [
        "late result of entry 1, attempt 2, dropped",
        "the end of the child of entry 1 came late and was dropped",
        "late result of entry 9, attempt 1, dropped",
        "the end of the child of entry 9 came late and was dropped",
    ]
    assert driver.finish("s").output == 1


def test_the_position_holds_the_end_of_long_tracebacks(drive: Drive) -> None:
    def deep(step: Any) -> None:
        raise ValueError("x" * 900) from ValueError("y" * 6_000)

    async def run(ctx: Any) -> Any:
        await ctx.step("s", deep, max_retries=1)

    driver = drive(run)
    kept = driver.opened("s")["x"][0][2]["traceback"]
    assert len(kept) == 4_001
    assert kept[0] == "…"
    assert kept.rstrip().endswith("ValueError: " + "x" * 900)


def test_a_step_that_is_started_again_and_again_is_counted_from_its_attempt(drive: Drive) -> None:
    """Five starts of *one* attempt that never report back; each attempt has its own."""

    async def run(ctx: Any) -> Any:
        await ctx.step("s", echo, max_retries=9)

    driver = drive(run, auto=False)
    for _ in range(3):
        for _ in range(4):
            driver.crash()
        assert driver.set_aside is None
        driver.finish("s", error=ValueError()).advance(10)
    for _ in range(5):
        driver.crash()
    assert driver.set_aside.reason is Blocked.POISONED
    assert driver.set_aside.error.message == (
        "step 's' (entry 1) was started 5 times and its worker never reported back: it seems to take its process "
        "down. recover() tries again"
    )
    assert driver.failures[-1].set_aside is Blocked.POISONED
    assert driver.failures[-1].error == driver.set_aside.error
    assert driver.set_aside.error.traceback == ""


# -- rollback ----------------------------------------------------------------------------------------


async def undone(ctx: Any) -> None:
    await ctx.rollback_checkpoint("cp")
    await ctx.step("a", echo, {"n": 1}, rollback=echo)
    raise ValueError("first")


def test_d_14_the_order_of_a_handler(drive: Drive) -> None:
    driver = drive(undone, auto=False, find_handler=lambda path: {"tests.engine.steps:echo": echo}[path])
    driver.finish("a")
    order = driver.order("a")
    assert {name: getattr(order, name) for name in type(order).__dataclass_fields__} == {
        "seq": 3,
        "attempt": 1,
        "name": "a",
        "function": echo,
        "args": ({"n": 1},),
        "kwargs": {},
        "options": StepOptions(),
        "durable": True,
        "is_rollback": True,
        "remaining_retries": 3,
    }


def test_d_14_events_of_a_handler_that_keeps_failing(drive: Drive) -> None:
    driver = drive(undone, auto=False, find_handler=lambda _path: echo)
    driver.finish("a")
    times = []
    while driver.set_aside is None:
        driver.finish("a", error=KeyError("closed"))
        times.append(driver.machine.next_due)
        driver.advance(2)
    assert times == [FIRST + 200_000, FIRST + 2_400_000, FIRST + 4_800_000, None]
    events = [asdict(event) for event in driver.failures if event.source == "rollback"]
    seen = [
        (e["step_name"], e["attempt"], e["max_retries"], e["remaining_retries"], e["will_retry"])
        for e in events
    ]
    assert seen == [("a", 1, 3, 3, True), ("a", 2, 3, 2, True), ("a", 3, 3, 1, True), ("a", 4, 3, 0, False)]
    error = driver.set_aside.error
    assert error.message == (
        "rollback handler 'tests.engine.steps:echo' of step 'a' (entry 3) failed: KeyError: 'closed'"
    )
    assert json.loads(error.metadata["error"])["message"] == "'closed'"
    position = json.loads(driver.inflight)["rb"]
    assert (position["a"], position["z"], position["b"]) == (
        1,
        0,
        None,
    )  # recover() gives it all its attempts


def test_d_14_a_late_report_of_a_handler_changes_nothing(drive: Drive) -> None:
    driver = drive(undone, auto=False, find_handler=lambda _path: echo)
    driver.finish("a")
    good = Result(True, "1", 1)
    for seq, attempt in ((3, 2), (9, 1)):
        driver.apply(driver.machine.step_done(seq, attempt, good, driver.now))
    assert driver.notes == [
        "late result of rollback handler of entry 3 dropped",
        "late result of rollback handler of entry 9 dropped",
    ]
    order = driver.order("a")
    driver.finish("a", error=KeyError())
    driver.apply(driver.machine.step_done(order.seq, order.attempt, good, driver.now))
    driver.apply(driver.machine.step_done(order.seq, order.attempt + 1, good, driver.now))
    assert len(driver.notes) == 4  # nothing runs while it waits for its next attempt
    assert driver.outcome is None
    assert driver.advance(1).finish("a").outcome.lifecycle is Lifecycle.FAILED


def test_d_14_a_handler_that_fails_without_a_reason(drive: Drive) -> None:
    driver = drive(undone, auto=False, find_handler=lambda _path: echo)
    driver.finish("a")
    order = driver.pending.pop()
    driver.apply(driver.machine.step_done(order.seq, 1, Result(False), driver.now))
    assert str(driver.failures[-1].error) == "Exception: the rollback handler failed"


def test_d_14_a_handler_that_is_not_there_is_told(drive: Drive) -> None:
    assert drive(undone).set_aside.error.message == (
        "rollback handler 'tests.engine.steps:echo' of step 'a' (entry 3) failed: LookupError: rollback handler "
        "'tests.engine.steps:echo' cannot be found"
    )


def test_d_14_a_run_that_is_rolled_back_looks_for_no_message(drive: Drive) -> None:
    async def run(ctx: Any) -> None:
        async def bad(b: Any) -> None:
            b.sleep("left", 1)

        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", echo, rollback=echo)
        await ctx.join("j", a=lambda b: b.queue.next("m"), b=bad)

    driver = drive(run, auto=False, find_handler=lambda _path: echo)
    driver.finish("a")
    assert driver.order("a").is_rollback
    assert not driver.machine.over
    assert driver.machine.wants_look() is None
    driver.finish("a", error=KeyError("closed")).advance(1)
    assert driver.order("a").attempt == 2
    assert [event.source for event in driver.failures] == ["workflow", "rollback"]


def test_d_14_starts_of_a_handler_are_counted_for_each_attempt_and_each_handler(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> None:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", echo, rollback=echo)
        await ctx.step("b", echo, rollback=echo)
        raise ValueError("first")

    driver = drive(run, auto=False, find_handler=lambda _path: ledger.undo)
    driver.finish("a").finish("b")
    for name in ("b", "a"):
        for _ in range(2):
            for _ in range(4):
                driver.crash()
            assert driver.set_aside is None
            driver.finish(name, error=KeyError()).advance(10)
        driver.finish(name)
    assert driver.outcome.lifecycle is Lifecycle.FAILED

    driver = drive(run, auto=False, find_handler=lambda _path: ledger.undo)
    driver.finish("a").finish("b")
    for _ in range(5):
        driver.crash()
    assert driver.pending == []
    assert driver.set_aside.error.message == (
        "rollback handler 'tests.engine.steps:echo' of step 'b' (entry 5) failed: RivetError: its worker never "
        "reported back; recover() tries again"
    )


def test_d_14_a_backoff_of_a_handler_outlives_its_worker(drive: Drive) -> None:
    driver = drive(undone, auto=False, find_handler=lambda _path: echo)
    driver.finish("a").finish("a", error=KeyError())
    commits = driver.commits
    assert driver.crash().pending == []
    assert driver.commits == commits
    assert driver.machine.next_due == FIRST + 200_000
    driver.now = FIRST + 200_000
    driver.crash()  # it is due as the actor is taken up
    assert [order.attempt for order in driver.pending] == [2]
    assert driver.finish("a").outcome.error == driver.outcome.error
    assert driver.error.error.message == "first"


def test_r_rb_02_a_missing_checkpoint_rolls_nothing_back(drive: Drive) -> None:
    """What was done under another checkpoint stays: the mistake is in the code, not in what it did."""
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        async def branch(b: Any) -> Any:
            await b.rollback_checkpoint("cp")
            await b.step("a", ledger.write, 1, rollback=ledger.undo)
            await b.sleep("z", 60)

        async def bad(b: Any) -> Any:
            await b.step("good", echo)
            await b.step("bad", echo, rollback=ledger.undo)

        await ctx.join("j", x=branch, y=bad)

    driver = drive(run, **ledger.handlers)
    assert driver.error.error.is_a("RollbackCheckpointError")
    assert driver.machine.rollback is None
    assert ledger.lines == [1]
    assert "bad" not in driver.started


# -- stored values that cannot be read ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda c: c.step("s", echo, 1), "the result of step 's'"),
        (lambda c: c.child("s", "Ship", 1), "the result of child 's'"),
        (lambda c: c.loop("s", _stops, state=3), "the result of loop 's'"),
        (lambda c: c.queue.next("s"), "a message of message 's'"),
    ],
)
def test_a_stored_value_that_cannot_be_read_is_told_by_its_place(drive: Drive, call: Any, what: str) -> None:
    async def run(ctx: Any) -> Any:
        await call(ctx)
        await ctx.sleep("z", 60)

    driver = drive(run)
    if driver.children:
        driver.child_done(1, "here")
    if driver.machine.mailbox.waits:
        driver.send("m", 1)
    row = driver.row("s")
    row.output = '{"$": "gone"}' if row.kind.label != "message" else '[[1,"m",{"$": "gone"},0,0]]'
    driver.crash()
    assert driver.set_aside.reason is Blocked.UNREADABLE
    assert driver.set_aside.error.message.startswith(f"{what} cannot be read: ")
    assert driver.failures[-1].set_aside is Blocked.UNREADABLE
    row.output = "[]" if row.kind.label == "message" else "7"
    driver.set_aside = None


def unreadable(tag: str) -> str:
    with pytest.raises(SerializationError) as caught:
        codec.loads(json.dumps({"$": tag}))
    return str(caught.value)


@pytest.mark.parametrize("ok", [True, False])
def test_an_outcome_says_when_it_was(drive: Drive, ok: bool) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.sleep("z", 5)
        if not ok:
            raise ValueError("no")

    driver = drive(run).advance(5)
    assert driver.outcome.at == driver.now


async def _stops(it: Any, state: int) -> Loop:
    return Loop.stop(await it.step("x", echo, state))


def test_the_state_of_a_loop_and_the_input_that_cannot_be_read(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("l", state={"a": 1}):
            await it.sleep("z", 60)

    driver = drive(run)
    position = json.loads(driver.inflight)
    position["e"][0]["v"] = '{"$": "gone"}'
    driver.control(json.dumps(position))
    assert driver.set_aside.error.message == f"the state of loop 'l' cannot be read: {unreadable('gone')}"

    async def reads(ctx: Any) -> Any:
        return ctx.input

    driver = drive(reads, start=False)
    driver.input = '{"$": "gone"}'
    driver.start()
    assert driver.set_aside.error.message.startswith("the actor's input cannot be read: ")
    driver.set_aside = None
    driver.input = None
    driver.crash()
    assert driver.outcome.output == "null"


# -- results as values -------------------------------------------------------------------------------

ERROR = ErrorInfo("shop.Closed", "closed")
STEP = StepFailure("exhausted", "charge", 2, ERROR)


@pytest.mark.parametrize(
    ("failure", "cls", "text"),
    [
        (STEP, StepExhausted, 'step "charge" failed (exhausted) after 2 attempts'),
        (BlockFailure("step", "charge", ERROR, STEP), StepExhausted, 'step "charge" failed (exhausted)'),
        (BlockFailure("join", "j", ERROR), JoinError, "closed"),
        (BlockFailure("race", "r", ERROR), RaceError, "closed"),
        (BlockFailure("block", "b", ERROR), RivetError, "Closed: closed"),
    ],
)
def test_unwrap_raises_what_the_plain_call_would_have(failure: Any, cls: type[Exception], text: str) -> None:
    with pytest.raises(cls) as caught:
        TryResult(False, None, failure).unwrap()
    assert type(caught.value) is cls
    assert caught.value.message.startswith(text)  # type: ignore[attr-defined]
    if isinstance(caught.value, StepFailed):
        found = caught.value
        assert (found.step_name, found.kind, found.attempts, found.error) == ("charge", "exhausted", 2, ERROR)
    elif cls is RivetError:
        assert caught.value.error is ERROR  # type: ignore[attr-defined]


def test_unwrap_of_what_went_well() -> None:
    assert TryResult(True, 5).unwrap() == 5
    assert (TryResult(True).value, TryResult(True).failure) == (None, None)
    assert BlockFailure("join", "j", ERROR).step is None


def test_what_a_loops_body_gives() -> None:
    assert (Loop.next(1), Loop.next()) == (Loop(False, 1), Loop(False, None))
    assert (Loop.stop(1), Loop.stop()) == (Loop(True, 1), Loop(True, None))


def test_a_message_is_completed_where_it_was_received() -> None:
    from datetime import UTC, datetime

    message = Message(4, "orders", {"n": 1}, datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(RivetError) as caught:
        message.complete()
    assert str(caught.value) == (
        "message 4 of queue 'orders' cannot be completed here: in a step use step.complete(message, response); in run "
        "keep the message that queue.next returned"
    )


def test_failures_as_data_say_the_same_as_the_exceptions(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        step = await ctx.try_step("s", fail, "closed", max_retries=1)
        join = await ctx.try_block("t", lambda b: b.join("j", x=lambda c: c.step("f", fail, max_retries=0)))
        race = await ctx.try_block("u", lambda b: b.race("r", x=lambda c: c.step("f", fail, max_retries=0)))
        inner = await ctx.try_block("v", lambda b: b.step("f", fail, "inner", max_retries=0))
        return [step.failure, join.failure, race.failure, inner.failure]

    driver = drive(run).advance(1)
    seen: list[Any] = []

    async def looks(ctx: Any) -> Any:
        seen.append(await run(ctx))

    driver.outcome = None
    driver.deploy(looks)
    step, join, race, inner = seen[-1]
    assert (step.kind, step.step_name, step.attempts, str(step.error)) == (
        "exhausted",
        "s",
        2,
        "ValueError: closed",
    )
    assert [(f.source, f.name, f.step) for f in (join, race)] == [("join", "j", None), ("race", "r", None)]
    assert join.error.message == "join 'j': failed branches: x: StepExhausted: " + (
        'step "f" failed (exhausted) after 1 attempt: ValueError: no'
    )
    assert race.error.message.startswith("race 'r': all branches failed: x: StepExhausted: ")
    assert (inner.source, inner.name, inner.step.step_name, str(inner.error)) == (
        "step",
        "f",
        "f",
        "ValueError: inner",
    )


def test_try_step_gives_the_function_its_keywords_too(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return (await ctx.try_step("s", echo, kwargs={"value": 5})).value

    assert drive(run).output == 5


@pytest.mark.parametrize(
    ("catch", "text"),
    [
        ("exhausted", "catch must be a list of kinds, not 'exhausted'"),
        (
            ["nothing"],
            "catch: 'nothing' is neither one of critical, timeout, exhausted, conflict, rollback nor a class",
        ),
        ([KeyError], "catch: <class 'KeyError'> is neither one of critical"),
        ([StepFailed("x")], "catch: StepFailed"),
    ],
)
def test_what_cannot_be_caught_is_refused_at_the_call(drive: Drive, catch: Any, text: str) -> None:
    async def run(ctx: Any) -> Any:
        with pytest.raises(TypeError) as caught:
            ctx.try_step("s", echo, catch=catch)
        return str(caught.value)

    assert drive(run).output.startswith(text)


def test_what_is_caught_is_chosen_by_kind_or_class(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        got = [
            (await ctx.try_step("a", fail, max_retries=0, catch=["exhausted"])).ok,
            (await ctx.try_step("b", fail, max_retries=0, catch=[StepExhausted])).ok,
            (await ctx.try_block("c", lambda b: b.step("f", fail, max_retries=0), catch=[StepFailed])).ok,
        ]
        for name, catch in (("d", ["timeout", "critical"]), ("e", [JoinError]), ("f", [])):
            with pytest.raises(StepFailed):
                await ctx.try_step(name, fail, max_retries=0, catch=catch)
        with pytest.raises(StepFailed):
            await ctx.try_block("g", lambda b: b.step("f", fail, max_retries=0), catch=["join"])
        return got

    assert drive(run).output == [False, False, False]


# -- what is held by a driver ------------------------------------------------------------------------


def test_a_value_that_cannot_be_stored_is_told_by_its_place(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        texts = []
        for call in (
            lambda: ctx.step("s", echo, object()),
            lambda: ctx.child("c", "Ship", 1, input=object()),
            lambda: ctx.queue.send("m", object()),
            lambda: ctx.loop("l", state=object()),
        ):
            with pytest.raises(SerializationError) as caught:
                call()
            texts.append(str(caught.value))
        return texts

    step, child, send, loop = drive(run).output
    assert "arguments of step 's'" in step
    assert "the input of child 'c'" in child
    assert "message to queue 'm'" in send
    assert "state of loop 'l'" in loop


def test_while_the_log_is_silent_every_method_is(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        ctx.log.warning("%s", 1, extra={"a": 1})
        return ctx.log.anything("at all")

    assert drive(run).output is None
    driver: Driver = drive(run, log=None)
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED


def test_a_turn_records_as_much_as_it_may_and_goes_on_at_once() -> None:
    async def run(ctx: Any) -> Any:
        for number in range(7):
            await ctx.queue.send("own", number)

    machine = Driver(run, limits=Limits(max_turn_rows=3)).load()
    assert len(machine.start(START).rows) == 3
    assert not machine.at_rest
    assert machine.next_due == START + 1
    assert len(machine.time(START + 1).rows) == 3


def test_the_log_speaks_from_the_first_new_call_on(drive: Drive) -> None:
    class Log(list[str]):
        info = list.append

    log = Log()

    async def old(ctx: Any) -> Any:
        await ctx.sleep("z", 60)

    async def new(ctx: Any) -> Any:
        ctx.log.info("before")
        await ctx.get_version("v", 2)
        ctx.log.info("after")
        await ctx.sleep("z", 60)

    drive(old).deploy(new, log=log)
    assert log == ["after"]


def test_the_position_that_is_kept_may_be_another_than_that_which_was_loaded() -> None:
    async def run(ctx: Any) -> Any:
        await ctx.sleep("z", 60)

    machine = Driver(run).load()
    machine.start(START)
    machine.keep_stored('{"e":[],"given":1}')
    assert (machine.inflight(), machine.next_seq) == ('{"e":[],"given":1}', 1)
