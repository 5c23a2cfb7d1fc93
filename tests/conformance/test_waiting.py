"""Sleeps and messages: R-SLEEP, R-QUEUE, R-SEND, D-15 to D-17; BR-036 to BR-040, BR-048, BR-057, BR-071 to BR-075."""

from __future__ import annotations

import datetime as dt
import gc
import json
import random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rivet_workflows import codec
from rivet_workflows.engine import Limits
from rivet_workflows.engine.mailbox import Seen
from rivet_workflows.exceptions import MessageNotCompleted, QueueTimeout
from rivet_workflows.records import Blocked, EntryStatus, Lifecycle, MessageRow
from tests.conformance.conftest import Drive
from tests.engine.driver import START, Driver
from tests.engine.steps import Ledger, echo

# -- sleeps ------------------------------------------------------------------------------------------


def test_r_sleep_01_02_deadline_is_stored_before_waiting(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.sleep("z", 60)
        await ctx.sleep_until("y", ctx.now() + dt.timedelta(seconds=1))

    driver = drive(run)
    assert driver.opened("z")["d"] == START + 60_000_000
    driver.advance(60)
    assert driver.opened("y")["d"] == START + 61_000_000
    assert driver.advance(1).outcome.lifecycle is Lifecycle.COMPLETED


def test_r_sleep_03_br_057_first_deadline_stays(drive: Drive) -> None:
    length = [10]

    async def run(ctx: Any) -> Any:
        await ctx.sleep("z", length[0])

    driver = drive(run)
    length[0] = 1000
    driver.crash()
    assert driver.machine.next_due == START + 10_000_000


@pytest.mark.parametrize("form", ["zero", "past"])
def test_r_sleep_04_now_or_past(drive: Drive, form: str) -> None:
    async def run(ctx: Any) -> Any:
        await (ctx.sleep("z", 0) if form == "zero" else ctx.sleep_until("z", 1))
        return "on"

    driver = drive(run)
    assert driver.output == "on"
    assert driver.row("z").status is EntryStatus.COMPLETED


@pytest.mark.parametrize(
    "bad", [-1, float("nan"), float("inf"), float("-inf"), True, "5", None, dt.timedelta(-1)]
)
def test_br_073_bad_durations_are_refused_at_the_call(drive: Drive, bad: Any) -> None:
    async def run(ctx: Any) -> Any:
        with pytest.raises((TypeError, ValueError)):
            ctx.sleep("z", bad)
        if bad is not None:
            with pytest.raises((TypeError, ValueError)):
                ctx.queue.next("m", timeout=bad)
            with pytest.raises((TypeError, ValueError)):
                ctx.step("s", echo, timeout=bad)
        return "ok"

    assert drive(run).output == "ok"


def test_br_075_sleep_until_wants_a_zone(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        with pytest.raises(ValueError, match="naive"):
            ctx.sleep_until("z", dt.datetime(2030, 1, 1))
        for bad in (float("nan"), True, "2030"):
            with pytest.raises((TypeError, ValueError)):
                ctx.sleep_until("z", bad)
        zone = ZoneInfo("America/New_York")
        await ctx.join(
            "j",
            utc=lambda b: b.sleep_until("z", dt.datetime(2030, 11, 3, 5, 30, tzinfo=dt.UTC)),
            fold0=lambda b: b.sleep_until("z", dt.datetime(2030, 11, 3, 1, 30, tzinfo=zone)),
            fold1=lambda b: b.sleep_until("z", dt.datetime(2030, 11, 3, 1, 30, fold=1, tzinfo=zone)),
        )

    import json

    dues = sorted(rec["d"] for rec in json.loads(drive(run).inflight)["e"] if rec["n"] == "z")
    assert [due - dues[0] for due in dues] == [0, 0, 3_600_000_000]


@pytest.mark.parametrize("seconds", [0.0005, 59, 60, 61, 3600, 86_401, 25 * 86_400, 400 * 86_400, 0.2, 1e-9])
def test_br_071_072_durations_are_exact(drive: Drive, seconds: float) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.sleep("z", seconds)

    driver = drive(run)
    due = driver.machine.next_due
    assert due == START + max(1, round(seconds * 1_000_000))
    assert driver.advance((due - START - 1) / 1e6).outcome is None  # never early
    assert driver.jump(1).outcome is not None


def test_br_071_far_dates_and_too_long_ones(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        for bad in (dt.timedelta.max, 1e30):
            with pytest.raises(ValueError, match="longer"):
                ctx.sleep("z", bad)
        await ctx.sleep_until("a", dt.datetime(2038, 1, 20, tzinfo=dt.UTC))
        await ctx.sleep_until("b", dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC))

    driver = drive(run)
    assert driver.machine.next_due == 2_147_558_400_000_000
    driver.advance(60 * 366 * 86_400)
    assert driver.machine.next_due == 253_402_300_799_999_999


def test_r_sleep_07_08_completed_returns_and_waking_early_shortens_nothing(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.sleep("a", 1)
        await ctx.sleep("b", 10)

    driver = drive(run).advance(1).crash().ring().advance(5).crash()
    assert driver.machine.next_due == START + 11_000_000
    assert driver.outcome is None
    assert driver.advance(5).outcome.lifecycle is Lifecycle.COMPLETED
    assert driver.machine.next_due is None  # R-SLEEP-09


def test_the_time_of_a_workflow_never_goes_back(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo)
        first = ctx.now()
        await ctx.step("b", echo)
        return ctx.now() >= first

    driver = drive(run, auto=False)
    driver.now += 50
    driver.finish("a")
    driver.now -= 1_000_000
    driver.finish("b")
    assert driver.output is True


# -- messages ----------------------------------------------------------------------------------------


def test_r_queue_01_02_03_message_and_arguments(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        for bad in (0, -1, True, "2"):
            with pytest.raises(ValueError, match="count"):
                ctx.queue.next_batch("m", count=bad)
        message = await ctx.queue.next("m", names=["b", "a", "b"])
        return message.id, message.name, message.body, message.created_at

    driver = drive(run)
    assert driver.machine.wants_look() is None
    driver.send("c", "not this")
    number = driver.send("a", {"x": (1,)})
    from rivet_workflows.engine.calls import instant

    assert driver.output == (number, "a", {"x": (1,)}, instant(START))
    assert [m.queue for m in driver.queue] == ["c"]


def test_r_queue_04_05_what_is_there_now_in_order_of_arrival(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        first = await ctx.queue.next_batch("m", names=("a", "b"), count=3)
        second = await ctx.queue.next_batch("m2", names=("a", "b"), count=30)
        return [m.body for m in first], [m.body for m in second]

    driver = drive(run, start=False)
    for i, queue in enumerate("abcabab"):
        driver.drop(queue, i)
    assert driver.start().output == ([0, 1, 3], [4, 5, 6])


def test_r_queue_05_an_earlier_look_at_one_queue_does_not_put_it_first(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        one = await ctx.queue.next("one", names="a")
        two = await ctx.queue.next("two", names=("a", "b"))
        return one.body, two.body

    driver = drive(run, start=False)
    for queue, body in (("a", 1), ("b", 2), ("a", 3)):
        driver.drop(queue, body)
    assert driver.start().output == (1, 2)


def test_r_queue_06_07_08_waiting(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return [m.body for m in await ctx.queue.next_batch("m", names="a", timeout=5)]

    driver = drive(run)
    assert driver.opened("m") | {"z": 0} == driver.opened("m") | {"z": 0, "q": ["a"], "d": START + 5_000_000}
    driver.advance(2).crash()
    assert driver.machine.next_due == START + 5_000_000  # restarts do not extend it
    driver.send("a", 1)
    assert driver.output == [1]


def test_r_queue_09_br_039_timeout_is_recorded_once(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        got = await ctx.queue.next_batch("m", timeout=5)
        await ctx.sleep("z", 10)
        return got

    driver = drive(run).advance(5)
    driver.send("a", "late")
    assert driver.crash().advance(10).output == []
    assert len(driver.queue) == 1


def test_r_queue_11_a_message_before_the_deadline_ends_the_wait_in_one_commit(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        got = await ctx.queue.next_batch("m", timeout=5)
        await ctx.sleep("z", 60)
        return [message.body for message in got]

    driver = drive(run)
    commits = driver.commits
    driver.send("a", "in time")
    assert driver.commits == commits + 1
    assert driver.queue == []
    assert driver.names() == ["m"]
    assert driver.machine.next_due == START + 60_000_000  # the deadline is none any more
    assert driver.advance(60).output == ["in time"]


def test_r_queue_10_next_raises(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.queue.next("m", timeout=5)
        except QueueTimeout as exc:
            await ctx.sleep("z", 1)
            return str(exc)

    driver = drive(run).advance(5).crash().advance(1)
    assert "next_batch" in driver.output
    assert issubclass(QueueTimeout, TimeoutError)


def test_d_15_r_queue_09b_poll(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        one = await ctx.queue.next_batch("m", timeout=0)
        two = await ctx.queue.next_batch("m2", timeout=0)
        return [m.body for m in one], two

    driver = drive(run, start=False)
    driver.drop("a", 1)
    assert driver.start().output == ([1], [])


def test_d_15_a_poll_finds_what_the_run_has_just_sent(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        before = await ctx.queue.next_batch("before", timeout=0)
        await ctx.queue.send("own", 1)
        return before, [m.body for m in await ctx.queue.next_batch("after", timeout=0)]

    assert drive(run).output == ([], [1])


def test_d_15_a_message_sent_by_the_deadline_wins_when_waking_late(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return [m.body for m in await ctx.queue.next_batch("m", timeout=10, count=5)]

    driver = drive(run)
    driver.now += 10_000_000
    driver.drop("a", "in time")
    driver.now += 1
    driver.drop("a", "too late")
    assert driver.jump(3600).output == ["in time"]
    assert len(driver.queue) == 1


def test_d_15_messages_after_the_deadline_cannot_hold_up_the_timeout(drive: Drive) -> None:
    """More of them than one look shows."""

    async def run(ctx: Any) -> Any:
        return await ctx.queue.next_batch("m", names="a", timeout=10)

    driver = drive(run)
    driver.now += 11_000_000
    for i in range(50):
        driver.drop("a", i)
    assert driver.jump(10).output == []


def test_d_15_messages_after_the_deadline_of_one_wait_hold_up_no_other(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.map(
            "all", lambda b, name: b.queue.next_batch("m", names=name, timeout=1), ["a", "b"]
        )

    driver = drive(run)
    driver.now += 2_000_000
    for number in range(30):
        driver.drop("a", number)
    assert driver.settle().output == [[], []]


def test_d_15_a_race_with_a_timer_is_decided_by_time_not_by_waking(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        outcome = await ctx.race("r", message=lambda b: b.queue.next("m"), timer=lambda b: b.sleep("z", 10))
        return outcome.winner

    driver = drive(run)
    driver.now += 9_000_000
    driver.drop("a")
    assert driver.jump(100).output == "message"
    driver = drive(run)
    driver.now += 11_000_000
    driver.drop("a")
    assert driver.jump(100).output == "timer"
    driver = drive(run)
    driver.now += 9_000_000
    driver.drop("a")
    driver.now += 100_000_000
    assert driver.crash().output == "message"


def test_d_15_a_message_that_was_sent_at_the_deadline_goes_before_it(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return (await ctx.race("r", z=lambda b: b.sleep("z", 10), m=lambda b: b.queue.next("m"))).winner

    driver = drive(run)
    driver.now += 10_000_000
    driver.drop("q")
    driver.now += 1
    assert driver.settle().output == "m"


def test_d_15_of_several_waits_that_of_the_earliest_message_goes_on_first(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        order = []

        async def wait(b: Any, name: str) -> None:
            order.append((await b.queue.next("m", names=name)).name)

        await ctx.map("all", wait, ["a", "b", "c"])
        return order

    driver = drive(run)
    for name in ("b", "c", "a"):
        driver.drop(name)
        driver.now += 1
    assert driver.ring().settle().output == ["b", "c", "a"]


def test_d_15_a_deadline_waits_until_all_queues_are_known_up_to_it() -> None:
    async def run(ctx: Any) -> Any:
        outcome = await ctx.race(
            "r",
            z=lambda b: b.sleep("z", 10),
            a=lambda b: b.queue.next("m", names="a"),
            b=lambda b: b.queue.next("m", names="b"),
        )
        return outcome.winner

    early, sent, late = (START + seconds * 1_000_000 for seconds in (5, 7, 20))
    machine = Driver(run).load()
    machine.start(START)
    machine.messages([], ("a",), True, early, early)
    machine.messages([], ("b",), True, late, late)
    assert machine.time(late).outcome is None
    outcome = machine.messages([MessageRow(1, "a", "1", sent)], ("a",), True, late, late).outcome
    assert outcome is not None
    assert outcome.output == '"a"'


def test_looks_may_show_all_that_was_taken_since_the_last_commit() -> None:
    async def run(ctx: Any) -> Any:
        return [(await ctx.queue.next("m", names=name)).body for name in ("a", "b", "a")]

    one, two, three = (MessageRow(n, queue, str(n), START) for n, queue in enumerate("aba", 1))
    machine = Driver(run).load()
    machine.start(START)
    machine.messages([one], ("a",), True, START, START)
    machine.messages([two], ("b",), True, START, START)
    outcome = machine.messages([one, three], ("a",), True, START, START).outcome
    assert outcome is not None
    assert outcome.output == "[1,2,3]"


def test_an_estimate_that_is_ahead_makes_no_timer_fire_early(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.queue.next_batch("m", timeout=10)

    driver = drive(run, auto=False)
    machine = driver.machine
    driver.apply(machine.time(START + 10_000_000))
    assert driver.machine.wants_look() is not None
    driver.apply(driver.machine.messages([], None, True, START + 9_999_000, START + 10_000_000))
    assert driver.outcome is None
    assert driver.machine.next_due == START + 10_000_000
    assert driver.machine.wants_look() is None
    driver.apply(machine.time(START + 10_000_000))
    assert driver.machine.wants_look() is not None
    driver.apply(driver.machine.messages([], None, True, START + 10_000_000, START + 10_000_000))
    assert driver.output == []


def test_sleeps_that_the_estimate_took_for_over_are_waited_for_again(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def sleeps(b: Any, seconds: int) -> Any:
            await b.sleep("z", seconds)
            order.append(seconds)

        async def all_of_them(b: Any) -> Any:
            await b.map("m", sleeps, [11, 9, 13, 10, 12])

        await ctx.race("r", sleeps=all_of_them, message=lambda b: b.queue.next("m"))

    order: list[int] = []
    driver = Driver(run, auto=False).start()
    machine = driver.machine
    driver.apply(machine.time(START + 13_000_000))
    assert machine.wants_look() is not None
    driver.apply(machine.messages([], None, True, START + 9_999_999, START + 13_000_000))
    assert order == [9]
    assert machine.next_due == START + 10_000_000
    driver.now = START + 13_000_000
    driver.jump(0)
    assert order == [9, 10, 11, 12, 13]
    assert driver.outcome is not None


def test_a_look_that_still_shows_what_was_just_taken_gives_it_no_second_time(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return [(await ctx.queue.next("m")).body for _ in range(2)]

    driver = drive(run)
    machine = driver.machine
    first, second = MessageRow(1, "m", "1", START), MessageRow(2, "m", "2", START)
    assert machine.messages([first], None, False, START, START).takes == [1]
    assert machine.wants_look() is not None
    turn = machine.messages([first, second], None, True, START, START)  # the first is not committed yet
    assert turn.takes == [2]
    assert turn.outcome is not None


def test_waits_for_several_queues_are_answered_by_one_look() -> None:
    async def run(ctx: Any) -> Any:
        async def more(b: Any) -> Any:
            await b.step("s", echo)
            await b.join(
                "k", **{name: (lambda c, name=name: c.queue.next(name, names=name)) for name in "cd"}
            )

        await ctx.join("j", a=lambda b: b.queue.next("a", names="a"), more=more)

    driver = Driver(run, auto=False).start()
    driver.finish("s")
    assert driver.machine.wants_look() == (("c", "d"), 20)


def test_looks_that_are_used_up_are_not_kept(drive: Drive) -> None:
    def kept() -> int:
        gc.collect()
        return sum(isinstance(found, Seen) for found in gc.get_objects())

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            await it.queue.next("m", names=f"q{it.iteration % 20}")

    driver = drive(run, start=False)
    for number in range(400):
        driver.drop(f"q{number % 20}")
    before = kept()
    driver.start()
    assert driver.queue == []
    assert kept() - before <= 21


def test_br_048_race_of_message_and_timer_has_one_winner() -> None:
    """Both due in every order, parked, crashed and evicted: the same winner, which a replay gives again."""

    async def run(ctx: Any) -> Any:
        async def timer(b: Any) -> Any:
            await b.sleep("z", 10)
            return "t"

        async def message(b: Any) -> Any:
            return (await b.queue.next("m", timeout=20)).body

        async def many(b: Any) -> Any:
            got = await b.join("all", **{f"w{i}": (lambda c: c.queue.next("w", names="w")) for i in range(3)})
            return sorted(m.body for m in got.values())

        outcome = await ctx.race("r", {"message": message, "timer": timer, "many": many})
        await ctx.sleep("after", 1000)
        return outcome.winner, outcome.value

    def woken(driver: Driver) -> None:
        driver.jump(0)

    for seed in range(200):
        rng = random.Random(seed)
        plan = sorted(rng.choice([8, 9, 10, 11, 12]) for _ in range(4))
        outputs = set()
        for _ in range(2):
            driver = Driver(run, replay=rng.random() < 0.3).start()
            for at, queue in zip(plan, rng.sample(["a", "w", "w", "w"], 4), strict=True):
                driver.now = START + at * 1_000_000
                driver.drop(queue, at)
                for act in rng.sample([Driver.ring, Driver.crash, Driver.evict, woken], 2):
                    if rng.random() < 0.4:
                        act(driver)
            driver.jump(20)
            recorded = [row.output for row in driver.rows if row.name == "r"]
            driver.crash().evict().jump(2000)
            assert [row.output for row in driver.rows if row.name == "r"] == recorded
            outputs.add(driver.output[0])
            rng = random.Random(seed)
            plan = sorted(rng.choice([8, 9, 10, 11, 12]) for _ in range(4))
        assert len(outputs) == 1


def test_r_queue_13_14_replay_touches_no_queue(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("send", lambda _s: driver.drop("a", "sent meanwhile"))
        got = await ctx.queue.next("m")
        await ctx.sleep("z", 1)
        return got.body

    driver: Driver = drive(run, start=False)
    driver.start()
    driver.drop("a", "other")
    assert driver.crash().advance(1).output == "sent meanwhile"


def test_br_036_d_15_a_message_leaves_with_its_record(drive: Drive) -> None:
    """R-QUEUE-15: a crash between receive and commit loses nothing and delivers nothing twice."""

    async def run(ctx: Any) -> Any:
        got = await ctx.queue.next("m")
        return await ctx.step("work", echo, got.body)

    driver = drive(run)
    lost = driver.offered + 1
    driver.before_commit = lambda number: number != lost
    driver.send("a", "once")
    assert driver.output == "once"
    assert driver.started == ["work"]
    assert driver.queue == []


def test_br_040_two_messages_of_one_queue_in_order(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return [(await ctx.queue.next("m")).body for _ in range(2)]

    driver = drive(run)
    driver.send("a", 1)
    driver.crash()
    driver.send("a", 2)
    assert driver.output == [1, 2]


def test_a_bell_during_a_look_is_not_lost(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return (await ctx.queue.next("m")).body

    driver = Driver(run)
    driver.apply(driver.load().start(driver.now))
    assert driver.machine.wants_look() is not None
    driver.drop("a", 1)
    driver.apply(driver.machine.bell(driver.now))
    driver.apply(driver.machine.messages([], None, True, driver.now, driver.now))
    assert driver.machine.wants_look() is not None
    assert driver.settle().output == 1


def test_a_full_queue_does_not_starve_the_wait_of_another(drive: Drive) -> None:
    handled: list[int] = []

    async def run(ctx: Any) -> Any:
        async def worker(b: Any) -> Any:
            async for it in b.loop("work"):
                message = await it.queue.next("m", names="work")
                await it.step("do", lambda _s, n: handled.append(n), message.body)

        async def control(b: Any) -> Any:
            return (await b.queue.next("stop", names="control")).body

        return (await ctx.race("r", worker=worker, control=control)).value

    driver = drive(run, start=False)
    for i in range(200):
        driver.drop("work", i)
    driver.drop("control", "stop")
    assert driver.start().output == "stop"
    assert len(handled) < 200


def test_a_look_is_used_up_before_the_next(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        got = []
        for _ in range(50):
            got.append((await ctx.queue.next("m")).body)
        return got

    driver = Driver(run)
    looks: list[Any] = []
    for i in range(50):
        driver.drop("a", i)
    look = driver.look
    driver.look = lambda: look() and (looks.append(1) or True)  # type: ignore[method-assign,func-returns-value]
    assert driver.start().output == list(range(50))
    assert len(looks) == 3


def test_d_17_undeclared_queues(drive: Drive) -> None:
    def name(queue: Any) -> str:
        if queue != "orders":
            raise LookupError(queue)
        return "orders"

    async def run(ctx: Any) -> Any:
        with pytest.raises(LookupError):
            ctx.queue.next("m", names="other")
        with pytest.raises(LookupError):
            ctx.queue.send("other", 1)
        return (await ctx.queue.next("m", names="orders")).body

    driver = drive(run, queue_name=name)
    driver.send("orders", 1)
    assert driver.output == 1


# -- completable messages ----------------------------------------------------------------------------


def test_r_queue_20_complete(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        await message.complete({"ok": True})
        await message.complete("again")  # D-16: idempotent
        return message.body

    driver = drive(run)
    number = driver.send("a", 1, wants_reply=True)
    assert driver.output == 1
    assert driver.replies == {number: {"ok": True}}
    assert driver.queue == []


def test_r_queue_21_not_completable(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m")
        with pytest.raises(Exception, match="completable=True"):
            message.complete()

    driver = drive(run)
    number = driver.send("a", 1, wants_reply=True)
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED
    assert driver.replies == {number: "failed"}


def test_r_queue_22_25_27_29_previous_not_completed(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        messages = await ctx.queue.next_batch("m", count=2, completable=True)
        await messages[0].complete()
        said = []
        async for it in ctx.loop("x"):  # R-QUEUE-27: in another scope too
            try:
                await it.queue.next("again")
            except MessageNotCompleted as exc:
                said.append(str(exc))
                await it.sleep("z", 1)
            break
        await messages[1].complete()
        return said, (await ctx.queue.next("m")).body

    driver = drive(run, start=False)
    for i in range(3):
        driver.drop("a", i)
    driver.start().crash().advance(1)
    said, body = driver.output
    assert said[0].startswith("Previous completable queue message is not completed.")
    assert body == 2
    assert driver.row("again").status is EntryStatus.FAILED


def test_r_queue_24_completion_survives(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        await message.complete("yes")
        await ctx.sleep("z", 1)
        return (await ctx.queue.next("m")).body

    driver = drive(run)
    driver.send("a", 1)
    driver.crash()
    driver.send("a", 2)
    assert driver.crash().advance(1).output == 2


def test_r_queue_22_a_refusal_outlives_its_worker(drive: Drive) -> None:
    """The turn grew long between the refused wait and its being told."""

    async def run(ctx: Any) -> Any:
        async def busy(b: Any) -> Any:
            for number in range(3):
                await b.queue.send("own", number)

        async def refused(b: Any) -> Any:
            try:
                await b.queue.next("again")
            except MessageNotCompleted as exc:
                return str(exc)

        held = await ctx.queue.next("m", completable=True)
        got = await ctx.join("j", busy=busy, refused=refused)
        await held.complete()
        return got["refused"]

    driver = drive(run, limits=Limits(max_turn_rows=1))
    driver.drop("q")
    driver.apply(driver.machine.bell(driver.now))
    driver.look()
    while "again" not in driver.inflight:
        driver.apply(driver.machine.time(driver.now))
    assert driver.crash().output.startswith("Previous completable queue message is not completed.")


def test_a_completion_is_stored_at_once(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        await message.complete("yes")
        await ctx.step("cheap", echo, ephemeral=True)

    driver = drive(run, auto=False)
    number = driver.send("a", wants_reply=True)
    assert [order.name for order in driver.pending] == ["cheap"]
    assert driver.replies == {number: "yes"}


def test_r_queue_26_completed_in_a_step(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        await ctx.step("work", echo, message.body)
        return (await ctx.queue.next("m2", timeout=0.1)) if False else message.body

    driver = drive(run, auto=False)
    number = driver.send("a", 1)
    assert driver.machine.held.keys() == {number}
    driver.machine.completed_in_step([number])
    driver.machine.completed_in_step([number])  # D-16: idempotent
    driver.finish("work")
    assert driver.output == 1
    assert driver.replies == {}


def test_d_16_held_messages_are_hidden_and_given_again_after_a_crash(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def holder(b: Any) -> Any:
            message = await b.queue.next("m", completable=True)
            await b.step("slow", echo, message.body)
            await message.complete("done")
            return message.body

        async def other(b: Any) -> Any:
            return (await b.queue.next("n", names="b")).body

        return await ctx.join("j", holder=holder, other=other)

    driver = drive(run, auto=False)
    number = driver.send("a", 1)
    driver.crash()
    assert driver.holders.keys() == {number}
    driver.send("b", 2)
    driver.finish("slow")
    assert driver.output == {"holder": 1, "other": 2}
    assert driver.replies == {number: "done"}


@pytest.mark.parametrize("same_turn", [True, False])
def test_d_16_a_lost_race_gives_the_message_back_to_its_place(drive: Drive, same_turn: bool) -> None:
    async def run(ctx: Any) -> Any:
        async def holder(b: Any) -> Any:
            message = await b.queue.next("m", names="a", completable=True)
            await b.sleep("long", 1000)
            await message.complete()

        async def timer(b: Any) -> Any:
            await b.queue.next("go", names="go")

        winner = (await ctx.race("r", holder=holder, timer=timer)).winner
        after = await ctx.queue.next("m", names="a")
        return winner, after.body

    driver = drive(run)
    if same_turn:
        driver.drop("a", 1)
        driver.drop("a", 2)
        driver.send("go")
    else:
        driver.send("a", 1)
        driver.send("a", 2)
        driver.send("go")
    assert driver.output == ("timer", 1)
    assert driver.holders == {}
    assert [m.queue for m in driver.queue] == ["a"]


def test_d_16_what_is_held_at_the_end_is_answered(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.queue.next("m", completable=True)

    driver = drive(run)
    number = driver.send("a", 1, wants_reply=True)
    assert driver.replies == {number: "failed"}
    assert driver.queue == []
    assert "held" not in json.loads(driver.inflight)


def test_d_16_what_is_given_back_can_be_received_before_that_is_stored() -> None:
    async def run(ctx: Any) -> Any:
        async def holder(b: Any) -> Any:
            await b.queue.next("m", names="a", completable=True)
            await b.sleep("long", 1000)

        await ctx.race("r", holder=holder, go=lambda b: b.queue.next("go", names="go"))
        return (await ctx.queue.next("m", names="a")).body

    machine = Driver(run).load()
    machine.start(START)
    given, go = MessageRow(1, "a", "5", START), MessageRow(2, "go", "null", START)
    names, _ = machine.wants_look() or ((), 0)
    assert machine.messages([given, go], names, True, START, START).unholds == [1]
    names, _ = machine.wants_look() or ((), 0)
    outcome = machine.messages([given], names, True, START, START).outcome
    assert outcome is not None
    assert outcome.output == "5"


def test_r_queue_30_wait_in_a_race_with_a_far_deadline(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        outcome = await ctx.race(
            "r", bid=lambda b: b.queue.next("bid"), expire=lambda b: b.sleep("expire", 10_000)
        )
        return outcome.winner

    driver = drive(run)
    driver.send("bids", 5)
    assert driver.output == "bid"
    assert driver.machine.next_due is None


def test_a_message_that_cannot_be_read_stays_and_the_actor_is_set_aside(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.queue.next("m")

    driver = drive(run)
    driver._put("a", '{"$":"gone.Klass","v":{}}')
    driver.ring()
    if driver.set_aside is None:
        pytest.skip("this codec reads everything")
    assert driver.set_aside.reason is Blocked.UNREADABLE
    assert len(driver.queue) == 1


# -- sending -----------------------------------------------------------------------------------------


def test_r_send_01_recorded_and_sent_once(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.queue.send("own", {"n": 1})
        await ctx.sleep("z", 1)
        return (await ctx.queue.next("m", names="own")).body

    driver = drive(run).crash().evict().advance(1)
    assert driver.output == {"n": 1}
    assert driver.queue == []
    assert driver.names() == ["own", "z", "m"]


def test_r_send_body_that_cannot_be_stored(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        with pytest.raises(TypeError):
            ctx.queue.send("own", open)
        return await ctx.step("a", ledger.write, 1)

    assert drive(run).output == 1


def test_a_sent_body_is_checked_for_its_queue(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.queue.send("own", 5)
        return (await ctx.queue.next("m")).body

    driver = drive(run, check_body=lambda queue, body: [queue, body])
    assert driver.output == ["own", 5]
    assert codec.loads(driver.row("own").input or "") == ["own", 5]
