"""The views behind the admin's addresses. ``admin`` wraps each in ``admin_view``; here permissions are asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from rivet_workflows import client
from rivet_workflows.client import Handle
from rivet_workflows.client.remote import problem_of
from rivet_workflows.conf import settings
from rivet_workflows.inspector import reads
from rivet_workflows.inspector.moments import moment
from rivet_workflows.inspector.operations import OPERATIONS, Operation, hidden_names, offered
from rivet_workflows.inspector.page import ActorPage, Window, actor_page, key_text, status, worker_name
from rivet_workflows.inspector.values import printable
from rivet_workflows.models import Actor

if TYPE_CHECKING:
    from rivet_workflows.inspector.admin import ActorAdmin, WorkerAdmin

__all__ = [
    "Outcome",
    "actor_view",
    "handle_of",
    "operation_view",
    "perform",
    "raw_view",
    "worker_state",
    "worker_view",
]

#: Actors that the page of a worker lists.
HELD = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an operation; ``problem`` is what went wrong, in words."""

    done: bool
    problem: str = ""


def handle_of(actor: Actor) -> Handle:
    """The handle of an actor that was read already."""
    return Handle(client.default, actor.id, actor.name, actor.key)


def perform(operation: Operation, handle: Handle, entry: int | None) -> Outcome:
    """Do it. What goes wrong is told; an error that is not ours is logged in full and masked, as for any caller."""
    try:
        return Outcome(operation.run(handle, entry))
    except Exception as error:  # also the project's on_destroy
        return Outcome(False, problem_of(error).detail)


def _find(admin: ActorAdmin, request: HttpRequest, actor_id: Any) -> tuple[dict[str, Any], Actor] | None:
    """The actor's row, as this user may see it; None where there is none."""
    try:
        row = reads.actor(UUID(str(actor_id)))
    except ValueError:
        row = None
    if row is None:
        if not admin.has_view_permission(request):
            raise PermissionDenied
        return None
    actor = Actor(**{column: row[column] for column in reads.ACTOR})
    if not admin.has_view_permission(request, actor):
        raise PermissionDenied
    return row, actor


def _gone(admin: ActorAdmin | WorkerAdmin, request: HttpRequest, given: str) -> HttpResponse:
    """Back to the list, with the reason: it was destroyed, or the address is wrong."""
    text = _("There is no %(what)s %(id)s (any more).") % {"what": admin.opts.verbose_name, "id": given[:100]}
    admin.message_user(request, text, messages.WARNING)
    view = f"admin:{admin.opts.app_label}_{admin.opts.model_name}_changelist"
    return HttpResponseRedirect(reverse(view, current_app=admin.admin_site.name))


# -- the page of an actor


def actor_view(admin: ActorAdmin, request: HttpRequest, actor_id: str, extra: Any) -> HttpResponse:
    """The page; as a fragment only when something has changed since the version that the browser has."""
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET", "HEAD"])
    found = _find(admin, request, actor_id)
    fragment = "fragment" in request.GET
    if found is None:
        if fragment:
            raise Http404
        return _gone(admin, request, actor_id)
    row, actor = found
    # Before the page is read: what happens in between is shown now and once more, never missed.
    fleet = reads.fleet()
    version = reads.version(row["id"], fleet)
    if fragment and request.GET.get("version") == version:
        return HttpResponse(status=204)
    page = actor_page(row, Window.of(request.GET), fleet)
    context = {
        **admin.admin_site.each_context(request),
        "title": f"{page.name} {page.key}",
        "opts": admin.opts,
        "original": actor,
        "page": page,
        "version": version,
        "buttons": _buttons(admin, request, actor, page),
        "may_replay": admin.may(request, "replay_from", actor) and "replay_from" in offered(page.status),
        "addresses": _addresses(admin, page),
        **(extra or {}),
    }
    request.current_app = admin.admin_site.name
    if fragment:
        return TemplateResponse(request, "rivet_workflows/inspector/actor_live.html", context)
    return TemplateResponse(request, "admin/rivet_workflows/actor/change_form.html", context)


def _buttons(
    admin: ActorAdmin, request: HttpRequest, actor: Actor, page: ActorPage
) -> list[tuple[Operation, str]]:
    """The operations that would do something and that this user may use, with their addresses."""
    names = [name for name in offered(page.status, retrying=page.retrying) if admin.may(request, name, actor)]
    return [(OPERATIONS[name], _address(admin, "operate", page.id, name)) for name in names]


def _address(admin: ActorAdmin, view: str, *args: Any) -> str:
    return reverse(f"admin:rivet_workflows_actor_{view}", args=args, current_app=admin.admin_site.name)


def _addresses(admin: ActorAdmin, page: ActorPage) -> dict[str, str]:
    """Where links on the page lead, on this admin site."""
    return {
        "replay": _address(admin, "operate", page.id, "replay_from"),
        "raw_input": _address(admin, "raw", page.id, "input"),
        "raw_output": _address(admin, "raw", page.id, "output"),
        "raw_state": _address(admin, "raw", page.id, "state"),
        "log": _address(admin, "history", page.id),
        "parent": _address(admin, "change", page.parent_id) if page.parent_id else "",
    }


