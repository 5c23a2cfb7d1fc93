"""What run may not do, how it is stopped, how it ends: R-EIP, R-RUN, R-ERR, D-09."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from rivet_workflows.engine import Limits
from rivet_workflows.exceptions import EntryInProgress, NotReplaySafe
from rivet_workflows.records import Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo, wait

# -- entry in progress, foreign awaits, sticky stopping ----------------------------------------------


@pytest.mark.parametrize(
    "second",
    ["step", "sleep", "loop", "join", "try_block", "rollback_checkpoint", "removed", "get_version", "send"],
)
def test_r_eip_01_a_call_while_another_is_unfinished(drive: Drive, second: str) -> None:
    async def run(ctx: Any) -> Any:
        ctx.step("left", echo)
        {
            "step": lambda: ctx.step("x", echo),
            "sleep": lambda: ctx.sleep("x", 1),
            "loop": lambda: ctx.loop("x"),
            "join": lambda: ctx.join("x"),
            "try_block": lambda: ctx.try_block("x", wait()),
            "rollback_checkpoint": lambda: ctx.rollback_checkpoint("x"),
            "removed": lambda: ctx.removed("x", "step"),
            "get_version": lambda: ctx.get_version("x", 1),
            "send": lambda: ctx.queue.send("x"),
        }[second]()

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert "'x' was called while step 'left' on the same context is unfinished" in driver.error.error.message
    assert "await missing" in driver.error.error.message
    assert driver.started == []


@pytest.mark.parametrize("call", ["rollback_checkpoint", "removed"])
def test_r_eip_01_calls_that_never_wait_are_awaited_too(drive: Drive, call: str) -> None:
    async def run(ctx: Any) -> Any:
        ctx.removed("cp", "step") if call == "removed" else ctx.rollback_checkpoint("cp")
        await ctx.step("x", echo)

    text = f"was called while {call} 'cp' on the same context is unfinished"
    assert text in drive(run).error.error.message


def test_r_eip_left_at_the_end(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        ctx.step("left", echo)

    assert "'left'" in drive(run).error.error.message


def test_r_eip_the_outer_context_in_a_native_loop(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for _ in ctx.loop("l"):
            await ctx.step("x", echo)

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert driver.started == []


def test_r_eip_a_context_whose_scope_is_over(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            await it.step("x", echo)
            break
        await ctx.sleep("z", 0)
        await it.step("y", echo)

    assert "is over" in drive(run).error.error.message


def test_r_eip_awaited_twice(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        call = ctx.step("x", echo)
        await call
        await call

    assert "awaited twice" in drive(run).error.error.message


@pytest.mark.parametrize("form", ["future", "sleep", "gather", "foreign call"])
def test_foreign_awaits_are_refused(drive: Drive, form: str) -> None:
    async def run(ctx: Any) -> Any:
        try:
            if form == "future":
                loop = asyncio.new_event_loop()
                try:
                    await loop.create_future()
                finally:
                    loop.close()
            elif form == "sleep":
                await asyncio.sleep(0)
            elif form == "gather":
                await asyncio.gather(ctx.step("a", echo))
            else:

                async def branch(_b: Any) -> Any:
                    await call

                call = ctx.step("a", echo)
                await ctx.join("j", a=branch)
        except RuntimeError:
            raise

    error = drive(run).error.error
    assert (
        error.is_a(NotReplaySafe.__name__) or "event loop" in error.message or error.is_a("EntryInProgress")
    )


def test_asyncio_in_run_is_named_with_the_mend(drive: Drive) -> None:
    async def sleeps(ctx: Any) -> Any:
        await asyncio.sleep(1)

    async def raises(ctx: Any) -> Any:
        raise RuntimeError("closed")

    error = drive(sleeps).error.error
    assert error.is_a(NotReplaySafe.__name__)
    assert error.message.startswith(
        "run used asyncio (sleep, timeout, create_task, gather, …), which a replay cannot"
    )
    error = drive(raises).error.error
    assert (error.type, error.message) == ("RuntimeError", "closed")


@pytest.mark.parametrize("name", ["state", "vars", "schedule", "cron", "client", "broadcast", "destroy"])
def test_what_belongs_into_steps_is_refused(drive: Drive, name: str) -> None:
    async def run(ctx: Any) -> Any:
        try:
            getattr(ctx, name)()
        except Exception:
            return "never"

    error = drive(run).error.error
    assert error.is_a(NotReplaySafe.__name__)
    call = f"{name}()" if name in ("client", "broadcast", "destroy") else name
    assert error.message.startswith(f"ctx.{call} is not available in run, ")


@pytest.mark.usefixtures("resisting")
@pytest.mark.parametrize(
    "call",
    [
        "step",
        "sleep",
        "next",
        "send",
        "loop",
        "join",
        "rollback_checkpoint",
        "removed",
        "get_version",
        "child",
    ],
)
def test_d_09_stopping_is_sticky_for_every_call(drive: Drive, call: str) -> None:
    """BR-085: code that swallows everything, for ever, does no harm and does not hang."""
    met: list[int] = []

    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo)
        while True:
            try:
                met.append(1)
                if len(met) == 1:
                    await ctx.sleep("z", 5)
                await {
                    "step": lambda: ctx.step("x", echo),
                    "sleep": lambda: ctx.sleep("x", 1),
                    "next": lambda: ctx.queue.next("x"),
                    "send": lambda: ctx.queue.send("x"),
                    "loop": lambda: ctx.loop("x", wait()),
                    "join": lambda: ctx.join("x", a=wait()),
                    "rollback_checkpoint": lambda: ctx.rollback_checkpoint("x"),
                    "removed": lambda: ctx.removed("x", "step"),
                    "get_version": lambda: ctx.get_version("x", 1),
                    "child": lambda: ctx.child("x", "y", "k"),
                }[call]()
            except BaseException:
                pass

    driver = Driver(run).start()
    before = (driver.inflight, driver.names())
    driver.machine.dispose()
    assert (driver.machine.inflight(), driver.names()) == before
    assert 20 < len(met) < 200


@pytest.mark.usefixtures("resisting")
def test_d_09_a_message_cannot_be_completed_by_a_stopped_run() -> None:
    met: list[int] = []

    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        while True:
            try:
                await ctx.sleep("z", 5)
            except BaseException:
                met.append(1)
                try:
                    await message.complete("no")
                except BaseException:
                    pass

    driver = Driver(run).start()
    driver.send("q", 1)
    driver.machine.dispose()
    assert driver.machine.held
    assert len(met) < 200


def test_d_09_the_outcome_is_the_engines(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            ctx.step("left", echo)
            await ctx.step("other", echo)
        except BaseException:
            return "I am fine"

    assert drive(run).error.error.is_a(EntryInProgress.__name__)


def test_d_09_a_refused_run_that_returns_all_the_same_has_not_succeeded(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            ctx.state
        except BaseException:
            return "I am fine"

    assert drive(run).error.error.is_a(NotReplaySafe.__name__)


def test_d_09_what_one_branch_is_refused_stops_the_others_at_once(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.join("j", a=lambda _b: ctx.step("outer", echo), b=lambda b: b.queue.send("q", 1))

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert driver.queue == []


def test_d_09_finally_with_a_step_does_no_harm(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        try:
            await ctx.sleep("z", 5)
        finally:
            await ctx.step("release", ledger.write, 1)

    driver = drive(run).evict().crash().advance(5)
    assert ledger.lines == [1]
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED


# -- runs --------------------------------------------------------------------------------------------


def test_r_run_04_input_is_the_stored_one(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        ctx.input["changed"] = True
        return ctx.input, ctx.key, ctx.name, ctx.actor_id.int

    assert drive(run, input={"a": (1,)}).output == ({"a": (1,)}, "k", "test", 7)


def test_r_run_05_a_finished_run_replays_to_the_same(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return [await ctx.step("a", echo, i) for i in range(3)]

    driver = drive(run)
    first, started = driver.output, list(driver.started)
    driver.outcome = None
    assert driver.crash().output == first
    assert driver.started == started


def test_r_run_11_r_err_04_failure_is_a_record(drive: Drive) -> None:
    class Shop(Exception):
        def __init__(self) -> None:
            super().__init__("closed")
            self.code, self.thing = 7, object()

    async def run(ctx: Any) -> Any:
        raise Shop

    driver = drive(run)
    error = driver.error.error
    assert (error.message, dict(error.metadata)) == ("closed", {"code": 7})
    assert error.type.endswith("Shop")
    assert "Shop" in error.traceback
    assert [(event.source, event.error) for event in driver.failures] == [("workflow", error)]


def test_a_call_left_by_a_failed_run_stays_as_it_was_for_recover(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        call = ctx.sleep("z", 60)
        if mended:
            await call
            return "fine"
        raise ValueError("first")

    mended: list[bool] = []
    driver = drive(run)
    assert driver.error.error.message == "first"
    assert driver.names() == []
    mended.append(True)
    driver.control(driver.inflight)
    assert driver.advance(60).output == "fine"


def test_a_result_that_cannot_be_stored_fails_the_run(drive: Drive) -> None:
    async def lock(ctx: Any) -> Any:
        return open

    async def big(ctx: Any) -> Any:
        return "x" * 500

    assert "result of run" in drive(lock).error.error.message
    assert "502 bytes" in drive(big, limits=Limits(max_value=400)).error.error.message


def test_run_must_be_async(drive: Drive) -> None:
    def plain(_ctx: Any) -> Any:
        return 1

    text = "must be an async function (async def), it returned int"
    for run in (plain, functools.partial(plain)):
        name = getattr(run, "__qualname__", repr(run))
        assert drive(run).error.error.message == f"{name} {text}"


def test_d_09_a_stopped_run_is_told_at_its_next_call(drive: Drive) -> None:
    told = []

    async def run(ctx: Any) -> Any:
        ctx.step("left", echo)
        for _ in range(2):
            try:
                ctx.sleep("x", 1)
            except BaseException as exc:
                told.append(type(exc).__name__)

    assert drive(run).error.error.is_a(EntryInProgress.__name__)
    assert told == ["Stopped", "Stopped"]


@pytest.mark.usefixtures("resisting")
def test_d_09_a_run_that_resists_is_dropped() -> None:
    async def run(ctx: Any) -> Any:
        ctx.step("left", echo)
        while True:
            try:
                await ctx.sleep("x", 1)
            except BaseException:
                pass

    driver = Driver(run).start()
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert any("catches BaseException and was dropped" in note for note in driver.notes)


def test_d_09_what_was_stopped_is_unwound_once(drive: Drive) -> None:
    told = []

    async def run(ctx: Any) -> Any:
        async def waits(b: Any) -> Any:
            try:
                await b.sleep("z", 60)
            except BaseException as exc:
                told.append(type(exc).__name__)
                raise

        async def bad(b: Any) -> Any:
            b.sleep("left", 1)
            await b.sleep("next", 1)

        await ctx.join("j", a=waits, b=bad)

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert told == ["Stopped"]
    assert driver.notes == []


def test_the_log_is_silent_on_replay(drive: Drive) -> None:
    class Log(list):
        def info(self, text: str) -> None:
            self.append(text)

    log = Log()

    async def run(ctx: Any) -> Any:
        ctx.log.info("one")
        await ctx.step("a", echo)
        ctx.log.info("two")
        await ctx.sleep("z", 1)
        ctx.log.info("three")

    drive(run, log=log).evict().crash().advance(1)
    assert log == ["one", "two", "three"]
