"""Events over a WebSocket: rows first, so that a subscriber resumes after the last one it saw."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import async_to_sync

from rivet_workflows.client import bells, looking
from rivet_workflows.models import Event
from rivet_workflows.realtime import hub as hubs
from tests.realtime.browser import connected

pytestmark = pytest.mark.django_db


def run(scenario):
    return async_to_sync(scenario)()


async def told(browser, count):
    frames = [await browser.receive() for _ in range(count)]
    assert {frame["type"] for frame in frames} <= {"event", "gap"}
    return [frame.get("seq", (frame.get("from"), frame.get("to"))) for frame in frames]


PATH = "/ws/rivet/feed/1/"


def test_a_evt_01_what_is_subscribed_to_comes_in_order_and_nothing_else(feed):
    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", events=["moved", "stopped"])
            await browser.settled()
            await feed.atell("moved", "other", "stopped")
            first = await browser.receive()
            assert first == {"type": "event", "seq": 1, "name": "moved", "payload": {"about": "moved"}}
            assert await told(browser, 1) == [3]
            await browser.send(type="unsubscribe", events=["moved"])
            await browser.settled()
            await feed.atell("moved", "stopped")
            assert await told(browser, 1) == [5]
            assert await browser.quiet()

    run(scenario)


def test_a_evt_03_what_was_told_before_subscribing_does_not_come(feed):
    feed.tell("moved")

    async def scenario():
        async with connected(PATH) as browser:
            await feed.atell("moved")
            await browser.send(type="subscribe", events=["moved"])
            await browser.settled()
            await feed.atell("moved")
            assert await told(browser, 1) == [3]

    run(scenario)


def test_resuming_after_the_last_one_seen(feed):
    feed.tell("moved", "other", "moved", "moved")

    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", events=["moved"], after=1)
            assert await told(browser, 2) == [3, 4]
            await feed.atell("moved")
            assert await told(browser, 1) == [5]

    run(scenario)


def test_a_subscription_with_an_id_is_answered_with_where_it_begins(feed):
    feed.tell("moved", "moved")

    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", id="s1", events=["moved"])
            assert await browser.receive() == {"type": "result", "id": "s1", "seq": 2}
            await browser.send(type="subscribe", id="s2", events=["secret"])
            assert (await browser.receive())["id"] == "s2"

    run(scenario)


def test_all_events(feed):
    feed.tell("a", "b")

    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", after=0)
            assert await told(browser, 2) == [1, 2]
            await feed.atell("c")
            assert await told(browser, 1) == [3]
            await browser.send(type="unsubscribe")
            await browser.settled()
            await feed.atell("d")
            assert await browser.quiet()

    run(scenario)


def test_what_is_no_longer_kept_is_told_as_a_gap(feed):
    feed.tell(*["moved"] * 5)
    Event.objects.filter(actor_id=feed.actor_id, seq__lte=3).delete()

    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", events=["moved"], after=1)
            assert await told(browser, 3) == [(2, 3), 4, 5]

    run(scenario)


def test_a_gap_up_to_the_newest(feed):
    feed.tell(*["moved"] * 5)
    Event.objects.filter(actor_id=feed.actor_id).delete()

    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", events=["moved"], after=2)
            assert await told(browser, 1) == [(3, 5)]
            await feed.atell("moved")
            assert await told(browser, 1) == [6]

    run(scenario)


def test_an_after_beyond_the_newest_waits_for_it(feed):
    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", events=["moved"], after=2)
            await browser.settled()
            await feed.atell("moved", "moved", "moved")
            assert await told(browser, 1) == [3]

    run(scenario)


def test_a_evt_02_one_refused_name_refuses_the_whole_subscription(feed):
    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", events=["moved", "secret"])
            assert (await browser.receive())["code"] in ("permission_denied", "not_authenticated")
            await feed.atell("moved", "secret")
            assert await browser.quiet()

    run(scenario)


def test_events_that_no_bell_told_of_are_found_by_looking(feed, monkeypatch):
    """As with a worker in another process, an in-memory channel layer and no bell between them."""
    monkeypatch.setattr(hubs, "POLL", 0.05)
    monkeypatch.setattr(bells, "announce", lambda **_: None)

    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", events=["moved"])
            await browser.settled()
            await feed.atell("moved")
            assert await told(browser, 1) == [1]

    run(scenario)


def test_many_subscribers_cost_one_read(feed, monkeypatch):
    reads = []
    real = looking.events_of

    def counted(*args, **kwargs):
        reads.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(looking, "events_of", counted)
    monkeypatch.setattr(hubs, "POLL", 60)

    async def scenario():
        async with connected(PATH) as one, connected(PATH) as two, connected(PATH) as three:
            for browser in (one, two, three):
                await browser.send(type="subscribe", events=["moved"])
                await browser.settled()
            await feed.atell("moved", "moved")
            hubs.current_hub().hint(feed.actor_id, 2)
            for browser in (one, two, three):
                assert await told(browser, 2) == [1, 2]

    run(scenario)
    assert len(reads) <= 2


def test_a_late_reader_catches_up_from_the_database(feed, monkeypatch):
    monkeypatch.setattr(hubs, "KEPT", 3)
    monkeypatch.setattr(looking, "PAGE", 4)

    async def scenario():
        async with connected(PATH) as browser:
            await browser.send(type="subscribe", events=["moved"])
            await browser.settled()
            await feed.atell(*["moved"] * 25)
            assert await told(browser, 25) == list(range(1, 26))
            await browser.send(type="subscribe", events=["moved"], after=5)
            assert await told(browser, 20) == list(range(6, 26))

    run(scenario)


def test_the_hub_forgets_actors_that_nobody_listens_to(feed):
    async def scenario():
        async with connected(PATH) as browser:
            await browser.settled()
            assert hubs.current_hub()._feeds
        hub = hubs.current_hub()
        await asyncio.sleep(0)
        assert not hub._feeds
        assert hub._poller is None

    run(scenario)


@pytest.mark.django_db(transaction=True)
async def test_in_plain_asyncio_as_under_a_real_server(feed):
    async with connected(PATH) as browser:
        await browser.send(type="subscribe", events=["moved"])
        await browser.settled()
        await feed.atell("moved")
        assert await told(browser, 1) == [1]
