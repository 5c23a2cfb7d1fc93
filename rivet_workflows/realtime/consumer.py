"""One WebSocket: one actor, its events, calls and sends.

Frames are handled in the order in which they arrive; what takes long (calls, waiting sends) goes on beside them, so
that results may come in another order than calls. Events come in the order of their ``seq``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

from channels.generic.websocket import AsyncWebsocketConsumer

from rivet_workflows import client
from rivet_workflows.client import Handle, looking, remote
from rivet_workflows.client.actions import arun_action, run_hook
from rivet_workflows.client.looking import StoredEvent
from rivet_workflows.client.twins import in_thread
from rivet_workflows.codec import to_plain
from rivet_workflows.conf import settings
from rivet_workflows.exceptions import ActorNotFound
from rivet_workflows.realtime import frames
from rivet_workflows.realtime.hub import Feed, current_hub
from rivet_workflows.registry import registry

__all__ = ["ActorConsumer", "Connection"]

logger = logging.getLogger("rivet_workflows.realtime")

NOT_SIGNED_IN, DENIED, ABSENT, TOO_LARGE, FAILED = 4401, 4403, 4404, 1009, 1011
#: daphne lets an application close with 1000 and 3000 to 4999 alone, and fails on others.
UNDER_DAPHNE = {TOO_LARGE: 4413, FAILED: 4500}
#: Calls and waiting sends that one connection has going at a time; the next frame waits.
MAX_GOING = 16
#: Bytes of a frame beside the one value in it.
FRAME = 4096


class Connection:
    """What actions see as ``c.connection`` and permission hooks as their ``request``."""

    def __init__(self, scope: Any) -> None:
        self.id = uuid4().hex
        self.scope = scope
        self.user = scope.get("user")

    def __repr__(self) -> str:
        return f"<Connection {self.id}>"


class ActorConsumer(AsyncWebsocketConsumer):
    """Speaks the protocol of ``rivet.js``. Every frame passes the actor's permission hook."""

    #: A layer of this name is not configured, so Channels gives the consumer none: what it has to tell comes through
    #: the database, and with the project's layer each socket would wait at a Redis, and break with it.
    channel_layer_alias = "rivet_workflows"

    handle: Handle
    feed: Feed
    connection: Connection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Event name to the ``seq`` after which it is wanted; None stands for all events.
        self.wanted: dict[str | None, int] = {}
        #: Up to here events were delivered, or are not wanted.
        self.cursor = 0
        self.open = False
        self._order = asyncio.Lock()
        self._going: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MAX_GOING)
        self._delivering = False

    # -- coming and going

    async def connect(self) -> None:
        # Accepted first: a refusal before that is a plain HTTP 403, and the browser never sees why.
        await self.accept()
        self.connection = Connection(self.scope)
        try:
            self.handle = await in_thread(self._find)
            feed = await current_hub().join(self.handle.actor_id, self._poke)
            if feed is None:
                raise ActorNotFound("the actor was destroyed")
        except Exception as error:
            await self._refuse(error)
            return
        self.feed = feed
        self.cursor = feed.seq
        self.open = True

    def _find(self) -> Handle:
        name = self.scope["url_route"]["kwargs"]["name"]
        key = _key(self.scope)
        actor_type = registry.get(name)
        try:
            handle = client.get(name, key)
        except ActorNotFound:
            if not actor_type.options.create_on_connect:
                if not remote.signed_in(self.connection):
                    raise remote.NotSignedIn("this takes a signed-in user") from None
                raise
            shown = key[0] if isinstance(key, tuple) and len(key) == 1 else key
            for operation in ("create", "connect"):
                remote.require_of_type(actor_type, shown, self.connection, operation)
            handle = client.get_or_create(name, key)
        remote.require(handle, self.connection, "connect")
        self._run_hook(handle, "on_connect")
        return handle

    def _run_hook(self, handle: Handle, hook: str) -> None:
        run_hook(handle.actor_id, handle.name, hook, self.connection, connection=self.connection)

    async def _refuse(self, error: Exception) -> None:
        problem = remote.problem_of(error)
        code = {401: NOT_SIGNED_IN, 403: DENIED, 404: ABSENT}.get(problem.status, FAILED)
        await self.close(code=code, reason=problem.code[:100])

    async def disconnect(self, code: int) -> None:
        if not self.open:
            return
        self.open = False
        current_hub().leave(self.handle.actor_id, self._poke)
        for task in tuple(self._going):
            task.cancel()
        try:
            await in_thread(self._run_hook, self.handle, "on_disconnect")
        except ActorNotFound:
            return
        except Exception:
            logger.exception("on_disconnect of %s failed", self.handle.name)

    async def close(self, code: int | bool | None = None, reason: str | None = None) -> None:
        if isinstance(code, int) and _is_daphnes(self.base_send):
            code = UNDER_DAPHNE.get(code, code)
        await super().close(code=code, reason=reason)

    # -- frames

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if not self.open:
            return
        if text_data is None:
            await self._answer_error(None, frames.InvalidFrame("frames are text"))
            return
        limit = settings.MAX_MESSAGE_SIZE + FRAME
        if len(text_data) > limit:
            await self.close(code=TOO_LARGE, reason=f"a frame has at most {limit} bytes")
            return
        try:
            await self._handle_frame(frames.parse(text_data))
        except frames.InvalidFrame as error:
            await self._answer_error(error.id, error)
        except Exception as error:
            await self._answer_error(None, error)

    async def _handle_frame(self, frame: frames.Frame) -> None:
        if isinstance(frame, frames.Subscribe):
            try:
                await self._subscribe(frame)
            except Exception as error:
                await self._answer_error(frame.id, error)
        elif isinstance(frame, frames.Unsubscribe):
            for name in self.wanted.copy() if frame.events is None else frame.events:
                self.wanted.pop(name, None)
        elif isinstance(frame, frames.Call):
            await self._start(frame.id, self._call(frame))
        else:
            await self._send_message(frame)

    async def _start(self, frame_id: Any, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Let ``work`` go on beside the next frames; its result is sent with the frame's id."""
        await self._slots.acquire()
        task = asyncio.create_task(self._finish(frame_id, work))
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _finish(self, frame_id: Any, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        try:
            await self._answer({"type": "result", "id": frame_id} | await work)
        except Exception as error:
            await self._answer_error(frame_id, error)
        finally:
            self._slots.release()

    async def _answer(self, frame: dict[str, Any]) -> None:
        if self.open:
            await self.send(text_data=json.dumps(frame))

    async def _answer_error(self, frame_id: Any, error: Exception) -> None:
        if isinstance(error, frames.InvalidFrame):
            problem = remote.Problem(400, error.code, error.message)
        else:
            problem = remote.problem_of(error)
        await self._answer({"type": "error", "id": frame_id} | problem.body())

    # -- calls and sends

    async def _call(self, frame: frames.Call) -> dict[str, Any]:
        await in_thread(remote.require, self.handle, self.connection, "call", frame.action)
        output = await arun_action(
            self.handle.actor_id,
            self.handle.name,
            frame.action,
            frame.args,
            frame.kwargs,
            user=self.connection.user,
            connection=self.connection,
            convert=partial(remote.sendable, f"{self.handle.name}.{frame.action}"),
        )
        return {"output": output}

    async def _send_message(self, frame: frames.Send) -> None:
        """Queued before the next frame is read, so that one connection's messages keep their order."""
        try:
            pending = await in_thread(self._queue, frame)
        except Exception as error:
            await self._answer_error(frame.id, error)
            return
        await self._start(frame.id, self._sent(frame, pending))

    def _queue(self, frame: frames.Send) -> remote.PendingSend:
        remote.require(self.handle, self.connection, "send", frame.queue)
        return remote.PendingSend(
            self.handle,
            frame.queue,
            frame.body,
            delay=frame.delay,
            dedupe_key=frame.dedupe_key,
            wait=frame.wait,
        )

    async def _sent(self, frame: frames.Send, pending: remote.PendingSend) -> dict[str, Any]:
        sent = await pending.answer(frame.timeout) if frame.wait else pending.sent
        return {
            "status": sent.status,
            "message_id": sent.id,
            "response": to_plain(sent.response),
            "duplicate": sent.duplicate,
        }

    # -- events

    async def _subscribe(self, frame: frames.Subscribe) -> None:
        async with self._order:  # nothing is delivered while it is not settled what is wanted
            newest = await in_thread(self._may_subscribe, frame.events)
            after = newest if frame.after is None else frame.after
            names: set[str | None] = {None} if frame.events is None else set(frame.events)
            fresh = {name for name in names if name not in self.wanted}
            if frame.after is not None:
                fresh = names
                await self._catch_up(names, after)
            for name in fresh:
                self.wanted[name] = after
            if frame.id is not None:
                await self._answer({"type": "result", "id": frame.id, "seq": after})
        self._poke(True)

    def _may_subscribe(self, names: tuple[str, ...] | None) -> int:
        """The newest ``seq``, read before anything else: from here on nothing may be missed."""
        newest = looking.last_events([self.handle.actor_id]).get(self.handle.actor_id)
        if newest is None:
            raise ActorNotFound("the actor was destroyed")
        for name in names if names is not None else (None,):
            remote.require(self.handle, self.connection, "subscribe", name)
        return newest

    async def _catch_up(self, names: set[str | None], after: int) -> None:
        """Deliver what was kept of ``names`` between ``after`` and the cursor, and tell what was not."""
        while after < self.cursor:
            page = await in_thread(looking.events_of, self.handle.actor_id, after=after, limit=looking.PAGE)
            if page.gap is not None:
                await self._gap(page.gap)
                after = page.gap[1]
                self.cursor = max(self.cursor, after)
            for event in page.events:
                after = event.seq
                if event.seq > self.cursor:
                    return
                if None in names or event.name in names:
                    await self._event(event)
            if not page.events:
                return

    def _poke(self, there: bool) -> None:
        """From the hub: there is something new, or the actor is gone."""
        if not self.open:
            return
        work = self._deliver() if there else self.close(code=ABSENT, reason=ActorNotFound.code)
        task = asyncio.ensure_future(work)
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _deliver(self) -> None:
        if self._delivering:  # the one that waits will see everything
            return
        self._delivering = True
        async with self._order:
            self._delivering = False
            while self.open and self.cursor < self.feed.seq:
                recent = self.feed.recent(self.cursor)
                if recent is None:
                    page = await in_thread(
                        looking.events_of, self.handle.actor_id, after=self.cursor, limit=looking.PAGE
                    )
                    if page.gap is not None:
                        if self.wanted:
                            await self._gap(page.gap)
                        self.cursor = page.gap[1]
                    recent = page.events
                    if not recent and page.gap is None:
                        return
                for event in recent:
                    self.cursor = event.seq
                    if self._wants(event):
                        await self._event(event)

    def _wants(self, event: StoredEvent) -> bool:
        return any(
            event.seq > after for name in (event.name, None) if (after := self.wanted.get(name)) is not None
        )

    async def _event(self, event: StoredEvent) -> None:
        await self._answer({"type": "event", "seq": event.seq, "name": event.name, "payload": event.payload})

    async def _gap(self, gap: tuple[int, int]) -> None:
        await self._answer({"type": "gap", "from": gap[0], "to": gap[1]})


def _key(scope: Any) -> str | tuple[str, ...]:
    """From the address, or from its query: ``?key=eu&key=7``."""
    in_path = scope["url_route"]["kwargs"].get("key")
    if in_path is not None:
        return str(in_path)
    query = parse_qs(scope.get("query_string", b"").decode("ascii", "replace"), keep_blank_values=True)
    return tuple(query.get("key", ()))


def _is_daphnes(send: Any) -> bool:
    """Does this lead to daphne, behind the session middleware of Channels?"""
    behind = getattr(getattr(send, "__self__", None), "real_send", None)
    if behind is not None:
        return _is_daphnes(behind)
    return str(getattr(getattr(send, "func", send), "__module__", "")).startswith("daphne.")
