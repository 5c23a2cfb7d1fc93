"""Events as server-sent events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient

from rivet_workflows import client
from rivet_workflows.api import streaming
from rivet_workflows.client import bells
from rivet_workflows.models import Event
from tests.client.shop import Cart

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    bells.shutdown()


@pytest.fixture
def cart():
    return client.create(Cart, "c-1")


def parsed(chunk):
    """``(id, event, data)`` of the messages in a piece of the stream."""
    found = []
    for block in chunk.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def stream(user, cart, act, *, query="", headers=None):
    """What comes: ``act`` is given a function that reads until so many messages are there."""

    async def scenario():
        browser = AsyncClient()
        await browser.aforce_login(user)
        response: Any = await browser.get(
            f"/rivet/actors/{cart.actor_id}/events/stream{query}",
            headers={"Accept": "text/event-stream"} | (headers or {}),
        )
        assert response["Content-Type"] == "text/event-stream"
        chunks = aiter(response)

        async def read(count):
            found: list[Any] = []
            while len(found) < count:
                found += parsed((await asyncio.wait_for(anext(chunks), 20)).decode())
            return found

        try:
            return await act(read, chunks)
        finally:
            await response.streaming_content.aclose()

    return async_to_sync(scenario)()


def test_what_was_told_and_what_is_told_now(user, cart):
    cart.add({"sku": "a"})

    async def act(read, chunks):
        first = await read(1)
        await cart.aadd({"sku": "b"})
        return first + await read(1)

    found = stream(user, cart, act)
    assert [(seq, name, data["payload"]) for seq, name, data in found] == [
        (1, "changed", 1),
        (2, "changed", 2),
    ]
    assert set(found[0][2]) == {"seq", "name", "payload", "created_at"}


def test_it_resumes_after_the_last_event_seen(user, cart):
    for sku in "abc":
        cart.add({"sku": sku})

    async def act(read, chunks):
        return [seq for seq, _, _ in await read(1)]

    assert stream(user, cart, act, headers={"Last-Event-ID": "2"}) == [3]
    assert stream(user, cart, act, query="?after=2") == [3]


def test_a_gap_is_told(user, cart):
    for sku in "abc":
        cart.add({"sku": sku})
    Event.objects.filter(actor_id=cart.actor_id, seq__lte=2).delete()

    async def act(read, chunks):
        return [(seq, name) for seq, name, _ in await read(2)]

    assert stream(user, cart, act) == [(2, "gap"), (3, "changed")]


def test_it_keeps_alive_and_ends_with_the_actor(user, cart, monkeypatch):
    monkeypatch.setattr(streaming, "KEEP_ALIVE", 0.02)

    async def act(read, chunks):
        assert (await anext(chunks)).startswith(b"retry: ")
        assert await anext(chunks) == b": still there\n\n"
        await cart.adestroy()
        return [chunk async for chunk in chunks if chunk != b": still there\n\n"]

    assert stream(user, cart, act) == []


def test_without_asgi_it_gives_what_there_is(api, cart):
    cart.add({"sku": "a"})
    response = api.get(
        f"/rivet/actors/{cart.actor_id}/events/stream", headers={"Accept": "text/event-stream"}
    )
    text = b"".join(response.streaming_content).decode()
    assert text.startswith("retry: ")
    assert [seq for seq, _, _ in parsed(text)] == [1]


def test_errors_are_json(anonymous, api, cart):
    url = f"/rivet/actors/{cart.actor_id}/events/stream"
    assert anonymous.get(url, headers={"Accept": "text/event-stream"}).json()["code"] == "not_authenticated"
    assert api.get(f"{url}?after=x").status_code == 422
