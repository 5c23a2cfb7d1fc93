"""Who in this process listens to which actor's events, and one read per actor for all of them.

A thousand consumers that each read on every event would be a thousand queries on one thread (engineering notes,
section 5): the hub reads once and hands the events to all. It reads when it is told to (a hint with the newest ``seq``:
from the process's bell or a channel layer) and asks for the newest ``seq`` of all watched actors every ``POLL``
seconds, so that a lost hint, or a channel layer that does not cross processes, only costs that time.

One hub per event loop. It keeps the last few events of each watched actor and no other state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from uuid import UUID
from weakref import WeakKeyDictionary

from rivet_workflows.client import bells, looking
from rivet_workflows.client.looking import StoredEvent
from rivet_workflows.client.twins import in_thread

__all__ = ["Feed", "Hub", "current_hub"]

logger = logging.getLogger("rivet_workflows.realtime")

#: Seconds between looks for events that no hint told of.
POLL = 1.0
#: Events of an actor that are kept in memory for consumers that are a little behind.
KEPT = 200
#: Events that one query reads.
PAGE = 500

#: Called on the event loop when there is something new (True), or the actor is gone (False).
Listener = Callable[[bool], None]


class Feed:
    """The events of one actor, as far as this process has read them."""

    def __init__(self, actor_id: UUID, seq: int) -> None:
        self.actor_id = actor_id
        #: Up to here everything was read.
        self.seq = seq
        self.listeners: set[Listener] = set()
        self._recent: deque[StoredEvent] = deque(maxlen=KEPT)
        #: The lowest ``after`` that ``_recent`` can answer.
        self._since = seq
        self._reading = asyncio.Lock()

    async def catch_up(self, seq: int | None = None) -> bool:
        """Read what is new, up to ``seq`` at least if that is known. Was there anything?"""
        async with self._reading:
            if seq is not None and seq <= self.seq:
                return False
            before = self.seq
            while True:
                page = await in_thread(looking.events_of, self.actor_id, after=self.seq, limit=PAGE)
                if page.gap is not None:
                    # Pruned before anybody here read them: consumers ask the database and are told of the gap.
                    self._recent.clear()
                    self._since = self.seq = page.gap[1]
                self._remember(page.events)
                if len(page.events) < PAGE:
                    return self.seq > before

    def _remember(self, events: list[StoredEvent]) -> None:
        for event in events:
            if len(self._recent) == KEPT:
                self._since = self._recent[0].seq
            self._recent.append(event)
            self.seq = event.seq

    def recent(self, after: int) -> list[StoredEvent] | None:
        """The events after ``after``; None when they are not in memory (any more)."""
        if after < self._since:
            return None
        return [event for event in self._recent if event.seq > after]

    def tell(self, there: bool) -> None:
        for listener in tuple(self.listeners):
            listener(there)


class Hub:
    """All feeds of one event loop."""

    def __init__(self) -> None:
        self._feeds: dict[UUID, Feed] = {}
        self._bells: dict[UUID, bells.Callback] = {}
        self._poller: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def join(self, actor_id: UUID, listener: Listener) -> Feed | None:
        """Listen to an actor's events from now on; None when there is no such actor."""
        feed = self._feeds.get(actor_id)
        if feed is None:
            seq = (await in_thread(looking.last_events, [actor_id])).get(actor_id)
            if seq is None:
                return None
            # Another consumer may have come while this one was reading.
            feed = self._feeds.setdefault(actor_id, Feed(actor_id, seq))
        feed.listeners.add(listener)
        if actor_id not in self._bells:
            loop = asyncio.get_running_loop()
            self._bells[actor_id] = bells.listen(actor_id, lambda: _call_soon(loop, self.hint, actor_id))
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll(), name="rivet events")
        return feed

    def leave(self, actor_id: UUID, listener: Listener) -> None:
        """Listen no more. Unknown listeners are fine."""
        feed = self._feeds.get(actor_id)
        if feed is None:
            return
        feed.listeners.discard(listener)
        if feed.listeners:
            return
        del self._feeds[actor_id]
        bells.unlisten(actor_id, self._bells.pop(actor_id))
        if not self._feeds and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    def hint(self, actor_id: UUID, seq: int | None = None) -> None:
        """Somebody says that there are new events of this actor, up to ``seq`` if it says so."""
        feed = self._feeds.get(actor_id)
        if feed is not None and (seq is None or seq > feed.seq):
            self._start(self._refresh(feed, seq))

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _refresh(self, feed: Feed, seq: int | None) -> None:
        try:
            if await feed.catch_up(seq):
                feed.tell(True)
        except Exception:
            logger.exception("events of actor %s could not be read; trying again soon", feed.actor_id)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            try:
                await self.look()
            except Exception:
                logger.exception("new events could not be looked for; trying again soon")

    async def look(self) -> None:
        """Ask for the newest ``seq`` of all watched actors, and read where there is something new."""
        watched = list(self._feeds.values())
        newest = await in_thread(looking.last_events, [feed.actor_id for feed in watched])
        for feed in watched:
            seq = newest.get(feed.actor_id)
            if seq is None:
                feed.tell(False)
            elif seq > feed.seq:
                await self._refresh(feed, seq)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[UUID], None], actor_id: UUID) -> None:
    try:
        loop.call_soon_threadsafe(function, actor_id)
    except RuntimeError:  # the loop has ended, and with it everybody who listened on it
        return


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def current_hub() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None:
        hub = _hubs[loop] = Hub()
    return hub
