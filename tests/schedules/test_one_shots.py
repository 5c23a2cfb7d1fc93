"""A-SCHED: actions that are called once, later."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from rivet_workflows import Actor, ScheduledFire, ScheduleError, UserError, action
from rivet_workflows.exceptions import ActionNotFound, SerializationError, ValidationFailed
from tests.schedules.actors import Clockwork


def test_a_sched_01_after_and_at_give_ids_and_are_listed_in_order(rivet, clockwork, schedule):
    late = schedule.after(60, "note", "late")
    early = schedule.at(rivet.now() + timedelta(seconds=5), Clockwork.note, "early")
    assert {UUID(late).version, UUID(early).version} == {7}
    assert [found.id for found in schedule.list()] == [early, late]
    found = schedule.get(late)
    assert (found.id, found.action, found.args) == (late, "note", ["late"])
    assert found.run_at == rivet.now() + timedelta(seconds=60)
    assert schedule.get(str(uuid4())) is None


def test_a_sched_01_cancel_says_whether_there_was_one(rivet, clockwork, schedule, cron):
    kept, gone = schedule.after(10, "note", "kept"), schedule.after(10, "note", "gone")
    cron.every(name="job", interval=60, action="plain")
    assert schedule.cancel(gone) is True
    assert schedule.cancel(gone) is False
    assert schedule.cancel("job") is False
    rivet.advance(20)
    assert clockwork.get().calls == ["kept"]
    assert schedule.cancel(kept) is False
    assert cron.get("job") is not None


def test_a_sched_01_a_schedule_of_an_action_that_raises_is_not_there(rivet, clockwork, schedule):
    with pytest.raises(UserError):
        clockwork.do_and_raise("schedule", "after", [1, "note", "x"], {})
    assert schedule.list() == []


def test_a_sched_02_a_one_shot_fires_once_and_a_failure_is_not_retried(rivet, clockwork, schedule, caplog):
    schedule.after(5, "fail")
    with caplog.at_level(logging.ERROR):
        rivet.advance(hours=1)
    assert clockwork.get().calls == []
    assert schedule.list() == []
    assert [record for record in caplog.records if "'fail'" in record.getMessage()]


def test_a_sched_03_past_times_fire_at_once_and_overdue_ones_after_a_crash(rivet, clockwork, schedule):
    schedule.at(rivet.now() - timedelta(days=400), "note", "past")
    rivet.run_until_idle()
    assert clockwork.get().calls == ["past"]
    schedule.after(30, "note", "slept")
    rivet.crash()
    rivet.jump(hours=3)
    assert clockwork.get().calls == ["past", "slept"]
    assert clockwork.get().fires[-1][3] == 3 * 3600 - 30


def test_a_sched_04_due_ones_run_in_order_of_time_then_of_setting(rivet, clockwork, schedule):
    when = rivet.now() + timedelta(seconds=9)
    for n in range(5):
        schedule.at(when, "note", f"same {n}")
    schedule.after(8, "note", "first")
    schedule.after(10, "note", "last")
    rivet.jump(60)
    assert clockwork.get().calls == ["first", *(f"same {n}" for n in range(5)), "last"]


def test_a_sched_05_the_action_gets_its_arguments_and_the_fire(rivet, clockwork, schedule):
    key = schedule.after(7, "note", "told")
    due = rivet.now() + timedelta(seconds=7)
    rivet.jump(10)
    assert clockwork.get().fires == [("at", key, None, 3.0)]
    assert clockwork.get().times == [due]


def test_a_sched_05_an_action_that_takes_no_fire_is_called_without(rivet, clockwork, schedule):
    schedule.after(1, "plain")
    schedule.after(2, "scribble", "async")
    rivet.advance(5)
    assert clockwork.get().calls == ["plain", "async"]


def test_a_sched_06_an_action_may_destroy_its_actor_and_its_schedules_go_with_it(rivet, clockwork, schedule):
    schedule.after(1, "end")
    schedule.after(2, "note", "never")
    rivet.advance(60)
    with pytest.raises(Exception, match="destroyed"):
        clockwork.get()


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ActionNotFound, (1, "nothing")),
        (ValidationFailed, (1, "note", ["not", "a", "text"])),
        (ValidationFailed, (1, "note")),
        (ValidationFailed, (1, "note", "x", "y", "z")),
        (SerializationError, (1, "do", "x", "y", [object()], {})),
        (ValueError, (-1, "plain")),
        (TypeError, ("soon", "plain")),
        (TypeError, (1, print)),
    ],
)
def test_a_sched_01_what_cannot_be_called_is_refused_at_once(clockwork, schedule, error, arguments):
    with pytest.raises(error):
        clockwork_context(clockwork, "after", arguments)


@pytest.mark.parametrize("when", [datetime(2030, 1, 1), 5, "tomorrow"])
def test_a_sched_01_at_takes_an_aware_datetime(clockwork, when):
    with pytest.raises((TypeError, ValueError)):
        clockwork_context(clockwork, "at", (when, "plain"))


def clockwork_context(handle, method, arguments):
    """The call, on a context of its own: what it is given need not be an argument of an action."""
    from rivet_workflows.client.context import ActionContext
    from rivet_workflows.registry import registry

    context = ActionContext(registry.get(Clockwork), handle.actor_id, '["one"]')
    return getattr(context.schedule, method)(*arguments)


def test_a_sched_01_there_are_no_more_than_max_schedules(rivet, clockwork, schedule, cron, settings):
    settings.RIVET_WORKFLOWS = {"MAX_SCHEDULES": 2}
    schedule.after(5, "plain")
    cron.every(name="job", interval=5, action="plain")
    for refused in (
        lambda: schedule.after(5, "plain"),
        lambda: cron.every(name="other", interval=5, action="plain"),
    ):
        with pytest.raises(ScheduleError) as caught:
            refused()
        assert caught.value.code == "schedule_max_schedules_exceeded"
    cron.every(name="job", interval=9, action="plain")
    assert cron.get("job").interval == timedelta(seconds=9)


def test_a_sched_03_d_12_a_steps_schedules_join_its_commit(rivet):
    class Booking(Actor):
        state = list

        async def run(self, ctx):
            await ctx.step("set", self.set, max_retries=1)
            await ctx.step("look", self.look)

        def set(self, step):
            key = step.schedule.after(10, "remind", "a")
            other = step.schedule.after(20, "remind", "b")
            step.cron.every(name="tick", interval=60, action="remind", args=["tick"])
            assert [found.id for found in step.schedule.list()] == [key, other]
            assert step.schedule.cancel(other)
            assert [job.name for job in step.cron.list()] == ["tick"]
            if step.attempt == 1:
                raise RuntimeError("the first attempt's schedules are dropped")

        async def look(self, step):
            assert [found.args for found in step.schedule.list()] == [["a"]]
            assert len(await step.cron.alist()) == 1
            step.schedule.after(30, "remind", "async")

        @action
        def remind(self, c, text: str, fire: ScheduledFire) -> None:
            c.state.append(text)

        @action(read_only=True)
        def get(self, c):
            return c.state

    booking = rivet.client.get_or_create(Booking, "b")
    rivet.run_until_idle()
    rivet.advance(5)
    assert str(booking.status()) == "completed"
    rivet.advance(65)
    assert booking.get() == ["a", "async", "tick"]


def test_a_sched_03_schedules_of_hooks_and_of_async_actions(rivet):
    class Hooked(Actor):
        state = list

        def on_create(self, c, given):
            c.schedule.after(5, "add", "hook")

        @action
        async def later(self, c):
            key = c.schedule.after(9, "add", "async")
            c.schedule.after(10, self.add, "cancelled")
            c.cron.every(name="job", interval=60, action="add", args=["job"])
            with pytest.raises(RuntimeError, match="alist"):
                c.schedule.list()
            texts = {found.args[0]: found.id for found in await c.schedule.alist()}
            assert key in texts.values()
            assert await c.schedule.acancel(texts["cancelled"])

        @action
        def add(self, c, text: str) -> None:
            c.state.append(text)

        @action(read_only=True)
        def get(self, c):
            return c.state

    hooked = rivet.client.get_or_create(Hooked, "h")
    hooked.later()
    rivet.advance(60)
    assert hooked.get() == ["hook", "async", "job"]


def test_a_sched_01_timers_of_the_kit_lists_them(rivet, clockwork, schedule, cron):
    schedule.after(5, "plain")
    cron.every(name="job", interval=60, action="plain")
    assert [(timer.kind, timer.name) for timer in rivet.timers(clockwork)] == [
        ("schedule", "plain"),
        ("schedule", "job"),
    ]
