"""The buttons: which operations there are, who may use them, when they do something, what they will do in words.

What an operation means is the client's; here is only how a person meets it. Two questions are asked of everybody:
Django's permission for the model (with the project's backends), and the actor's own ``has_permission``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_permission_codename
from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from rivet_workflows.client import ActorState, ActorStatus, Handle
from rivet_workflows.client.remote import require, require_of_type
from rivet_workflows.exceptions import PermissionDenied
from rivet_workflows.registry import registry

logger = logging.getLogger("rivet_workflows.inspector")

__all__ = ["OPERATIONS", "Operation", "allowed", "hidden_names", "offered", "permitted"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One button."""

    #: As the client, the permission hook and the address call it.
    name: str
    label: Promise
    #: What it does, for the tooltip and the confirmation.
    help: Promise
    #: What the log and the message say when it did something, and when there was nothing to do.
    done: Promise
    nothing: Promise
    run: Callable[[Handle, int | None], bool]
    #: Asks first, on a page of its own.
    confirm: bool = False
    #: May be used on several actors in the list.
    bulk: bool = False


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "recover",
            _("Recover"),
            _(
                "Runs it again from where it stopped; failed steps are reset, completed ones do not run again."
            ),
            _("Recovered."),
            _("There was nothing to recover."),
            lambda handle, entry: handle.recover(),
            bulk=True,
        ),
        Operation(
            "wake",
            _("Wake"),
            _("Has a worker look at it now. Its timers keep their times."),
            _("Woken."),
            _("It was not asleep."),
            lambda handle, entry: handle.wake(),
            bulk=True,
        ),
        Operation(
            "pause",
            _("Pause"),
            _("No worker runs the workflow until it is resumed. Messages and actions are still taken."),
            _("Paused."),
            _("There was nothing to pause."),
            lambda handle, entry: handle.pause(),
            bulk=True,
        ),
        Operation(
            "resume",
            _("Resume"),
            _("Lets a paused workflow go on."),
            _("Resumed."),
            _("It was not paused."),
            lambda handle, entry: handle.resume(),
            bulk=True,
        ),
        Operation(
            "replay_from",
            _("Replay"),
            _(
                "Drops the entry and everything recorded after it, then runs the workflow on from there: those steps "
                "run once more, with their effects. What was recorded before stays. This cannot be undone."
            ),
            _("It will be replayed."),
            _("Refused: its rollback is stuck. Recover tries the handlers again."),
            lambda handle, entry: handle.replay_from(entry),
            confirm=True,
        ),
        Operation(
            "cancel",
            _("Cancel"),
            _(
                "Ends the workflow as cancelled. A step that is running is not recorded any more; completed steps are "
                "not rolled back. Recover would let it go on."
            ),
            _("Cancelled."),
            _("It was over already."),
            lambda handle, entry: handle.cancel(),
            confirm=True,
        ),
        Operation(
            "destroy",
            _("Destroy"),
            _(
                "Removes the actor with its state, history, messages and events, and frees its key. This cannot be "
                "undone."
            ),
            _("Destroyed."),
            _("It was destroyed before."),
            lambda handle, entry: handle.destroy(),
            confirm=True,
        ),
    )
}

_OVER = (ActorState.COMPLETED, ActorState.FAILED, ActorState.CANCELLED)


def offered(status: ActorStatus | None, *, retrying: bool = False) -> list[str]:
    """The operations that would do something in this state, the likeliest wanted first. ``retrying``: a step waits for
    its next attempt. Of an unreadable actor: the ones that may help."""
    if status is None:
        return ["recover", "cancel", "destroy"]
    state, reason = status.state, status.reason
    if state == ActorState.IDLE:
        return ["destroy"]
    names = []
    if state in (ActorState.FAILED, ActorState.CANCELLED) or retrying or reason is not None:
        names.append("recover")
    if state == ActorState.SLEEPING or reason == "diverged":
        names.append("wake")
    if state == ActorState.PAUSED:
        names.append("resume")
    elif state in (ActorState.PENDING, ActorState.RUNNING, ActorState.SLEEPING):
        names.append("pause")
    if state != ActorState.ROLLING_BACK:
        names.append("replay_from")
    if state not in _OVER:
        names.append("cancel")
    return [*names, "destroy"]


def permitted(request: HttpRequest, model: type[Model], name: str) -> bool:
    """Does Django let this user do it? ``cancel_actor`` and the like where the model has such a permission of its own,
    else ``change_actor``, and ``delete_actor`` to destroy."""
    opts = model._meta
    own = get_permission_codename(name, opts)
    declared = {codename for codename, _label in opts.permissions}
    action = name if own in declared else "delete" if name == "destroy" else "change"
    user: Any = request.user
    return bool(user.has_perm(f"{opts.app_label}.{get_permission_codename(action, opts)}"))


def allowed(request: HttpRequest, handle: Handle, operation: str) -> bool:
    """Does the actor itself? ``Actor.has_permission``, or what stands for it.

    One whose key is damaged cannot be asked as itself: it is left to superusers.
    """
    try:
        handle.key  # noqa: B018  raises for a damaged one
    except (ValueError, TypeError):
        return bool(getattr(request.user, "is_superuser", False))
    try:
        require(handle, request, operation)
    except PermissionDenied:
        return False
    return True


def hidden_names(request: HttpRequest) -> list[str]:
    """Actors that this user may not list: their classes say so."""
    hidden = []
    for actor_type in registry.all():
        try:
            require_of_type(actor_type, (), request, "list")
        except PermissionDenied:
            hidden.append(actor_type.name)
        except Exception:  # a project's code: in doubt nothing of that class is shown, and all of the others
            logger.exception("has_permission of %s failed; its actors are not listed", actor_type.name)
            hidden.append(actor_type.name)
    return hidden
