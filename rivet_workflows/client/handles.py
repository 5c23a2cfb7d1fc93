"""A handle: an actor as callers hold it.

Everything that callers do with one actor, sync and with ``a``-twins. A handle is an address: cheap, immutable, valid
for as long as the actor exists (``ActorNotFound`` afterwards, also when another one took its key).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from rivet_workflows import codec, keys
from rivet_workflows.client import actions, control, sending, waiting
from rivet_workflows.client.history import HistoryEntry, build
from rivet_workflows.client.results import ENDED, ActorState, ActorStatus, Sent, raise_failure, status_of
from rivet_workflows.client.twins import in_thread
from rivet_workflows.exceptions import ActorNotFound, ResultTimeout, RivetError
from rivet_workflows.markers import Queue
from rivet_workflows.records import Lifecycle
from rivet_workflows.registry import registry
from rivet_workflows.store import get_store
from rivet_workflows.store.rows import ActorRow

if TYPE_CHECKING:
    from rivet_workflows.client.base import Client

__all__ = ["Handle"]

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B")

Seconds = float | timedelta


class Handle:
    """One actor. Actions are its methods too: ``checkout.get_state()``, ``await checkout.aget_state()``."""

    __slots__ = ("_client", "_stored_key", "actor_id", "created", "name")

    def __init__(
        self, client: Client, actor_id: UUID, name: str, stored_key: str, *, created: bool = False
    ) -> None:
        self._client = client
        self._stored_key = stored_key
        self.actor_id = actor_id
        self.name = name
        #: Did the call that gave this handle make the actor?
        self.created = created

    @property
    def key(self) -> str | tuple[str, ...]:
        """The key as text, a tuple of texts where it has several parts."""
        return keys.decode(self._stored_key)

    def __repr__(self) -> str:
        return f"<Handle {self.name} {keys.readable(self._stored_key)!r} {self.actor_id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.actor_id == self.actor_id

    def __hash__(self) -> int:
        return hash(self.actor_id)

    # -- messages

    @overload
    def send(
        self,
        queue: Queue[B, R],
        body: B = ...,
        *,
        delay: Seconds | None = None,
        dedupe_key: str | None = None,
        wait: bool = False,
        timeout: Seconds | None = None,
    ) -> Sent[R]: ...
    @overload
    def send(
        self,
        queue: str,
        body: Any = None,
        *,
        delay: Seconds | None = None,
        dedupe_key: str | None = None,
        wait: bool = False,
        timeout: Seconds | None = None,
    ) -> Sent[Any]: ...
    def send(
        self,
        queue: str | Queue[Any, Any],
        body: Any = None,
        *,
        delay: Seconds | None = None,
        dedupe_key: str | None = None,
        wait: bool = False,
        timeout: Seconds | None = None,
    ) -> Sent[Any]:
        """Put ``body`` into a queue of the actor, in the caller's transaction: seen, and waking the actor, at its
        commit.

        ``delay``: seconds until it can be received. ``dedupe_key``: a second send with it to this queue within seven
        days (``DEDUPE_PERIOD``) sends nothing and is a ``duplicate``. ``wait``: until the actor completes the
        message, at most ``timeout`` seconds (None: no bound); then the message stays queued and the status is
        ``timed_out``. Where the run took the message without completing it, or ended, it is ``failed``: no answer will
        come.

        Raises ``ActorNotFound``, ``QueueNotFound``, ``QueueFull``, ``ValidationFailed``, ``SerializationError``,
        ``PayloadTooLarge``; ``RuntimeError`` for ``wait`` inside a transaction.
        """
        limit = self._checked_wait(wait, timeout)
        if wait:
            waiting.refuse_in_transaction("send(wait=True)")
        sent = self._send(queue, body, delay, dedupe_key, wait)
        if not wait:
            return sent
        assert sent.id is not None
        look = partial(sending.read_reply, sent.id, sent.duplicate)
        answer = waiting.wait_for(self.actor_id, look, limit)
        return answer or Sent(sent.id, "timed_out", duplicate=sent.duplicate)

    async def asend(
        self,
        queue: str | Queue[Any, Any],
        body: Any = None,
        *,
        delay: Seconds | None = None,
        dedupe_key: str | None = None,
        wait: bool = False,
        timeout: Seconds | None = None,
    ) -> Sent[Any]:
        """:meth:`send` for async code. It is a transaction of its own, as Django has none there; waiting holds no
        thread."""
        limit = self._checked_wait(wait, timeout)
        if wait:
            await in_thread(waiting.refuse_in_transaction, "asend(wait=True)")
        sent = await in_thread(self._send, queue, body, delay, dedupe_key, wait)
        return await self._await_answer(sent, limit) if wait else sent

    async def _await_answer(self, sent: Sent[Any], limit: float | None) -> Sent[Any]:
        assert sent.id is not None
        look = partial(sending.read_reply, sent.id, sent.duplicate)
        answer = await waiting.await_for(self.actor_id, look, limit)
        return answer or Sent(sent.id, "timed_out", duplicate=sent.duplicate)

    @staticmethod
    def _checked_wait(wait: bool, timeout: Seconds | None) -> float | None:
        if timeout is not None and not wait:
            raise TypeError("timeout= is how long wait=True waits; a send without wait does not wait at all")
        return waiting.checked_timeout(timeout)

    def _send(
        self,
        queue: str | Queue[Any, Any],
        body: Any,
        delay: Seconds | None,
        dedupe_key: str | None,
        wait: bool,
    ) -> Sent[Any]:
        return self._client.deliver(
            sending.outgoing(
                self.actor_id, self.name, queue, body, delay=delay, dedupe_key=dedupe_key, wait=wait
            )
        )

    # -- actions

    @overload
    def call(
        self,
        action: Callable[Concatenate[Any, Any, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def call(self, action: Callable[Concatenate[Any, Any, P], R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def call(self, action: str, *args: Any, **kwargs: Any) -> Any: ...
    def call(self, action: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an action, by name or by reference (``Checkout.get_state``), in the caller's transaction; an
        ``@action(on_worker=True)`` on the worker that holds the actor, which may not be waited for in a transaction.

        Raises ``ActorNotFound``, ``ActionNotFound``, ``ActorBusy``, ``ValidationFailed`` for arguments that do not fit,
        and what the action itself raises; of one on a worker also ``NoWorker``, and ``ActionFailed`` for errors that
        are none of ours.
        """
        return self._client.act(self, _action_name(action), args, kwargs)

    @overload
    async def acall(
        self,
        action: Callable[Concatenate[Any, Any, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    async def acall(
        self, action: Callable[Concatenate[Any, Any, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def acall(self, action: str, *args: Any, **kwargs: Any) -> Any: ...
    async def acall(self, action: Any, *args: Any, **kwargs: Any) -> Any:
        """:meth:`call` for async code."""
        return await self._client.aact(self, _action_name(action), args, kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        actor_type = registry.find(self.name)
        known = actor_type.actions if actor_type is not None else {}
        if name in known:
            return partial(self.call, name)
        if name[:1] == "a" and name[1:] in known:
            return partial(self.acall, name[1:])
        close = difflib.get_close_matches(name, [*known, *dir(type(self))], 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise AttributeError(f"{self.name} has no action {name!r} and a handle no such attribute{hint}")

    def __dir__(self) -> list[str]:
        actor_type = registry.find(self.name)
        known = list(actor_type.actions) if actor_type is not None else []
        return [*super().__dir__(), *known, *(f"a{name}" for name in known)]

    # -- looking

    def status(self) -> ActorStatus:
        """What the actor's workflow is doing now. Raises ``ActorNotFound``."""
        run = get_store().position(self.actor_id)
        actor = get_store().get(self.actor_id)
        if run is None or actor is None:
            self._gone()
        return status_of(run, actor)

    async def astatus(self) -> ActorStatus:
        """:meth:`status` for async code."""
        return await in_thread(self.status)

    def history(self) -> list[HistoryEntry]:
        """The workflow's recorded calls, finished and open, by ``seq``. Pruned iterations are gone.

        Raises ``ActorNotFound``.
        """
        run = get_store().position(self.actor_id)
        if run is None:
            self._gone()
        # In this order: what finishes in between is in both, and the finished row counts.
        return build(get_store().history(self.actor_id), run.inflight)

    async def ahistory(self) -> list[HistoryEntry]:
        """:meth:`history` for async code."""
        return await in_thread(self.history)

    def result(self, *, timeout: Seconds | None = None) -> Any:
        """What the workflow returned; waits for its end, at most ``timeout`` seconds (None: no bound).

        Raises ``WorkflowFailed`` (or the step, join, race, queue or child error that ended it), ``WorkflowCancelled``,
        ``ResultTimeout``, ``ActorNotFound``; ``RuntimeError`` inside a transaction. A workflow that is set aside has
        not ended: this waits, and ``ResultTimeout`` says why it is set aside.
        """
        limit = waiting.checked_timeout(timeout)
        waiting.refuse_in_transaction("result()")
        end = waiting.wait_for(self.actor_id, self._end, limit)
        return self._outcome(end) if end is not None else self._late(limit)

    async def aresult(self, *, timeout: Seconds | None = None) -> Any:
        """:meth:`result` for async code; it holds no thread while it waits."""
        limit = waiting.checked_timeout(timeout)
        await in_thread(waiting.refuse_in_transaction, "aresult()")
        end = await waiting.await_for(self.actor_id, self._end, limit)
        return self._outcome(end) if end is not None else await in_thread(self._late, limit)

    def _end(self) -> ActorRow | None:
        actor = get_store().get(self.actor_id)
        if actor is None:
            self._gone()
        if actor.lifecycle == Lifecycle.LIVE:
            actor_type = registry.find(self.name)
            if actor_type is not None and actor_type.run is None:
                raise RivetError(f"{self.name} has no run method, so there is no result to wait for")
        return actor if actor.lifecycle in ENDED else None

    def _late(self, limit: float | None) -> NoReturn:
        status, goes = self.status(), "it goes on"
        if status.reason is not None:
            what = "set aside" if status.state == ActorState.SET_ASIDE else "stuck in its rollback"
            goes = f"it is {what} ({status.reason})" + (f": {status.error}" if status.error else "")
        elif status.state == ActorState.PAUSED:
            goes = "it is paused"
        raise ResultTimeout(f"{self!r} had no result within {limit:g} seconds; {goes}")

    def _outcome(self, end: ActorRow) -> Any:
        if end.lifecycle != Lifecycle.COMPLETED:
            raise_failure(end.lifecycle, end.error)
        return None if end.output is None else codec.loads(end.output)

    def _gone(self) -> NoReturn:
        raise ActorNotFound(f"{self!r} was destroyed", metadata={"id": str(self.actor_id)})

    # -- operations

    def cancel(self) -> bool:
        """End the workflow as cancelled, for good until ``recover()``. False: it is over already."""
        return control.cancel(self.actor_id)

    def pause(self) -> bool:
        """Let no worker run the workflow until ``resume()``; messages and actions go on. False: nothing to pause."""
        return control.pause(self.actor_id)

    def resume(self) -> bool:
        """Undo ``pause()``. False: it was not paused."""
        return control.resume(self.actor_id)

    def wake(self) -> bool:
        """Run a sleeping workflow now; its timers keep their times. False: not asleep."""
        return control.wake(self.actor_id)

    def recover(self) -> bool:
        """Run a failed, cancelled or set-aside workflow again from where it stopped, its failed steps reset; of a
        sleeping one, try a step in backoff now. False: nothing to recover."""
        return control.recover(self.actor_id)

    def replay_from(self, entry: HistoryEntry | int | str | None = None) -> bool:
        """Drop ``entry`` (an entry, its ``seq`` or its location; None: everything) and all later ones and run from
        there.

        Raises ``ValidationFailed`` when there is no such entry. False: refused, a rollback is stuck.
        """
        return control.replay_from(self.actor_id, entry)

    def skip(self, entry: HistoryEntry | int | str, result: Any = None) -> bool:
        """Record ``result`` for a failed or unfinished step and run on. False: it is no such step."""
        return control.skip(self.actor_id, entry, result)

    def destroy(self) -> bool:
        """Remove the actor: ``on_destroy`` runs, then state, queues, history and events go and its key is free.

        False: it was destroyed before.
        """
        return actions.destroy(self.actor_id, self.name)

    async def acancel(self) -> bool:
        """:meth:`cancel` for async code."""
        return await in_thread(self.cancel)

    async def apause(self) -> bool:
        """:meth:`pause` for async code."""
        return await in_thread(self.pause)

    async def aresume(self) -> bool:
        """:meth:`resume` for async code."""
        return await in_thread(self.resume)

    async def awake(self) -> bool:
        """:meth:`wake` for async code."""
        return await in_thread(self.wake)

    async def arecover(self) -> bool:
        """:meth:`recover` for async code."""
        return await in_thread(self.recover)

    async def areplay_from(self, entry: HistoryEntry | int | str | None = None) -> bool:
        """:meth:`replay_from` for async code."""
        return await in_thread(self.replay_from, entry)

    async def askip(self, entry: HistoryEntry | int | str, result: Any = None) -> bool:
        """:meth:`skip` for async code."""
        return await in_thread(self.skip, entry, result)

    async def adestroy(self) -> bool:
        """:meth:`destroy` for async code."""
        return await in_thread(self.destroy)


def _action_name(action: Any) -> str:
    if isinstance(action, str):
        return action
    if getattr(action, "__rivet_action__", None) is not None:
        return str(action.__name__)
    raise TypeError(
        f"an action is named by a str or by the method itself (Checkout.get_state), not by {action!r}"
    )
