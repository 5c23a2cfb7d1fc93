"""What must hold, whatever has happened. Those that are asked in the middle of things note what they found on the
world, whose scheduler raises it: a step's function would swallow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rivet_workflows import codec
from rivet_workflows.engine import Machine
from rivet_workflows.records import Blocked, Claimed, CommitItem, EntryStatus, Lifecycle
from rivet_workflows.worker.orders import StepStart

from .memory_worker import MemoryStore
from .workflows import WORKFLOWS, Result

if TYPE_CHECKING:
    from .simulate import Known, World
    from .worker import Worker


class Violation(AssertionError):
    """Something that must never happen has happened."""


def committed(world: World, worker_id: int, item: CommitItem) -> None:
    """One writer: each commit is the next one, and all of one epoch are of one worker."""
    number = world.commits.get(item.actor_id, 0)
    if item.commit_no != number:
        world.broken.append(f"{item.actor_id} commits number {item.commit_no} instead of {number}")
    world.commits[item.actor_id] = number + 1
    newest = world.epochs[item.actor_id] = max(world.epochs.get(item.actor_id, 0), item.epoch)
    if item.epoch < newest:
        world.broken.append(f"{item.actor_id} is written by its owner of epoch {item.epoch}, after {newest}")
    writer = world.writers.setdefault((item.actor_id, item.epoch), worker_id)
    if writer != worker_id:
        world.broken.append(f"two owners of {item.actor_id} in epoch {item.epoch}: {writer}, {worker_id}")


def effect(world: World, worker: Worker, start: StepStart) -> None:
    """A completed step never runs again, and a start is on record before its function is called.

    Between the two a process may be stopped in its tracks, and its actor become another's: so much nobody can help.
    A worker that knows of it begins nothing.
    """
    token = start.token
    run = world.store.position(token.actor_id)
    if worker.session.lost is None and (run is None or run.epoch != token.epoch):
        return
    stored = world.store.history(token.actor_id, after_seq=token.seq - 1, limit=1)
    entry = stored[0] if stored and stored[0].seq == token.seq else None
    if start.is_rollback:
        if entry is None or entry.rolled_back_at is not None:
            world.broken.append(f"rollback of {start.name} (entry {token.seq}) runs again")
    elif entry is not None and entry.status is EntryStatus.COMPLETED:
        world.broken.append(f"completed step {start.name} (entry {token.seq}) runs again")
    ours = run is not None and run.epoch == token.epoch and not start.is_rollback
    if ours and f'"s":{token.seq},' not in run.inflight:
        world.broken.append(f"step {start.name} (entry {token.seq}) runs before its start is on record")


def replay(world: World) -> None:
    """What is stored of a live actor replays, and records nothing new but what has come due."""
    alive = [known for known in world.actors.values() if not known.destroyed]
    if not alive:
        return
    known = world.rng.choice(alive)
    run = world.store.position(known.id)
    if run.blocked is not Blocked.NO or not run.inflight or WORKFLOWS[known.kind].next_run is not None:
        return
    machine, turn = _replayed(world, known)
    if turn.set_aside is not None and turn.set_aside.reason is not Blocked.POISONED:
        world.broken.append(f"the replay of {known.name} is set aside: {turn.set_aside.error}")
    new = [entry for entry in turn.rows if entry.kind.label not in ("sleep", "loop", "message")]
    if new and not any(entry.kind.label in ("sleep", "message") for entry in turn.rows):
        world.broken.append(f"the replay of {known.name} records {new}")
    machine.dispose()


def _replayed(world: World, known: Known) -> tuple[Machine, Any]:
    run, cold = world.store.position(known.id), world.store.get(known.id)
    claimed = Claimed(
        known.id,
        known.kind,
        known.key,
        cold.input,
        cold.created_at,
        run.epoch,
        run.commit_no,
        run.next_seq,
        run.inflight,
        world.store.history(known.id),
    )
    machine = Machine(world.program(claimed, "v1"), claimed, codec, world.limits.engine)
    return machine, machine.start(world.clock.at)


def all_over(world: World) -> bool:
    """Is no run left that could go on?"""
    ends = (Blocked.OVER, Blocked.POISONED)
    if isinstance(world.store, MemoryStore):
        return all(row.blocked in ends for row in world.store.rows.values())
    # Asked all the time: not through the ORM.
    asked = "SELECT 1 FROM rivet_run WHERE blocked NOT IN (%s, %s) LIMIT 1"
    return not world.store.query(asked, [int(end) for end in ends])


def nothing_is_left(world: World) -> None:
    """Left alone for long enough, the fleet has received every message that somebody waits for."""
    for known in world.actors.values():
        run = world.store.position(known.id)
        if run is None or run.blocked is not Blocked.NO or known.kind == "deadline":
            continue
        left = world.store.messages(known.id)
        if left and WORKFLOWS[known.kind].messages:
            raise Violation(
                f"{known.name} has left {len(left)} messages: owner {run.owner_id}, next wake {run.wake_at}, "
                f"{run.inflight}"
            )


def at_the_end(world: World, known: Known) -> None:
    """Each run is over, as it should be, with the state that the model has."""
    if known.destroyed:
        if world.store.get(known.id) is not None:
            raise Violation(f"{known.name} was destroyed and is there")
        return
    expect = WORKFLOWS[known.kind]
    run, result = world.store.position(known.id), result_of(world, known)
    wanted = Blocked.POISONED if expect.set_aside and not known.cancelled else Blocked.OVER
    if run.blocked is not wanted:
        raise Violation(
            f"{known.name} is stuck: {run.blocked.name} owner {run.owner_id}, next wake {run.wake_at}, "
            f"{result.error} {run.inflight} {world.store.messages(known.id)}"
        )
    if result.state["acted"] != known.acted:
        raise Violation(f"{known.name}: {known.acted} actions, the state has {result.state['acted']}")
    if known.cancelled:
        if result.lifecycle is not Lifecycle.CANCELLED:
            raise Violation(f"{known.name} was cancelled and is {result.lifecycle.label}")
        if result.state["got"] != known.sent[: len(result.state["got"])]:
            raise Violation(f"{known.name} received {result.state['got']}, sent {known.sent}")
        return
    try:
        expect.check(result)
    except AssertionError as exc:
        raise Violation(f"{known.name}: {exc}") from exc
    if result.lifecycle is Lifecycle.COMPLETED and not known.pruned and expect.next_run is None:
        _same_again(world, known, result)


def _same_again(world: World, known: Known, result: Result) -> None:
    """Its history replays to the same result."""
    machine, turn = _replayed(world, known)
    output = None if turn.outcome is None or turn.outcome.output is None else codec.loads(turn.outcome.output)
    if turn.outcome is None or output != result.output:
        raise Violation(
            f"the history of {known.name} replays to {turn.outcome}, not to {result.output!r}: {turn.set_aside}"
        )
    machine.dispose()


def result_of(world: World, known: Known) -> Result:
    """What is stored of an actor."""
    store, cold = world.store, world.store.get(known.id)
    events = [
        codec.loads(event.payload) for event in store.events(known.id, limit=10_000) if event.name == "got"
    ]
    replies = [store.reply(message_id) for message_id in known.message_ids]
    return Result(
        cold.lifecycle,
        cold.error,
        None if cold.output is None else codec.loads(cold.output),
        state_of(store, known),
        None if known.pruned else events,
        known.sent,
        len(store.messages(known.id)),
        [None if reply is None else (reply[0], codec.loads(reply[1] or "null")) for reply in replies],
    )


def state_of(store: Any, known: Known) -> dict[str, Any]:
    """Its state, decoded."""
    state: Any = codec.loads(store.load_state(known.id)[1])
    return dict(state)