def raw_view(admin: ActorAdmin, request: HttpRequest, actor_id: UUID, what: str) -> HttpResponse:
    """A stored text as a download: never rendered by the browser."""
    if _find(admin, request, actor_id) is None:
        raise Http404
    seq = Window.of({"since": request.GET.get("entry")}).since
    text = reads.raw(actor_id, what, seq)
    if text is None:
        raise Http404
    response = HttpResponse(printable(text), content_type="application/json; charset=utf-8")
    name = f"{actor_id}-{what}.json" if seq is None else f"{actor_id}-{seq}-{what}.json"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


# -- operations


def operation_view(admin: ActorAdmin, request: HttpRequest, actor_id: UUID, name: str) -> HttpResponse:
    """GET asks; POST does it, unless it is one that asks first and was not asked."""
    operation = OPERATIONS.get(name)
    found = _find(admin, request, actor_id)
    if operation is None or found is None:
        raise Http404
    _row, actor = found
    if not admin.may(request, name, actor):
        raise PermissionDenied
    given = request.POST if request.method == "POST" else request.GET
    entry = Window.of({"since": given.get("entry")}).since if name == "replay_from" else None
    if request.method == "POST" and (not operation.confirm or "confirmed" in request.POST):
        return _operate(admin, request, actor, operation, entry)
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
    context = {
        **admin.admin_site.each_context(request),
        "title": operation.label,
        "opts": admin.opts,
        "original": actor,
        "name": printable(actor.name),
        "key": key_text(actor.key),
        "operation": operation,
        "entry": entry,
        "back": _address(admin, "change", actor.id),
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "admin/rivet_workflows/actor/confirm.html", context)


def _operate(
    admin: ActorAdmin, request: HttpRequest, actor: Actor, operation: Operation, entry: int | None
) -> HttpResponse:
    outcome = perform(operation, handle_of(actor), entry)
    who = f"{printable(actor.name)} {key_text(actor.key)}"
    if outcome.done:
        note = str(operation.done) if entry is None else f"{operation.done} ({_('from entry')} {entry})"
        admin.log_change(request, actor, note)
        admin.message_user(request, f"{who}: {operation.done}", messages.SUCCESS)
    elif outcome.problem:
        admin.message_user(request, f"{who}: {outcome.problem}", messages.ERROR)
    else:
        admin.message_user(request, f"{who}: {operation.nothing}", messages.WARNING)
    if operation.name == "destroy" and not outcome.problem:
        return HttpResponseRedirect(_address(admin, "changelist"))
    return HttpResponseRedirect(_address(admin, "change", actor.id))


# -- workers


_WORKER_STATES: dict[str, Promise] = {
    "live": gettext_lazy("live"),
    "draining": gettext_lazy("stopping"),
    "dead": gettext_lazy("taken for dead"),
}


def worker_state(worker: Any, now: int, lease: float) -> tuple[str, str]:
    """Does it live? Its heartbeat alone says so."""
    state = (
        "dead" if worker.heartbeat_at < now - lease * 1_000_000 else "draining" if worker.draining else "live"
    )
    return state, str(_WORKER_STATES[state])


def worker_view(admin: WorkerAdmin, request: HttpRequest, worker_id: str, extra: Any) -> HttpResponse:
    """What a worker runs and holds. Actors that this user may not list are left out."""
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET", "HEAD"])
    if not admin.has_view_permission(request):
        raise PermissionDenied
    number = Window.of({"since": worker_id}).since
    worker = reads.workers().filter(id=number).first() if number is not None else None
    if worker is None:
        return _gone(admin, request, worker_id)
    state, label = worker_state(worker, reads.now(), settings.LEASE)
    rows = reads.held(worker.id, HELD)
    context = {
        **admin.admin_site.each_context(request),
        "title": worker_name(worker.host, worker.pid),
        "opts": admin.opts,
        "original": worker,
        "state": state,
        "state_label": label,
        "started_at": moment(worker.started_at),
        "heartbeat_at": moment(worker.heartbeat_at),
        "codes": _codes(worker.codes),
        "held": _held(request, rows[:HELD]),
        "more": len(rows) > HELD,
        **(extra or {}),
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "admin/rivet_workflows/worker/change_form.html", context)


def _codes(text: str) -> list[tuple[str, str]]:
    try:
        return sorted((printable(name), printable(code)) for name, code in json.loads(text or "{}").items())
    except (ValueError, AttributeError):
        return []


def _held(request: HttpRequest, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    user: Any = request.user
    if not (user.has_perm("rivet_workflows.view_actor") or user.has_perm("rivet_workflows.change_actor")):
        return []
    hidden = set(hidden_names(request))
    runs = reads.runs([row["id"] for row in rows], position=reads.POSITION)
    shown = []
    for row in rows:
        if row["name"] in hidden:
            continue
        found = status(row, runs.get(row["id"], {}))
        shown.append(
            {"id": row["id"], "name": printable(row["name"]), "key": key_text(row["key"]), "status": found}
        )
    return shown
