"""Actors for the WebSocket tests, and no task or connection left over."""

from __future__ import annotations

import pytest

from rivet_workflows import Actor, action, client
from rivet_workflows.client import bells
from rivet_workflows.client.twins import pool
from tests.client.conftest import shop_actors  # noqa: F401  an autouse fixture


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    assert not bells._exchange._callbacks, "somebody still listens"
    bells.shutdown()
    pool.shutdown()


@pytest.fixture(autouse=True)
def connection_of_the_test_stays_open(monkeypatch):
    """Channels closes old connections when a socket ends; here they are the test's own, in a transaction."""
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)


@pytest.fixture
def user(django_user_model):
    return django_user_model.objects.create_user("ann")


@pytest.fixture
def feed():
    class Feed(Actor):
        @action
        def tell(self, c, *names):
            for name in names:
                c.broadcast(name, {"about": name})

        def has_permission(self, request, operation, name):
            return name != "secret"

    return client.create(Feed, 1)
