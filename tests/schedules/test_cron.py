"""A-CRON: actions that are called again and again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rivet_workflows import Actor, ScheduledFire, ScheduleError, action, crashpoints
from rivet_workflows.models import Schedule
from rivet_workflows.testing.rules import WorkerDied
from tests.schedules.actors import Box, Setter


def results(cron, name="job"):
    return [fire.result for fire in cron.history(name)]


def test_a_cron_01_a_cron_05_every_fires_on_its_grid_from_one_interval_after_now(rivet, clockwork, cron):
    began = rivet.now()
    cron.every(name="job", interval=60, action="note", args=["tick"])
    assert cron.get("job").next_run_at == began + timedelta(seconds=60)  # A-CRON-05
    rivet.advance(200)
    assert clockwork.get().times == [began + timedelta(seconds=60 * n) for n in (1, 2, 3)]
    assert clockwork.get().fires[0][:3] == ("every", "job", "job")


def test_a_cron_01_set_fires_at_matching_times(rivet, clockwork, cron):
    cron.set(name="job", expression="*/20 * * * *", action="note", args=["x"])
    rivet.advance(hours=2)
    times = clockwork.get().times
    assert len(times) == 6
    assert {(at.minute % 20, at.second, at.microsecond) for at in times} == {(0, 0, 0)}
    assert clockwork.get().fires[0][:3] == ("cron", "job", "job")


@pytest.mark.parametrize(
    ("code", "method", "change"),
    [
        ("invalid_name", "every", {"name": ""}),
        ("invalid_name", "every", {"name": "ä" * 65}),
        ("invalid_name", "every", {"name": 5}),
        ("invalid_interval", "every", {"interval": 4.999}),
        ("invalid_interval", "every", {"interval": float("nan")}),
        ("invalid_interval", "every", {"interval": "often"}),
        ("invalid_max_history", "every", {"max_history": -1}),
        ("invalid_max_history", "every", {"max_history": 1001}),
        ("invalid_max_history", "every", {"max_history": True}),
        ("invalid_cron_expression", "set", {"expression": "* * * *"}),
        ("invalid_cron_expression", "set", {"expression": "0 * * * * *"}),
        ("invalid_cron_expression", "set", {"expression": "61 * * * *"}),
        ("invalid_cron_expression", "set", {"expression": "* * * * MOO"}),
        ("invalid_cron_expression", "set", {"expression": "0 0 30 2 *"}),
        ("invalid_cron_expression", "set", {"expression": "0 0 31 4,6,9,11 *"}),
        ("invalid_cron_expression", "set", {"expression": "@sometimes"}),
        ("invalid_cron_expression", "set", {"expression": ""}),
        ("invalid_cron_expression", "set", {"expression": f"{'9' * 5000} * * * *"}),
        ("invalid_timezone", "set", {"timezone": "Mars/Olympus"}),
        ("invalid_timezone", "set", {"timezone": "../etc/passwd"}),
        ("invalid_timezone", "set", {"timezone": ""}),
    ],
)
def test_a_cron_03_what_cannot_be_is_refused_at_the_call(clockwork, cron, code, method, change):
    good: dict[str, Any] = {"interval": 60} if method == "every" else {"expression": "0 9 * * *"}
    with pytest.raises(ScheduleError) as caught:
        getattr(cron, method)(**({"name": "job", "action": "plain"} | good | change))
    assert caught.value.code == f"schedule_{code}"
    assert cron.list() == []


def test_a_cron_03_names_of_128_bytes_are_fine(clockwork, cron):
    cron.every(name="ä" * 64, interval=5, action="plain")
    assert cron.get("ä" * 64).max_history == 100


def test_a_cron_04_setting_the_same_again_keeps_its_times(rivet, clockwork, cron):
    def set(interval=60, **more):
        cron.every(name="job", interval=interval, action="note", args=["x"], **more)

    set()
    rivet.advance(90)
    before = cron.get("job")
    set(max_history=3)
    after = cron.get("job")
    assert (after.next_run_at, after.last_run_at) == (before.next_run_at, before.last_run_at)
    assert after.max_history == 3
    set(interval=30)
    assert cron.get("job").next_run_at == rivet.now() + timedelta(seconds=30)
    assert len(cron.list()) == 1


def test_a_cron_04_another_expression_or_zone_recomputes(rivet, clockwork, cron):
    seen = set()
    for expression, zone in (("0 9 * * *", "UTC"), ("0 10 * * *", "UTC"), ("0 10 * * *", "Asia/Tokyo")):
        cron.set(name="job", expression=expression, action="plain", timezone=zone)
        job = cron.get("job")
        assert (job.kind, job.expression, job.timezone, job.interval) == ("cron", expression, zone, None)
        seen.add(job.next_run_at)
    assert len(seen) == 3
    cron.set(name="job", expression="@daily", action="plain")
    assert cron.get("job").expression == "0 0 * * *"


def test_a_cron_02_delete_removes_the_job_and_its_history(rivet, clockwork, cron):
    cron.every(name="job", interval=5, action="plain")
    rivet.advance(11)
    assert results(cron) == ["ok", "ok"]
    assert cron.delete("job") is True
    assert cron.delete("job") is False
    assert cron.history("job") == []
    rivet.advance(60)
    assert clockwork.get().calls == ["plain"] * 2


def test_a_cron_02_an_action_may_delete_its_own_job(rivet, clockwork, cron):
    cron.every(name="job", interval=5, action="leave", args=["job"])
    rivet.advance(60)
    assert clockwork.get().calls == ["last"]
    assert cron.list() == []


def test_a_cron_07_missed_ticks_fold_into_one_fire_on_the_grid(rivet, clockwork, cron):
    began = rivet.now()
    cron.every(name="job", interval=60, action="note", args=["x"])
    cron.set(name="other", expression="*/5 * * * *", action="note", args=["y"])
    rivet.jump(hours=5, seconds=7)
    assert sorted(clockwork.get().calls) == ["x", "y"]
    assert cron.get("job").next_run_at == began + timedelta(hours=5, seconds=60)
    assert rivet.now() < cron.get("other").next_run_at <= rivet.now() + timedelta(minutes=5)


def test_a_cron_10_history_is_newest_first_and_pruned(rivet, clockwork, cron):
    cron.every(name="job", interval=5, action="plain", max_history=3)
    began = rivet.now()
    rivet.advance(30)
    found = cron.history("job")
    assert [fire.scheduled_at for fire in found] == [began + timedelta(seconds=s) for s in (30, 25, 20)]
    assert {fire.action for fire in found} == {"plain"}
    assert all(fire.finished_at >= fire.fired_at for fire in found)
    assert len(cron.history("job", limit=1)) == 1
    for wrong in (0, 1001, "all"):
        with pytest.raises(ValueError, match="limit"):
            cron.history("job", limit=wrong)


def test_a_cron_01_max_history_0_keeps_none_and_clears(rivet, clockwork, cron):
    cron.every(name="job", interval=5, action="plain")
    rivet.advance(5)
    assert results(cron) == ["ok"]
    cron.every(name="job", interval=5, action="plain", max_history=0)
    assert results(cron) == []
    rivet.advance(10)
    assert results(cron) == []
    assert clockwork.get().calls == ["plain"] * 3


def test_a_cron_10_an_error_is_recorded_and_leaves_nothing_else(rivet, clockwork, cron):
    cron.every(name="job", interval=5, action="fail")
    rivet.advance(10)
    fire = cron.history("job")[0]
    assert fire.result == "error"
    assert fire.error.is_a("UserError")
    assert fire.error.message == "no luck"
    assert not fire.interrupted
    assert clockwork.get().calls == []


@pytest.mark.parametrize("point", ["fire-taken", "fire-run"])
def test_a_cron_10_d_23_a_crash_between_leaves_interrupted_and_no_effects(rivet, clockwork, cron, point):
    cron.every(name="job", interval=5, action="plain")

    def die(passed):
        if passed == point:
            raise WorkerDied

    with crashpoints.hooked(die):
        rivet.advance(5)
    rivet.run_until_idle()
    (fire,) = cron.history("job")
    assert fire.result == "error"
    assert fire.interrupted
    assert clockwork.get().calls == []
    rivet.advance(5)
    assert results(cron) == ["ok", "error"]


def test_a_sched_02_d_23_a_crash_in_a_one_shot_fires_it_again(rivet, clockwork):
    Setter(clockwork, "schedule").after(5, "plain")
    left = [1]

    def die(passed):
        if passed == "fire-run" and left:
            left.pop()
            raise WorkerDied

    with crashpoints.hooked(die):
        rivet.advance(5)
    assert left == []
    assert clockwork.get().calls == ["plain"]


def test_a_cron_09_a_fire_while_the_last_one_runs_is_skipped(rivet):
    class Slow(Actor):
        state = list

        @action
        def work(self, c, fire: ScheduledFire) -> None:
            c.state.append("work")
            if len(c.state) == 1:
                rivet.jump(20)  # the job's next time comes, and another's, while this one runs

        @action
        def other(self, c) -> None:
            c.state.append("other")

        @action
        def do(self, c, part: str, method: str, args: list, kwargs: dict):
            return Box(getattr(getattr(c, part), method)(*args, **kwargs))

    slow = rivet.client.get_or_create(Slow, "s")
    cron = Setter(slow, "cron")
    cron.every(name="job", interval=10, action="work")
    rivet.advance(10)
    assert results(cron)[:2] == ["skipped", "ok"]
    skipped = cron.history("job")[0]
    assert skipped.finished_at == skipped.fired_at


def test_a_cron_11_a_job_whose_action_is_gone_ends_with_an_error(rivet, clockwork, cron):
    cron.every(name="job", interval=5, action="plain")
    Schedule.objects.update(action="removed")
    rivet.advance(5)
    (fire,) = cron.history("job")
    assert (fire.result, fire.action) == ("error", "removed")
    assert fire.error.is_a("ActionNotFound")
    assert cron.list() == []


def test_a_cron_06_different_names_are_different_jobs(rivet, clockwork, cron):
    cron.every(name="b", interval=20, action="note", args=["b"])
    cron.every(name="a", interval=10, action="note", args=["a"])
    assert [job.name for job in cron.list()] == ["a", "b"]
    rivet.advance(20)
    assert clockwork.get().calls == ["a", "b", "a"] or clockwork.get().calls == ["a", "a", "b"]
