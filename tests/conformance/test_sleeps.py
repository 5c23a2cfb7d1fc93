"""Sleeps: R-SLEEP; BR-057, BR-071, BR-072, BR-073, BR-075."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rivet_workflows.records import EntryStatus, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import START
from tests.engine.steps import echo


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
