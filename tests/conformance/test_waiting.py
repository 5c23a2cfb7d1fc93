"""Waiting for messages: R-QUEUE; BR-036, BR-039, BR-040, BR-048."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

from rivet_workflows.engine.mailbox import Seen
from rivet_workflows.exceptions import QueueTimeout
from rivet_workflows.records import MessageRow
from tests.conformance.conftest import Drive
from tests.engine.driver import START, Driver
from tests.engine.steps import echo


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
