"""An actor that is set aside says why, with the entry and the mend, until it goes on."""

from __future__ import annotations

import logging

import pytest
from asgiref.sync import async_to_sync

from rivet_workflows import Actor, Queue, ResultTimeout, client

pytestmark = pytest.mark.django_db


def work(step):
    return 1


class Renamed(Actor, name="aside_renamed"):
    go = Queue()

    async def run(self, ctx):
        await ctx.step("first", work)
        await ctx.queue.next("wait")
        return "done"


async def changed(self, ctx):
    await ctx.step("other", work)
    await ctx.queue.next("wait")
    return "done"


def test_a_diverged_actor_shows_the_entry_and_the_mend_and_forgets_them_once_it_fits(rivet, caplog):
    handle = client.create(Renamed, "k")
    rivet.run_until_idle()
    original = Renamed.run
    rivet.deploy(Renamed, run=changed)
    handle.wake()
    rivet.run_until_idle()
    status = handle.status()
    assert (str(status), status.reason) == ("set_aside", "diverged")
    assert status.error is not None
    assert "'first'" in status.error.message
    assert 'ctx.removed("first", "step")' in status.error.message
    with pytest.raises(ResultTimeout, match=r"it is set aside \(diverged\): HistoryDiverged: .*'first'"):
        handle.result(timeout=0)
    with pytest.raises(ResultTimeout, match=r"set aside \(diverged\)"):
        async_to_sync(handle.aresult)(timeout=0)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [text.partition(": HistoryDiverged")[0] for text in told] == ["aside_renamed/k: set aside"]
    rivet.deploy(Renamed, run=original)
    handle.wake()
    rivet.run_until_idle()
    assert str(handle.status()) == "sleeping"
    assert handle.status().error is None
    handle.send("go")
    assert handle.result(timeout=0) == "done"


def test_a_damaged_position_is_told_before_any_worker_has_met_it(rivet):
    from rivet_workflows.models import Run

    handle = client.create(Renamed, "damaged")
    for damage in ("{broken", "[]", '{"e": [1]}'):
        Run.objects.filter(actor_id=handle.actor_id).update(inflight=damage)
        status = handle.status()
        assert (str(status), status.reason) == ("set_aside", "unreadable")
    rivet.run_until_idle()
    assert handle.status().reason == "unreadable"
