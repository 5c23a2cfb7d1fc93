"""Behind a transaction pooler nothing is left in a server's session, and nothing is listened for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections

from rivet_workflows.store.listening import Listener
from rivet_workflows.store.store import Store
from tests.store.conftest import TYPES, item


@pytest.fixture
def pooled(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A worker's connection, of a project that says it goes through a pooler."""
    if store.vendor != "postgresql":
        pytest.skip("PostgreSQL alone has poolers of that kind")
    connection = connections[store.alias]
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    store.tune_connection()
    yield store
    connection.close()


def test_a_worker_leaves_no_settings_and_no_prepared_statements_behind(pooled: Store, worker: int, claimed):
    (one,) = claimed()
    (result,) = pooled.commit_group([item(one)])
    assert result.outcome.name == "OK"
    assert pooled.query("SHOW enable_seqscan") == [("on",)]
    assert pooled.query("SHOW statement_timeout") == [("0",)]
    assert pooled.query("SELECT count(*) FROM pg_prepared_statements") == [(0,)]


def test_its_statements_run_with_their_settings_all_the_same(pooled: Store):
    ask = "SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')"
    assert pooled.fast(ask) == [("off", "200ms")]  # type: ignore[attr-defined]
    with pooled.atomic():
        assert pooled.fast(ask) == [("off", "200ms")]  # type: ignore[attr-defined]


def test_bells_are_heard_over_a_direct_connection_alone(pooled: Store, settings):
    listener = Listener(pooled.alias, worker_id=pooled.register_worker("host", 1, TYPES))
    assert not listener.has_bell
    listener.close()
    settings.RIVET_WORKFLOWS = {"LISTEN_DSN": "postgres://somewhere"}
    listener = Listener(pooled.alias, news=True)
    assert listener.has_bell
    listener.close()


def test_steps_do_not_wait_for_a_commit_that_leaves_no_time_for_them(pooled: Store, worker: int, claimed):
    """Its four round trips have the thread to themselves: whoever would start steps meanwhile must do it before."""
    assert not pooled.works_apart
    asked: list[int] = []
    pooled.commit_group([item(claimed()[0])], meanwhile=asked.append)
    assert asked == []
