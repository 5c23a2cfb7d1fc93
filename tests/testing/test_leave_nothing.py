"""One workflow test in every kind of test there is: it passes, and nothing of it is left (BR-109, 111, 148, 149)."""

from __future__ import annotations

import threading

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.models import Model
from django.test import TestCase, TransactionTestCase

from rivet_workflows import Actor, client
from rivet_workflows.client import waiting
from rivet_workflows.registry import registry
from rivet_workflows.store import get_store
from rivet_workflows.testing import RivetTestMixin
from rivet_workflows.worker import guard
from tests.testing.auction import Bid, declare


def look(blocker):
    with blocker.unblock():
        models: list[type[Model]] = [*apps.get_app_config("rivet_workflows").get_models(), Group]
        for model in models:
            assert not model._default_manager.exists(), model


def declared_here():
    """The actors of this module that are registered. Others come and go with the folders that tests are in."""
    return {name: kind for name, kind in registry.snapshot().items() if kind.cls.__module__ == __name__}


@pytest.fixture(autouse=True)
def nothing_is_left(request, django_db_setup, django_db_blocker):
    """Looks before each test, and after those whose database fixture has ended by then."""
    look(django_db_blocker)
    before = declared_here(), get_store().clock, set(threading.enumerate())
    yield
    if request.node.get_closest_marker("django_db") is None:
        look(django_db_blocker)
    assert declared_here() == before[0]
    assert get_store().clock is before[1]
    assert waiting._driver is None
    assert guard._refuse not in connection.execute_wrappers
    left = {thread.name for thread in set(threading.enumerate()) - before[2]}
    assert not [name for name in left if "rivet" in name]


def play(rivet):
    """Steps of both kinds write a row that the test sees, and see the test's."""
    where = threading.get_ident()
    Group.objects.create(name="the test's")

    def in_a_def(step):
        assert threading.get_ident() == where
        assert Group.objects.filter(name="the test's").exists()
        Group.objects.create(name="a def step's")

    async def in_an_async_def(step):
        assert threading.get_ident() == where
        assert await Group.objects.filter(name="a def step's").aexists()
        await Group.objects.acreate(name="an async def step's")
        await sync_to_async(lambda: Group.objects.create(name="a helper's"))()
        step.state.result = "seen"
        return Group.__name__

    Auction = declare()

    class Writes(Actor):
        state = Auction.state

        async def run(self, ctx):
            await ctx.step(in_a_def)
            await ctx.sleep("rest", 60)
            return await ctx.step(in_an_async_def)

    auction = rivet.client.get_or_create(Auction, "item-1")
    auction.send(Auction.bids, Bid(5))
    writes = rivet.client.create(Writes, "w")
    rivet.run_until_idle()
    rivet.crash()
    rivet.advance(hours=1)
    assert auction.result() == "receipt-5"
    assert writes.result() == "Group"
    assert auction.send("bids", Bid(6), wait=True, timeout=5).status == "timed_out"
    assert Group.objects.count() == 4


async def aplay(rivet):
    Auction = declare()
    await Group.objects.acreate(name="the test's")

    async def look(step, amount):
        assert await Group.objects.acount() == 1
        return f"receipt-{amount}"

    auction = await client.aget_or_create(Auction, "item-1")
    await auction.asend("bids", Bid(5))
    rivet.stub_step("charge-card", look)
    await rivet.arun_until_idle()
    await rivet.acrash()
    await rivet.aadvance(hours=1)
    assert await auction.aresult() == "receipt-5"
    assert (await auction.aget_state()).result == "sold"
    assert [entry.name for entry in await rivet.ahistory(auction)][-1] == "close"
    assert await rivet.amessages(auction) == []
    assert await rivet.aevents(auction) == []
    assert await rivet.atimers(auction) == []


class InATestCase(RivetTestMixin, TestCase):
    def test_sync(self):
        play(self.rivet)

    async def test_async(self):
        await aplay(self.rivet)

    def test_a_transaction_of_the_tests(self):
        with transaction.atomic():
            play_without_waiting(self.rivet)


class InATransactionTestCase(RivetTestMixin, TransactionTestCase):
    rivet_mode = "parked"

    def test_sync(self):
        play(self.rivet)

    async def test_async(self):
        await aplay(self.rivet)


def test_with_db(rivet):
    play(rivet)


def test_with_db_again(rivet):
    play(rivet)


@pytest.mark.django_db(transaction=True)
def test_with_a_real_transaction(rivet):
    play(rivet)


async def test_async(rivet):
    await aplay(rivet)


@pytest.mark.django_db(transaction=True)
async def test_async_with_a_real_transaction(rivet):
    await aplay(rivet)


def play_without_waiting(rivet):
    before = connection.savepoint_ids[:]
    auction = rivet.client.get_or_create(declare(), "item-1")
    rivet.advance(hours=24)
    assert auction.get_state().result == "expired"
    assert connection.in_atomic_block
    assert connection.is_usable()
    assert connection.savepoint_ids == before


def test_the_callers_transaction_is_left_alone(rivet):
    with transaction.atomic():
        play_without_waiting(rivet)


async def test_the_sync_form_says_what_to_use_in_async_code(rivet):
    with pytest.raises(RuntimeError, match=r"await rivet\.aadvance"):
        rivet.advance(hours=1)


def test_after_all_others():
    """Runs last, as it needs no database: what the flushing tests left would be seen before it."""
