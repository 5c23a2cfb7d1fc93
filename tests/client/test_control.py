"""Operations on a run, on real workflows: what each does in which state, and that finished steps stay finished."""

from __future__ import annotations

import pytest

from rivet_workflows import Actor, CriticalError, Queue, StepFailed, ValidationFailed, client
from rivet_workflows.client import HistoryEntry
from rivet_workflows.models import History
from tests.client import worker_side

pytestmark = pytest.mark.django_db

#: Steps that ran, in order; names in FAILING fail.
RAN: list[str] = []
FAILING: set[str] = set()


@pytest.fixture(autouse=True)
def clean():
    RAN.clear()
    FAILING.clear()


def work(step, name):
    RAN.append(name)
    if name in FAILING:
        raise CriticalError(f"{name} is broken")
    return name


KEYS: dict[str, list[str]] = {}


def keyed(step, name):
    KEYS.setdefault(name, []).append(step.idempotency_key)
    return work(step, name)


def took(*names):
    """What ran since the last time."""
    ran = list(RAN)
    RAN.clear()
    return ran == list(names) or ran


class Line(Actor, name="control_line"):
    """Three steps in a row."""

    async def run(self, ctx):
        return [await ctx.step(name, work, name) for name in ("one", "two", "three")]


@pytest.fixture
def start(rivet):
    def start(cls, key="k"):
        handle = client.create(cls, key)
        rivet.run_until_idle()
        return handle

    return start


class TestRecover:
    def test_a_failed_step_gets_its_attempts_again_and_the_others_do_not_run(self, rivet, start):
        FAILING.add("two")
        line = start(Line)
        assert str(line.status()) == "failed"
        assert took("one", "two") is True
        FAILING.clear()
        assert line.recover() is True
        assert line.status().error is None
        rivet.run_until_idle()
        assert took("two", "three") is True
        assert line.result(timeout=0) == ["one", "two", "three"]

    def test_it_keeps_the_steps_number_and_key(self, rivet, start):
        class Keyed(Actor):
            async def run(self, ctx):
                return await ctx.step("pay", keyed, "pay")

        KEYS.clear()
        FAILING.add("pay")
        handle = start(Keyed)
        FAILING.clear()
        handle.recover()
        rivet.run_until_idle()
        assert len(KEYS["pay"]) == 2
        assert len(set(KEYS["pay"])) == 1

    def test_failed_branches_run_again_and_finished_ones_do_not(self, rivet, start):
        class Both(Actor):
            async def run(self, ctx):
                async def left(b):
                    return await b.step("left", work, "left")

                async def right(b):
                    await b.step("before", work, "before")
                    return await b.step("right", work, "right")

                return await ctx.join("both", left=left, right=right)

        FAILING.add("right")
        both = start(Both)
        assert str(both.status()) == "failed"
        RAN.clear()
        FAILING.clear()
        assert both.recover()
        rivet.run_until_idle()
        assert took("right") is True
        assert both.result(timeout=0) == {"left": "left", "right": "right"}

    def test_inside_a_loop_it_goes_on_in_its_iteration(self, rivet, start):
        class Turning(Actor):
            async def run(self, ctx):
                async for it in ctx.loop("turns", state=0):
                    await it.step("work", work, f"turn-{it.loop_state}")
                    it.loop_state += 1
                    if it.loop_state == 4:
                        break
                return "done"

        FAILING.add("turn-2")
        turning = start(Turning)
        assert took("turn-0", "turn-1", "turn-2") is True
        FAILING.clear()
        turning.recover()
        rivet.run_until_idle()
        assert took("turn-2", "turn-3") is True
        assert turning.result(timeout=0) == "done"

    def test_a_failure_that_was_caught_stays_as_it_is(self, rivet, start):
        class Careful(Actor):
            async def run(self, ctx):
                try:
                    await ctx.step("first", work, "first")
                except StepFailed:
                    await ctx.step("instead", work, "instead")
                return await ctx.step("last", work, "last")

        FAILING.update({"first", "last"})
        careful = start(Careful)
        assert took("first", "instead", "last") is True
        FAILING.clear()
        careful.recover()
        rivet.run_until_idle()
        assert took("last") is True
        assert careful.result(timeout=0) == "last"

    def test_a_cancelled_run_goes_on_where_it_was(self, rivet, start):
        class Sleeper(Actor):
            async def run(self, ctx):
                await ctx.step("one", work, "one")
                await ctx.sleep("night", 60)
                return await ctx.step("two", work, "two")

        sleeper = start(Sleeper)
        assert sleeper.cancel() is True
        rivet.advance(120)
        assert str(sleeper.status()) == "cancelled"
        assert sleeper.recover() is True
        rivet.run_until_idle()
        assert took("one", "two") is True
        assert sleeper.result(timeout=0) == "two"

    def test_a_step_in_backoff_is_tried_now(self, rivet, start):
        class Patient(Actor):
            async def run(self, ctx):
                return await ctx.step("slow", work, "slow", retry_backoff_base=1000, retry_backoff_max=4000)

        rivet.fail_step("slow", times=1)
        patient = start(Patient)
        assert (str(patient.status()), took()) == ("sleeping", True)
        assert patient.recover() is True
        rivet.run_until_idle()
        assert took("slow") is True
        assert patient.result(timeout=0) == "slow"

    def test_an_actor_whose_rows_cannot_be_read_is_tried_again(self, rivet, start):
        line = start(Line)
        worker_side.block(line, worker_side.Blocked.UNREADABLE)
        History.objects.filter(actor_id=line.actor_id, name="two").update(kind=99)
        assert line.recover() is True
        assert line.status().reason is None

    def test_there_is_nothing_to_recover(self, rivet, start):
        class Waits(Actor):
            async def run(self, ctx):
                await ctx.queue.next("wait")

        waits = start(Waits)
        assert waits.recover() is False
        assert start(Line).recover() is False
        pending = client.create(Line, "pending")
        assert pending.recover() is False
        pending.pause()
        assert pending.recover() is False


