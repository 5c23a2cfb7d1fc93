"""What people do to actors while they run: cancel, recover, pause, wake, run again, destroy, prune."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from rivet_workflows.client import edits
from rivet_workflows.exceptions import ActorBusy
from rivet_workflows.records import Blocked, Lifecycle
from rivet_workflows.store.rows import Edit, RunRow

from .workflows import WORKFLOWS

if TYPE_CHECKING:
    from .simulate import Known, World

#: Microseconds that are kept of what is over, in the worlds that prune.
RETENTION = 3_000_000


def operate(world: World) -> None:
    """One operation on one actor."""
    alive = [known for known in world.actors.values() if not known.destroyed]
    if not alive:
        return
    known = world.rng.choice(alive)
    operation = world.rng.choice([cancel, recover, pause, resume, wake, replay_from, destroy, prune])
    with suppress(ActorBusy):
        if operation(world, known):
            world.note(f"{operation.__name__} {known.name}")
            world.ring([known.id])


def cancel(world: World, known: Known) -> bool:
    if world.rng.random() < 0.5 or not world.store.cancel(known.id):
        return False
    known.cancelled, known.paused = True, False
    return True


def recover(world: World, known: Known) -> bool:
    """As the client does it. What was pruned has no history to go on from."""
    run = world.store.position(known.id)
    if known.pruned or run.lifecycle not in (Lifecycle.CANCELLED, Lifecycle.LIVE):
        return False

    def change(run: RunRow) -> Edit | None:
        return edits.recover(run, world.store.history(known.id), world.clock.at)

    done: bool = world.store.recover(known.id, change)
    if done:
        known.cancelled = False
    return done


def pause(world: World, known: Known) -> bool:
    done: bool = world.store.pause(known.id)
    known.paused = known.paused or done
    return done


def resume(world: World, known: Known) -> bool:
    done: bool = world.store.resume(known.id)
    known.paused = known.paused and not done
    return done


def wake(world: World, known: Known) -> bool:
    done: bool = world.store.wake(known.id)
    return done


def replay_from(world: World, known: Known) -> bool:
    """Run again from one of its entries, or from the start."""
    if not WORKFLOWS[known.kind].replays or known.pruned:
        return False
    rows = world.store.history(known.id)
    target = world.rng.choice([None, *(row.seq for row in rows)])

    def change(run: RunRow) -> Edit | None:
        found = edits.replay_from(run, world.store.history(known.id), target, world.clock.at)
        if found is None:
            return None
        first, edit = found
        return replace(
            edit,
            delete_from=first,
            unhold_from=first,
            blocked=Blocked.NO,
            lifecycle=Lifecycle.LIVE,
            clear_result=True,
        )

    done: bool = world.store.edit_run(known.id, change)
    if done:
        known.cancelled = known.paused = False
    return done


def destroy(world: World, known: Known) -> bool:
    if world.rng.random() < 0.7:
        return False
    known.destroyed = bool(world.store.destroy(known.id))
    return known.destroyed


def prune(world: World, _known: Known) -> bool:
    """What ended long ago loses its history, messages and events."""
    if not world.store.prune(retention=RETENTION):
        return False
    world.pruned_until = world.clock.at - RETENTION
    for known in world.actors.values():
        cold = world.store.get(known.id)
        if cold is not None and cold.finished_at is not None:
            known.pruned = known.pruned or cold.finished_at <= world.pruned_until
    return True


def let_go_on(world: World, known: Known) -> None:
    """At the end nothing stays paused."""
    if known.paused and not known.destroyed:
        resume(world, known)
