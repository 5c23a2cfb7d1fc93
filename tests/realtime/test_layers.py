"""Sockets of actors need no channel layer: events come through the database, whatever becomes of a Redis."""

from __future__ import annotations

import pytest
import redis
from asgiref.sync import async_to_sync

from tests.realtime.browser import connected
from tests.servers import REDIS_URL

pytestmark = pytest.mark.django_db


def layer(url):
    return {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [url]}}}


@pytest.mark.requires_redis
def test_cutting_all_connections_to_redis_cuts_no_subscriber_off(feed, settings):
    settings.CHANNEL_LAYERS = layer(REDIS_URL)

    async def scenario():
        async with connected("/ws/rivet/feed/1/") as browser:
            await browser.send(type="subscribe", events=["moved"])
            await browser.settled()
            for seq in range(1, 4):
                await feed.atell("moved")
                assert (await browser.receive())["seq"] == seq
                with redis.Redis.from_url(REDIS_URL) as server:
                    server.client_kill_filter(_type="normal", skipme=True)

    async_to_sync(scenario)()


def test_a_redis_that_is_not_there_is_not_missed(feed, settings):
    settings.CHANNEL_LAYERS = layer("redis://127.0.0.1:1/0")

    async def scenario():
        async with connected("/ws/rivet/feed/1/") as browser:
            await browser.send(type="subscribe", events=["moved"])
            await browser.settled()
            await feed.atell("moved")
            assert (await browser.receive())["seq"] == 1

    async_to_sync(scenario)()