class Child(Actor, name="control_child"):
    async def run(self, ctx):
        return await ctx.step("work", work, "child")


class Parent(Actor, name="control_parent"):
    async def run(self, ctx):
        return await ctx.child("child", Child, "k")


class TestRecoverWithChildren:
    def test_a_recovered_child_and_then_its_parent_go_on(self, rivet, start):
        FAILING.add("child")
        parent = start(Parent)
        assert str(parent.status()) == "failed"
        FAILING.clear()
        assert client.get(Child, "k").recover() is True
        assert parent.recover() is True
        rivet.run_until_idle()
        assert parent.result(timeout=0) == "child"
        assert took("child", "child") is True


class Reader(Actor, name="control_reader"):
    """Takes two messages, with a step after each."""

    async def run(self, ctx):
        got = []
        for _ in range(2):
            got.append((await ctx.queue.next("wait")).body)
            await ctx.step("work", work, "read")
        return got


class TestReplayFrom:
    def test_messages_that_were_taken_are_given_back_at_their_old_place(self, rivet, start):
        reader = start(Reader)
        for body in ({"n": 1}, {"n": 2}, {"n": 3}):
            reader.send("q", body)
        rivet.run_until_idle()
        assert reader.result(timeout=0) == [{"n": 1}, {"n": 2}]
        reader.replay_from("wait#2")
        rivet.run_until_idle()
        assert reader.result(timeout=0) == [{"n": 1}, {"n": 2}]
        reader.replay_from()
        rivet.run_until_idle()
        assert reader.result(timeout=0) == [{"n": 1}, {"n": 2}]
        assert [message.body for message in rivet.messages(reader)] == [{"n": 3}]

    def seqs(self, handle):
        return {entry.location: entry.seq for entry in handle.history()}

    def test_from_a_step_it_and_the_later_ones_run_again(self, rivet, start):
        line = start(Line)
        RAN.clear()
        assert line.replay_from("two") is True
        assert [entry.name for entry in line.history()] == ["one"]
        rivet.run_until_idle()
        assert took("two", "three") is True
        assert line.result(timeout=0) == ["one", "two", "three"]

    def test_an_entry_is_named_by_itself_its_number_or_its_location(self, rivet, start):
        line = start(Line)
        for name in (line.history()[2], line.history()[2].seq, "three"):
            entry = name if not isinstance(name, HistoryEntry) else line.history()[-1]
            entry = line.history()[-1].seq if isinstance(name, int) else entry
            RAN.clear()
            assert line.replay_from(entry) is True
            rivet.run_until_idle()
            assert took("three") is True

    def test_from_the_start(self, rivet, start):
        line = start(Line)
        RAN.clear()
        assert line.replay_from() is True
        assert str(line.status()) == "pending"
        rivet.run_until_idle()
        assert took("one", "two", "three") is True

    def test_new_steps_have_new_keys(self, rivet, start):
        class KeyedTwice(Actor):
            async def run(self, ctx):
                return await ctx.step("pay", keyed, "pay")

        KEYS.clear()
        handle = start(KeyedTwice)
        handle.replay_from("pay")
        rivet.run_until_idle()
        assert len(set(KEYS["pay"])) == 2

    def test_inside_the_last_iteration_that_iteration_runs_again(self, rivet, start):
        class Turns(Actor):
            async def run(self, ctx):
                async for it in ctx.loop("turns", state=0):
                    await it.step("a", work, f"a{it.loop_state}")
                    await it.step("b", work, f"b{it.loop_state}")
                    it.loop_state += 1
                    if it.loop_state == 3:
                        break
                return await ctx.step("end", work, "end")

        turns = start(Turns)
        RAN.clear()
        assert turns.replay_from("turns/~2/b") is True
        rivet.run_until_idle()
        assert took("a2", "b2", "end") is True
        assert turns.replay_from("turns/~1/b") is True
        rivet.run_until_idle()
        assert took("a0", "b0", "a1", "b1", "a2", "b2", "end") is True
        assert turns.result(timeout=0) == "end"

    def test_inside_a_finished_join_earlier_branches_stay(self, rivet, start):
        class Joined(Actor):
            async def run(self, ctx):
                async def left(b):
                    return await b.step("left", work, "left")

                async def right(b):
                    return await b.step("right", work, "right")

                await ctx.join("both", left=left, right=right)
                return await ctx.step("end", work, "end")

        joined = start(Joined)
        RAN.clear()
        assert joined.replay_from("both/right/right") is True
        rivet.run_until_idle()
        assert took("right", "end") is True
        assert joined.result(timeout=0) == "end"

    def test_a_join_in_another_branch_whose_content_goes_is_entered_again(self, rivet, start):
        class Nested(Actor):
            async def run(self, ctx):
                async def left(b):
                    async def inner(i):
                        await i.step("x1", work, "x1")
                        return await i.step("x2", work, "x2")

                    await b.join("inner", only=inner)
                    return await b.step("left", work, "left")

                async def right(b):
                    await b.step("r1", work, "r1")
                    return await b.step("r2", work, "r2")

                return await ctx.join("both", left=left, right=right)

        nested = start(Nested)
        RAN.clear()
        assert nested.replay_from("both/right/r2") is True
        rivet.run_until_idle()
        assert nested.result(timeout=0) == {"left": "left", "right": "r2"}

    def test_a_completed_run_is_live_again_at_once(self, rivet, start):
        line = start(Line)
        line.replay_from("three")
        assert client.list(Line, status="completed") == []
        assert str(line.status()) in ("pending", "running")

    @pytest.mark.parametrize("entry", ["nowhere", 99, True, 1.5, object()])
    def test_what_is_no_entry(self, rivet, start, entry):
        with pytest.raises(ValidationFailed):
            start(Line).replay_from(entry)

    def test_two_entries_of_one_location_are_told_apart_by_number(self, rivet, start):
        class Twin(Actor):
            async def run(self, ctx):
                await ctx.step("a/b", work, "plain")
                await ctx.try_block("a", self.block, catch=[])

            async def block(self, block):
                await block.step("b", work, "inner")

        twin = start(Twin)
        with pytest.raises(ValidationFailed, match="several entries"):
            twin.replay_from("a/b")


