"""A group of commit items, turned from one list per actor into one list per kind of write.

Shared by both writers (the one statement of PostgreSQL, the sequence of the others), so both mean the same by
an item. ``k`` is an item's number in the group, counted from 1; every list refers to items by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rivet_workflows.records import Commit, CommitItem, CommitResult, Entry, Outgoing, Prune

#: How long an answer waits for a sender to fetch it.
REPLY_KEPT = 24 * 3600 * 1_000_000


@dataclass(slots=True, frozen=True)
class Deletion:
    """A message that goes. ``must``: it has to be there. ``reply``: the answer to store for its sender."""

    k: int
    message_id: int
    must: bool
    replies: bool = False
    reply: str | None = None


@dataclass(slots=True)
class Group:
    """The columns of a group."""

    items: Sequence[CommitItem]
    rows: list[tuple[int, Entry]] = field(default_factory=list)
    rolled_back: list[tuple[int, int, int]] = field(default_factory=list)
    prunes: list[tuple[int, Prune]] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    #: ``(k, message id, seq of the holder or None)``; all must be there, except those that are let go.
    holds: list[tuple[int, int, int | None]] = field(default_factory=list)
    unanswered: list[tuple[int, int]] = field(default_factory=list)
    sends: list[tuple[int, Outgoing]] = field(default_factory=list)
    #: Some of the sends have a dedupe key.
    deduped: bool = False
    events: list[tuple[int, int, str, str]] = field(default_factory=list)
    #: Items that clients may wait for.
    news: list[int] = field(default_factory=list)
    states: bool = False
    #: Some items clear the owner, or finish or destroy the actor.
    ends: bool = False
    finishes: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    destroys: list[int] = field(default_factory=list)


def group(items: Sequence[CommitItem]) -> Group:
    """The columns of ``items``. Contradictions inside an item are resolved here: what is taken or completed
    is not also held, what is pruned is not inserted first."""
    g = Group(items)
    for k, item in enumerate(items, 1):
        if item.rows:
            _rows(g, k, item)
        elif item.rolled_back or item.prunes:
            g.rolled_back += [(k, seq, at) for seq, at in item.rolled_back]
            g.prunes += [(k, prune) for prune in item.prunes]
        if item.takes or item.completes or item.holds or item.unholds or item.unanswered:
            _messages(g, k, item)
        for outgoing in item.sends:
            g.sends.append((k, outgoing))
            g.deduped = g.deduped or outgoing.dedupe_hash is not None
        if item.events:
            g.events += [(k, n, name, payload) for n, (name, payload) in enumerate(item.events, 1)]
        if item.is_news():
            g.news.append(k)
        if item.state is not None:
            g.states = True
        if item.finish is not None or item.block is not None or item.destroy:
            g.ends = True
            if item.destroy:
                g.destroys.append(k)
            elif item.finish is not None:
                g.finishes.append(k)
            elif item.block is not None:
                g.blocks.append(k)
    return g


def _rows(g: Group, k: int, item: CommitItem) -> None:
    rows = item.rows
    if item.rolled_back:
        times = dict(item.rolled_back)
        rows = [replace(r, rolled_back_at=times.pop(r.seq)) if r.seq in times else r for r in rows]
        g.rolled_back += [(k, seq, at) for seq, at in times.items()]
    if item.prunes:
        rows = [row for row in rows if not any(prune.covers(row) for prune in item.prunes)]
        g.prunes += [(k, prune) for prune in item.prunes]
    g.rows += [(k, row) for row in rows]


def _messages(g: Group, k: int, item: CommitItem) -> None:
    held = dict(item.holds)
    answers = dict(item.completes)
    taken = set(item.takes)
    for message_id, answer in answers.items():
        must = message_id in taken or message_id in held
        g.deletions.append(Deletion(k, message_id, must, True, answer))
    g.deletions += [Deletion(k, message_id, True) for message_id in taken if message_id not in answers]
    gone = taken | answers.keys()
    g.holds += [(k, message_id, seq) for message_id, seq in held.items() if message_id not in gone]
    g.holds += [(k, message_id, None) for message_id in item.unholds if message_id not in gone | held.keys()]
    g.unanswered += [(k, message_id) for message_id in item.unanswered if message_id not in answers]


def commit_in_halves(
    items: Sequence[CommitItem], attempt: Callable[[Sequence[CommitItem]], list[CommitResult] | str]
) -> list[CommitResult]:
    """Commit ``items`` by ``attempt``, which returns the results or, for an error of content, its text
    (having written nothing). Such a group is split in halves until the one actor is left whose content it
    is."""
    outcome = attempt(items)
    if not isinstance(outcome, str):
        return outcome
    if len(items) == 1:
        return [CommitResult(items[0].actor_id, Commit.REFUSED, outcome)]
    middle = len(items) // 2
    return commit_in_halves(items[:middle], attempt) + commit_in_halves(items[middle:], attempt)
