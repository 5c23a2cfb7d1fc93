"""The store in memory keeps the SQL stores' contract: their own tests, as far as these ask verbs alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from rivet_workflows.records import Claimed
from tests.simulation.memory_worker import MemoryStore
from tests.store.conftest import TYPES
from tests.store.test_children import (  # noqa: F401
    test_a_child_that_ended_and_runs_again_wakes_who_waits_when_it_ends_again,
)
from tests.store.test_claims import (  # noqa: F401
    test_a_claim_goes_on_while_candidates_fill_the_limit,
    test_a_released_holder_is_fenced,
    test_heartbeats_and_the_dead,
    test_load_reads_only_what_is_still_held,
    test_take_over_fences_the_dead,
    test_wakes_of_held_actors_do_not_clog_the_head,
    test_what_a_forgotten_worker_held_is_free,
)
from tests.store.test_commit import (  # noqa: F401
    test_a_lone_surrogate_is_refused_alone,
    test_a_state_is_written_only_over_the_version_it_was_made_from,
    test_a_step_may_destroy_its_actor,
    test_an_unknown_outcome_is_resolved,
    test_another_actors_message_cannot_be_taken,
    test_events_are_numbered_across_commits,
    test_everything_at_once,
    test_pruning_takes_a_range_of_scopes_and_leaves_handlers,
    test_what_is_committed_is_loaded_as_it_was,
)
from tests.store.test_looks import (  # noqa: F401
    test_a_holder_that_has_lost_the_actor_does_not_take_away_the_wakes_of_the_next,
    test_a_truncated_queue_cuts_the_others_at_its_horizon,
    test_an_actor_claimed_under_a_forgotten_id_is_found,
    test_many_queues_of_one_actor,
    test_names_are_told_apart_by_case,
    test_queues_are_merged_by_arrival,
)

_keys = itertools.count()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(lambda: time.time_ns() // 1_000)


@pytest.fixture
def worker(store: MemoryStore) -> int:
    return store.register_worker("host", 1, TYPES)


@pytest.fixture
def make(store: MemoryStore) -> Callable[..., Any]:
    return lambda name="order", **more: store.create_actor(name, f'["{next(_keys)}"]', **more)[0]


@pytest.fixture
def claimed(store: MemoryStore, worker: int, make: Callable[..., Any]) -> Callable[..., list[Claimed]]:
    def claim(count: int = 1, **more: Any) -> list[Claimed]:
        ids = {make(**more).id for _ in range(count)}
        got, _ = store.claim(worker, TYPES, 1_000)
        return sorted((c for c in got if c.actor_id in ids), key=lambda c: c.actor_id)

    return claim