class TestSkip:
    def test_a_failed_step_gets_the_result_and_the_run_goes_on(self, rivet, start):
        FAILING.add("two")
        line = start(Line)
        assert line.skip("two", "by hand") is True
        rivet.run_until_idle()
        assert took("one", "two", "three") is True
        assert line.result(timeout=0) == ["one", "by hand", "three"]
        assert [entry.status for entry in line.history()] == ["completed"] * 3

    def test_in_a_failed_branch(self, rivet, start):
        class Half(Actor):
            async def run(self, ctx):
                async def left(b):
                    return await b.step("left", work, "left")

                async def right(b):
                    return await b.step("right", work, "right")

                return await ctx.join("both", left=left, right=right)

        FAILING.add("right")
        half = start(Half)
        assert half.skip("both/right/right", "by hand")
        rivet.run_until_idle()
        assert half.result(timeout=0) == {"left": "left", "right": "by hand"}

    def test_a_step_in_backoff(self, rivet, start):
        rivet.fail_step("one", times=1)
        line = start(Line)
        assert str(line.status()) == "sleeping"
        assert line.skip("one", "by hand")
        rivet.run_until_idle()
        assert took("two", "three") is True
        assert line.result(timeout=0) == ["by hand", "two", "three"]

    def test_what_is_done_or_no_step_is_not_skipped(self, rivet, start):
        class Waiter(Actor):
            async def run(self, ctx):
                await ctx.step("one", work, "one")
                await ctx.sleep("night", 60)

        waiter = start(Waiter)
        assert waiter.skip("one", 1) is False
        assert waiter.skip("night", 1) is False
        line = start(Line)
        assert line.skip("two", 1) is False


