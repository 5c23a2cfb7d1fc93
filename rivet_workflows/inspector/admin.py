"""What Django's admin registers: actors and workers. Read-only by design: changes are operations, made by handles.

Works on any ``AdminSite``: ``site.register(Actor, ActorAdmin)``. History, messages and events are parts of their
actor's page and no lists of their own (the admin has no place for composite keys, and a list over all actors would
mix what belongs to different people).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partialmethod
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from rivet_workflows.conf import settings
from rivet_workflows.inspector import operations, reads, views
from rivet_workflows.inspector.changelist import (
    ActorChangeList,
    LifecycleFilter,
    NameFilter,
    WorkerChangeList,
    search,
)
from rivet_workflows.inspector.moments import instant
from rivet_workflows.inspector.page import key_text, worker_name
from rivet_workflows.inspector.words import STATES
from rivet_workflows.models import Actor, Worker

__all__ = ["ActorAdmin", "WorkerAdmin"]

#: Actors that one bulk operation touches at most: what a page of the list can select.
BULK = 200


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for type checkers alone
    """No forms: rows of the engine are nobody's to type into. Who may view is Django's permission to say."""

    list_per_page = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    sortable_by = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """``view_…`` or ``change_…``, as everywhere in the admin (which asks for the latter by the method above)."""
        return bool(super().has_view_permission(request, obj))


def _bulk(operation: operations.Operation) -> Callable[..., None]:
    """The action of the list for an operation."""

    @admin.action(description=_BULK_LABELS[operation.name], permissions=[operation.name])
    def act(modeladmin: ActorAdmin, request: HttpRequest, queryset: QuerySet[Actor]) -> None:
        modeladmin.operate_on(request, operation, queryset)

    act.__name__ = operation.name
    return act


_BULK_LABELS = {
    "recover": _("Recover selected actors"),
    "wake": _("Wake selected actors"),
    "pause": _("Pause selected actors"),
    "resume": _("Resume selected actors"),
}


@admin.register(Actor)
class ActorAdmin(ReadOnlyAdmin):
    """Actors: a list that never counts, and the inspector's page of each."""

    list_display = ("key_column", "name", "status_column", "created_column", "finished_column")
    list_filter = (LifecycleFilter, NameFilter)
    search_fields = ("key",)  # shows the search box; what it does is get_search_results
    search_help_text = _("A key, the beginning of one, or an id")
    actions = [_bulk(operation) for operation in operations.OPERATIONS.values() if operation.bulk]

    # -- permissions

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Django's permission, and of one actor its own ``has_permission`` too."""
        if not super().has_view_permission(request, obj):
            return False
        return obj is None or operations.allowed(request, views.handle_of(obj), "inspect")

    def may(self, request: HttpRequest, operation: str, obj: Any = None) -> bool:
        """May this user use the operation (on this actor)?"""
        if not operations.permitted(request, self.model, operation):
            return False
        return obj is None or operations.allowed(request, views.handle_of(obj), operation)

    def _may(self, operation: str, request: HttpRequest) -> bool:
        return self.may(request, operation)

    has_recover_permission = partialmethod(_may, "recover")
    has_wake_permission = partialmethod(_may, "wake")
    has_pause_permission = partialmethod(_may, "pause")
    has_resume_permission = partialmethod(_may, "resume")

    def hidden_names(self, request: HttpRequest) -> list[str]:
        """Names of actors that are not in this user's list."""
        return operations.hidden_names(request)

    # -- the list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Actor]:
        hidden = self.hidden_names(request)
        return reads.actors().exclude(name__in=hidden) if hidden else reads.actors()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ActorChangeList]:
        return ActorChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return search(queryset, search_term), False

    @admin.display(description=_("key"))
    def key_column(self, actor: Any) -> str:
        return key_text(actor.key)

    @admin.display(description=_("status"))
    def status_column(self, actor: Any) -> str:
        status = actor.rivet_status
        state = "unknown" if status is None else status.state.value
        more = ""
        if status is not None and status.waiting_for is not None:
            more = gettext("waits for a message")
            if status.waiting_for:
                more = gettext("waits for %(queues)s") % {"queues": ", ".join(status.waiting_for)}
        elif status is not None and status.reason is not None:
            more = status.reason.replace("_", " ")
        return format_html(
            '<span class="rv-state rv-{}">{}</span> <span class="rv-quiet">{}</span>',
            state,
            STATES[state],
            more,
        )

    @admin.display(description=_("created"))
    def created_column(self, actor: Any) -> datetime | None:
        return instant(actor.created_at)

    @admin.display(description=_("finished"))
    def finished_column(self, actor: Any) -> datetime | None:
        return instant(actor.finished_at)

    def operate_on(
        self, request: HttpRequest, operation: operations.Operation, queryset: Iterable[Actor]
    ) -> None:
        """An operation on the selected actors, each by itself: one that fails keeps no other from it."""
        done = other = 0
        for actor in list(queryset[:BULK]) if isinstance(queryset, QuerySet) else queryset:
            if not (self.has_view_permission(request, actor) and self.may(request, operation.name, actor)):
                other += 1
                continue
            outcome = views.perform(operation, views.handle_of(actor), None)
            if outcome.done:
                done += 1
                self.log_change(request, actor, str(operation.done))
            else:
                other += 1
        if done:
            text = ngettext("%(label)s: %(n)d actor.", "%(label)s: %(n)d actors.", done)
            self.message_user(request, text % {"label": operation.label, "n": done}, messages.SUCCESS)
        if other:
            text = ngettext(
                "%(label)s: nothing to do, or not allowed, for %(n)d actor.",
                "%(label)s: nothing to do, or not allowed, for %(n)d actors.",
                other,
            )
            self.message_user(request, text % {"label": operation.label, "n": other}, messages.WARNING)

    # -- the page

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "rivet_workflows_actor"
        return [
            path("<uuid:actor_id>/do/<str:operation>/", view(self.operation_view), name=f"{name}_operate"),
            path("<uuid:actor_id>/raw/<str:what>/", view(self.raw_view), name=f"{name}_raw"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one actor, or (``?fragment=1``) the part of it that changes."""
        return views.actor_view(self, request, unquote(object_id), extra_context)

    def operation_view(self, request: HttpRequest, actor_id: UUID, operation: str) -> HttpResponse:
        """A button was pressed; asks first where that is due."""
        return views.operation_view(self, request, actor_id, operation)

    def raw_view(self, request: HttpRequest, actor_id: UUID, what: str) -> HttpResponse:
        """A stored text, whole."""
        return views.raw_view(self, request, actor_id, what)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Worker processes: who lives, and what each holds."""

    list_display = ("name_column", "state_column", "heartbeat_column", "started_column", "held_column")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        return reads.workers()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkerChangeList]:
        return WorkerChangeList

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """What one worker runs and holds."""
        return views.worker_view(self, request, unquote(object_id), extra_context)

    @admin.display(description=_("worker"))
    def name_column(self, worker: Any) -> str:
        return worker_name(worker.host, worker.pid)

    @admin.display(description=_("state"))
    def state_column(self, worker: Any) -> str:
        state, label = views.worker_state(worker, worker.rivet_now, settings.LEASE)
        return format_html('<span class="rv-state rv-{}">{}</span>', state, label)

    @admin.display(description=_("last heartbeat"))
    def heartbeat_column(self, worker: Any) -> datetime | None:
        return instant(worker.heartbeat_at)

    @admin.display(description=_("started"))
    def started_column(self, worker: Any) -> datetime | None:
        return instant(worker.started_at)

    @admin.display(description=_("holds"))
    def held_column(self, worker: Any) -> str:
        return str(worker.rivet_held)
