"""What REST and WebSocket have in common: who may do what, and how an error looks to a caller that is not trusted.

``Actor.has_permission(request, operation, name)`` is the one question (A-HTTP-05); unless a class overrides it, the
setting ``PERMISSION`` or the default answers: signed-in users use actors, staff operates them. What the package or the
project means for callers passes as it is; any other error is logged in full and masked (A-ERR-03).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from rivet_workflows import exceptions as ours
from rivet_workflows.client.handles import Handle
from rivet_workflows.client.invoking import invoke
from rivet_workflows.client.results import Sent
from rivet_workflows.codec import to_plain
from rivet_workflows.engine.options import seconds
from rivet_workflows.registry import ActorType, registry

__all__ = [
    "NotSignedIn",
    "PendingSend",
    "Problem",
    "checked_seconds",
    "problem_of",
    "require",
    "require_of_type",
    "require_staff",
    "sendable",
    "signed_in",
]

logger = logging.getLogger("rivet_workflows.remote")

#: Stands for the id of an actor that is not there yet.
NOBODY = UUID(int=0)


class NotSignedIn(ours.PermissionDenied):
    """The operation takes a signed-in user, and this request has none."""

    code = "not_authenticated"


# -- permission


def require(handle: Handle, request: Any, operation: str, name: str | None = None) -> None:
    """Raise ``NotSignedIn`` (401) or ``PermissionDenied`` (403) unless the actor allows it.

    Runs the project's code: call it from a thread that may use the ORM.
    """
    actor_type = registry.find(handle.name)
    if actor_type is None:
        require_staff(request)  # its class is gone: only who operates actors still sees it
    elif not _allowed(actor_type, handle.actor_id, handle.key, request, operation, name):
        _refuse(request, operation, handle.name, name)


def require_of_type(
    actor_type: ActorType, key: str | tuple[str, ...], request: Any, operation: str, name: str | None = None
) -> None:
    """The same where there is no actor yet: ``create``, and ``list`` (with the key ``()``)."""
    if not _allowed(actor_type, NOBODY, key, request, operation, name):
        _refuse(request, operation, actor_type.name, name)


def require_staff(request: Any) -> None:
    """For what belongs to no class of actors."""
    if not signed_in(request):
        raise NotSignedIn("this takes a signed-in user")
    if not request.user.is_staff:
        raise ours.PermissionDenied("this takes a staff account")


def signed_in(request: Any) -> bool:
    user = getattr(request, "user", None)
    return bool(user is not None and user.is_authenticated and user.is_active)


def _allowed(
    actor_type: ActorType, actor_id: UUID, key: Any, request: Any, operation: str, name: str | None
) -> bool:
    actor = actor_type.bind(actor_id, key)
    return bool(invoke(actor.has_permission, request, operation, name))


def _refuse(request: Any, operation: str, actor_name: str, name: str | None) -> None:
    if not signed_in(request):
        raise NotSignedIn("this takes a signed-in user")
    what = f"{operation} {name}" if name else operation
    raise ours.PermissionDenied(
        f"{actor_name} does not allow you to {what}", metadata={"operation": operation, "name": name}
    )


# -- what comes in


def checked_seconds(value: Any, what: str) -> float | None:
    """A delay or timeout as a caller gave it; ``ValidationFailed`` for what is no duration."""
    if value is None:
        return None
    try:
        return seconds(value, what)
    except (ValueError, TypeError) as error:
        issue = {"path": [what], "message": str(error), "type": "invalid"}
        raise ours.ValidationFailed(str(error), metadata={"issues": [issue]}) from None


# -- what goes out


def sendable(what: str, output: Any) -> Any:
    """The JSON form of what an action returned. One that has none is the project's mistake, not the caller's."""
    try:
        return to_plain(output)
    except ours.SerializationError as error:
        raise TypeError(f"{what} returned what cannot be sent to a remote caller: {error}") from error


class PendingSend:
    """A send that is done, and whose answer may be waited for apart from it. Made in a thread, awaited on a loop."""

    def __init__(
        self,
        handle: Handle,
        queue: str,
        body: Any,
        *,
        delay: float | None = None,
        dedupe_key: str | None = None,
        wait: bool = False,
    ) -> None:
        self._handle = handle
        self.sent: Sent[Any] = handle._send(queue, body, checked_seconds(delay, "delay"), dedupe_key, wait)

    async def answer(self, timeout: float | None) -> Sent[Any]:
        """What became of the message within ``timeout`` seconds."""
        return await self._handle._await_answer(self.sent, checked_seconds(timeout, "timeout"))


# -- errors


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a remote caller may see it; ``status`` is HTTP's (D-22)."""

    status: int
    code: str
    detail: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return {"code": self.code, "detail": self.detail, "metadata": self.metadata}


#: The nearest class in an error's ancestry counts. Ours that are not here are the project's own business: masked.
_STATUS: dict[type[BaseException], int] = {
    ours.UserError: 400,
    NotSignedIn: 401,
    ours.PermissionDenied: 403,
    ours.ActorNotFound: 404,
    ours.ActionNotFound: 404,
    ours.QueueNotFound: 404,
    ours.ActorExists: 409,
    ours.PayloadTooLarge: 413,
    ours.ValidationFailed: 422,
    ours.SerializationError: 422,
    ours.QueueFull: 429,
    ours.TooManySchedules: 429,
    ours.ActorBusy: 503,
    ours.NoWorker: 503,
}


def problem_of(error: BaseException) -> Problem:
    """What the caller is told of ``error``. What it is not told is logged."""
    if isinstance(error, ours.RivetError):
        for cls in type(error).__mro__:
            if cls in _STATUS:
                return Problem(_STATUS[cls], error.code, error.message, _plain(error.metadata))
    logger.error("an error in a remote call, masked for its caller", exc_info=error)
    return Problem(500, ours.RivetError.code, "an internal error occurred")


def _plain(metadata: Any) -> dict[str, Any]:
    try:
        shown = to_plain(dict(metadata))
    except ours.SerializationError:
        logger.warning("an error's metadata cannot be sent to its caller", exc_info=True)
        return {}
    return shown if isinstance(shown, dict) else {}