class TestOthers:
    def test_wake_runs_a_sleeping_one_and_shortens_nothing(self, rivet, start):
        class Dozer(Actor):
            async def run(self, ctx):
                await ctx.sleep("nap", 60)

        dozer = start(Dozer)
        before = dozer.status().wake_at
        assert dozer.wake() is True
        rivet.run_until_idle()
        assert dozer.status().wake_at == before
        rivet.advance(60)
        assert str(dozer.status()) == "completed"
        assert dozer.wake() is False
        assert client.create(Line, "pending").wake() is False

    def test_pause_holds_the_workflow_and_keeps_its_messages(self, rivet, start):
        class Listener(Actor):
            work = Queue(str)

            async def run(self, ctx):
                message = await ctx.queue.next("wait")
                return await ctx.step("got", work, message.body)

        listener = start(Listener)
        assert listener.pause() is True
        listener.send("work", "x")
        rivet.run_until_idle()
        assert (str(listener.status()), took()) == ("paused", True)
        assert listener.resume() is True
        assert listener.resume() is False
        rivet.run_until_idle()
        assert listener.result(timeout=0) == "x"

    def test_cancel_is_final(self, rivet, start):
        class Long(Actor):
            async def run(self, ctx):
                await ctx.queue.next("wait")
                return await ctx.step("after", work, "after")

        long = start(Long)
        assert long.cancel() is True
        assert long.cancel() is False
        long.send("any", 1)
        rivet.run_until_idle()
        assert (str(long.status()), took()) == ("cancelled", True)
