"""What users of other engines met, of workers: see ``tests/known_failures.md``."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import OperationalError, connections

from rivet_workflows import Actor, Queue, RivetError, action, client
from rivet_workflows.models import Worker as WorkerRow
from tests import sidedb
from tests.waiting import until
from tests.worker.fleet import Faulty, Workers
from tests.worker.support import LONG


@sidedb.each
def test_br_001_an_outage_in_the_middle_of_a_sweep_leaves_nobody_behind(workers: Workers):
    class Left(Actor):
        async def run(self, ctx):
            await ctx.step("one", done)

    handles = [client.create(Left, str(n)) for n in range(250)]
    store = workers.side.store
    types = {"left": "other code"}
    dead = store.register_worker("gone", 1, types)
    held = 0
    while held < len(handles):
        held += len(store.claim(dead, types, 200)[0])
    WorkerRow.objects.using(workers.side.alias).update(heartbeat_at=1)
    faulty, away = Faulty(store), OperationalError("the server has gone away")
    # Away at the first portion, at the second, and as the dead worker's row goes.
    faulty.fail |= {"take_over": [away, away, None, away], "forget_worker": [away], "load": [away]}
    worker = workers.start(faulty, habits={"heartbeat": 1})
    until(lambda: all(str(handle.status()) == "completed" for handle in handles))
    assert "take_over" in faulty.calls
    assert worker.wait(0) is None


def done(step: Any) -> None:
    return None


@sidedb.each
def test_br_045_a_parent_that_waits_for_its_child_is_in_nobodys_way(workers: Workers):
    class Inner(Actor):
        async def run(self, ctx):
            return await ctx.step("work", done_async)

    class Outer(Actor):
        async def run(self, ctx):
            await ctx.step("first", done_async)
            return await ctx.child("inner", Inner, str(ctx.key))

    async def done_async(step: Any) -> str:
        return str(step.key)

    handles = [client.create(Outer, str(n)) for n in range(5)]
    workers.run_dry(concurrency=1, threads=1)
    assert [handle.result(timeout=0) for handle in handles] == [str(n) for n in range(5)]


@sidedb.each
def test_br_081_steps_that_take_all_threads_do_not_hold_up_scheduled_actions(workers: Workers):
    go, inside, fired = threading.Event(), threading.Event(), threading.Event()

    class Busy(Actor):
        async def run(self, ctx):
            await ctx.step("block", self.block)

        def block(self, step):
            inside.set()
            assert go.wait(LONG)

    class Bell(Actor):
        @action
        def ring_soon(self, c):
            c.schedule.after(0.05, "ring")

        @action
        def ring(self, c):
            fired.set()

    busy = client.create(Busy, "b")
    workers.start(threads=1)
    assert inside.wait(LONG)
    client.create(Bell, "b").call("ring_soon")
    assert fired.wait(LONG)
    go.set()
    until(lambda: str(busy.status()) == "completed")


@sidedb.on_servers
def test_br_112_whatever_is_done_to_an_actor_at_the_same_time_nobody_hears_of_a_deadlock(workers: Workers):
    if workers.side.store.vendor == "mysql":
        pytest.skip("InnoDB locks gaps: seldom, a caller there hears of a deadlock, and has to ask again")

    class Mixed(Actor):
        state = dict
        work = Queue(int)

        async def run(self, ctx):
            async for it in ctx.loop("work", history_prune_interval=2, history_size=1):
                message = await it.queue.next("wait", names=[self.work])
                await it.step("note", self.note, message.body, atomic=bool(message.body % 2))

        def note(self, step, n):
            step.state[str(n)] = n
            step.broadcast("noted", n)

        @action
        def mark(self, c, n: int):
            c.state[f"mark-{n}"] = n
            c.broadcast("marked", n)

    keys = [str(n) for n in range(6)]
    failed: list[BaseException] = []

    def mix(number: int) -> None:
        try:
            for n in range(24):
                handle = client.get_or_create(Mixed, keys[(number + n) % len(keys)])
                _one_of_many(handle, number * 7 + n)
        except BaseException as error:
            failed.append(error)
        finally:
            connections.close_all()

    workers.start()
    workers.start()
    threads = [threading.Thread(target=mix, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * LONG)
        assert not thread.is_alive()
    assert failed == []


def _one_of_many(handle: Any, number: int) -> None:
    """Our own errors are answers: the actor is gone, is busy, has no such thing. A deadlock is none."""
    operations = [
        lambda: handle.send("work", number),
        lambda: handle.call("mark", number),
        handle.pause,
        handle.resume,
        lambda: handle.send("work", number, dedupe_key=str(number % 3)),
        handle.cancel,
        handle.recover,
        handle.replay_from,
        handle.destroy,
    ]
    try:
        operations[number % len(operations)]()
    except RivetError:
        pass
