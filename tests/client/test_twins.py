"""The async forms: same results, own threads, the caller's transaction where there is one."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connection

from rivet_workflows import ActorNotFound, ResultTimeout, UserError, WorkflowCancelled, client
from rivet_workflows.client import Handle, looking, twins
from tests import sessions
from tests.client import worker_side
from tests.client.helpers import rolled_back
from tests.client.shop import Cart, Line, Order


class TestInsideDjangosAsync:
    """Under ``async_to_sync``, as in async views and async tests: one connection with the caller."""

    pytestmark = pytest.mark.django_db

    def test_everything_has_a_twin_that_does_the_same(self):
        async def scenario():
            cart = await client.aget_or_create(Cart, "c-1")
            assert cart.created
            assert await client.aget(Cart, "c-1") == cart == await client.aget_for_id(cart.actor_id)
            assert await client.alist(Cart, status="live") == [cart]
            assert await cart.acall(Cart.add, Line("a")) == 1
            assert await cart.aadd(Line("b")) == 2
            assert await cart.acall("aadd_slowly", Line("c")) == 3
            assert [line.sku for line in await cart.aget_lines()] == ["a", "b", "c"]
            assert (await cart.asend("notes", "x")).status == "queued"
            assert str(await cart.astatus()) == "idle"
            assert await cart.ahistory() == []
            with pytest.raises(UserError):
                await cart.aadd_and_fail(Line("d"))
            assert await cart.adestroy() is True
            with pytest.raises(ActorNotFound):
                await cart.astatus()
            return await client.acreate(Cart, "c-1")

        assert async_to_sync(scenario)().created

    def test_they_join_the_transaction_around_them(self):
        cart = client.create(Cart, "c-1")

        async def scenario():
            await cart.aadd(Line("a"))
            await cart.asend("notes", "x")

        with rolled_back():
            async_to_sync(scenario)()
        assert cart.get_lines() == []
        assert looking.messages(cart) == []

    def test_waiting_ends_with_an_answer_or_the_timeout(self):
        order = client.create(Order, "o-1")

        async def scenario():
            assert (
                await order.asend("orders", {"order_id": 1}, wait=True, timeout=0.02)
            ).status == "timed_out"
            with pytest.raises(ResultTimeout):
                await order.aresult(timeout=0.02)

        async_to_sync(scenario)()
        worker_side.finish(order, 5)
        assert async_to_sync(order.aresult)() == 5
        worker_side.cancelled(order)
        with pytest.raises(WorkflowCancelled):
            async_to_sync(order.aresult)()

    def test_a_coroutine_that_waits_is_woken_by_the_bell(self):
        from rivet_workflows.client import bells, waiting

        order = client.create(Order, "o-1")

        async def scenario():
            looked = asyncio.Event()
            done: list[str] = []

            def look():
                loop.call_soon_threadsafe(looked.set)
                return done[0] if done else None

            loop = asyncio.get_running_loop()
            waiting_for_it = asyncio.create_task(waiting.await_for(order.actor_id, look, 30))
            await looked.wait()
            done.append("value")
            bells.spread([order.actor_id])
            return await waiting_for_it

        assert async_to_sync(scenario)() == "value"


@pytest.mark.django_db(transaction=True)
async def test_they_work_in_plain_asyncio():
    cart = await client.acreate(Cart, "c-1")
    assert await cart.aadd(Line("a")) == 1
    assert await cart.acall("aadd_slowly", Line("b")) == 2
    assert len(await cart.aget_lines()) == 2


def test_every_blocking_method_of_a_handle_has_a_twin():
    for owner in (Handle, client.Client):
        names = [n for n, f in vars(owner).items() if inspect.isfunction(f) and not n.startswith("_")]
        blocking = [n for n in names if f"a{n}" in names]
        others = {n for n in names if n not in blocking and not (n[0] == "a" and n[1:] in blocking)}
        assert others <= {"act", "deliver"}


def test_the_reserved_action_names_are_a_handles_own():
    from rivet_workflows.declaration import HANDLE_ATTRIBUTES

    own = {name for name in dir(Handle) if not name.startswith("_")}
    assert own == set(HANDLE_ATTRIBUTES)


class TestPool:
    @pytest.fixture
    def pool(self, monkeypatch):
        monkeypatch.setattr(twins, "IDLE", 30)
        pool = twins._Pool()
        yield pool
        pool.shutdown()

    def test_calls_run_at_the_same_time_up_to_a_bound(self, pool):
        barrier = threading.Barrier(8)
        futures = [pool.submit(barrier.wait, 10) for _ in range(8)]
        assert sorted(future.result(10) for future in futures) == list(range(8))
        release = threading.Event()
        many = [pool.submit(lambda: release.wait(10) and threading.current_thread()) for _ in range(100)]
        release.set()
        assert len({future.result(10) for future in many}) <= twins.MAX_THREADS

    def test_an_idle_thread_is_used_again(self, pool):
        first = pool.submit(threading.get_ident).result(10)
        deadline = time.monotonic() + 10
        while not pool._waiting and time.monotonic() < deadline:
            threading.Event().wait(0.001)
        assert pool.submit(threading.get_ident).result(10) == first

    def test_errors_reach_the_caller_and_the_thread_lives_on(self, pool):
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result(10)
        assert pool.submit(lambda: 5).result(10) == 5

    def test_a_thread_without_work_ends(self, monkeypatch):
        monkeypatch.setattr(twins, "IDLE", 0.01)
        pool = twins._Pool()
        thread = pool.submit(threading.current_thread).result(10)
        thread.join(10)
        assert not thread.is_alive()
        assert pool.submit(lambda: 5).result(10) == 5

    def test_shutdown_ends_idle_threads_and_the_pool_stays_usable(self, pool):
        thread = pool.submit(threading.current_thread).result(10)
        pool.shutdown()
        assert not thread.is_alive()
        assert pool.submit(lambda: 5).result(10) == 5

    @pytest.mark.django_db(transaction=True)
    def test_a_broken_connection_is_replaced(self, pool):
        if connection.vendor == "sqlite":
            pytest.skip("a file does not hang up")

        def number():
            return sessions.own(connection)

        first = pool.submit(number).result(10)
        sessions.end(connection, first)
        with pytest.raises(DatabaseError):
            pool.submit(number).result(10)
        assert pool.submit(number).result(10) != first
