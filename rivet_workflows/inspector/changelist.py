"""The list of actors: pages by key instead of by number, filters that ask no database, a search by key.

Django's own list counts the table twice and reaches page 5,000 by reading the 4,999 before it. Here a page is what
comes before or after an id (ids grow with time), and one row more says whether there is another page.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from rivet_workflows import keys
from rivet_workflows.exceptions import ValidationFailed
from rivet_workflows.inspector import reads
from rivet_workflows.inspector.page import status
from rivet_workflows.models import Actor
from rivet_workflows.records import Lifecycle
from rivet_workflows.registry import registry
from rivet_workflows.store.rows import live_hash

__all__ = ["ActorChangeList", "LifecycleFilter", "NameFilter", "WorkerChangeList", "search"]

OLDER, NEWER = "older", "newer"


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 19 else None


class UncountedPaginator(Paginator):  # type: ignore[type-arg]  # generic for type checkers alone
    """One page of what was found: there is no count to divide by."""

    count = 0
    num_pages = 1


class KeysetChangeList(ChangeList):
    """A page of rows by descending id, and links to the pages before and after it."""

    newer_link: str | None = None
    older_link: str | None = None
    first_link: str | None = None

    #: The id in an address; None for nonsense. Each table has its own kind of id.
    parse: staticmethod[[str | None], Any]

    def prepare(self, page: list[Any]) -> None:
        """Add to the rows of the page what their columns show."""

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> str:
        """Another filter or search starts at its first page."""
        return str(super().get_query_string(new_params, [*(remove or ()), OLDER, NEWER]))

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        """Our own parameters are no filters."""
        found: dict[str, Any] = super().get_filters_params(params)
        return {name: value for name, value in found.items() if name not in (OLDER, NEWER)}

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Always by id: any other order would sort the table."""
        return ["-id"]

    def get_results(self, request: HttpRequest) -> None:
        older, newer = self.parse(request.GET.get(OLDER)), self.parse(request.GET.get(NEWER))
        size = self.list_per_page
        if newer is not None:
            found = list(self.queryset.filter(id__gt=newer).order_by("id")[: size + 1])
            page, before, after = found[:size][::-1], len(found) > size, True
        else:
            rows = self.queryset if older is None else self.queryset.filter(id__lt=older)
            found = list(rows[: size + 1])
            page, before, after = found[:size], older is not None, len(found) > size
        self.prepare(page)
        if page:
            self.newer_link = self.get_query_string({NEWER: str(page[0].id)}) if before else None
            self.older_link = self.get_query_string({OLDER: str(page[-1].id)}) if after else None
        self.first_link = self.get_query_string() if older or newer else None
        for own in (OLDER, NEWER):
            self.params.pop(own, None)  # else the search form would carry them along
        self._fill(page, size)

    def _fill(self, page: list[Any], size: int) -> None:
        """What Django's templates and actions ask of a list."""
        found: Any = page
        self.result_list = found
        self.result_count = len(page)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = bool(page)
        self.can_show_all = self.multi_page = False
        self.paginator = UncountedPaginator(page, max(size, 1))


class ActorChangeList(KeysetChangeList):
    """Actors, the youngest first: their ids grow with time."""

    parse = staticmethod(_uuid)

    def prepare(self, page: list[Any]) -> None:
        """One query for the page, in which a position that is too long to be worth it is left out."""
        runs = reads.runs([actor.id for actor in page], position=reads.POSITION)
        for actor in page:
            run = runs.get(actor.id, {})
            actor.rivet_status = status({column: getattr(actor, column) for column in reads.ACTOR}, run)


class WorkerChangeList(KeysetChangeList):
    """Workers, the last started first."""

    parse = staticmethod(_number)

    def prepare(self, page: list[Any]) -> None:
        counts, complete = reads.held_by([worker.id for worker in page])
        now = reads.now()
        for worker in page:
            worker.rivet_held = f"{counts[worker.id]}{'' if complete else '+'}"
            worker.rivet_now = now


class NameFilter(admin.SimpleListFilter):
    """By the actor's name; the names are those of this process's classes, so nothing is asked."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = {actor_type.name for actor_type in registry.all()}
        return [(name, name) for name in sorted(names - set(model_admin.hidden_names(request)))]

    def has_output(self) -> bool:
        return bool(self.lookup_choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(name=self.value()) if self.value() else queryset


class LifecycleFilter(admin.SimpleListFilter):
    """By the part of the status that is stored and indexed; what a live actor does is derived row by row."""

    title = _("lifecycle")
    parameter_name = "lifecycle"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        labels = {
            Lifecycle.LIVE: _("live"),
            Lifecycle.COMPLETED: _("completed"),
            Lifecycle.FAILED: _("failed"),
            Lifecycle.CANCELLED: _("cancelled"),
            Lifecycle.SET_ASIDE: _("set aside"),
        }
        return [(lifecycle.label, label) for lifecycle, label in labels.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = {lifecycle.label: lifecycle for lifecycle in Lifecycle}.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(lifecycle=int(chosen))


def search(queryset: QuerySet[Actor], text: str) -> QuerySet[Actor]:
    """Actors by id, by exact key, else by the beginning of the key (``order-1*`` asks for that alone).

    Id and exact key are looked up by index, for every name that this process knows; the beginning of a key has no
    index and is found by walking from the newest actor back.
    """
    text = text.strip()
    if not text:
        return queryset
    wanted = _uuid(text)
    if wanted is not None and queryset.filter(id=wanted).exists():
        return queryset.filter(id=wanted)
    start = text.removesuffix("*")
    if start == text:
        hashes = [live_hash(t.name, key) for t in registry.all() for key in _exact(text)]
        found = (
            list(queryset.filter(live_hash__in=hashes).values_list("id", flat=True)[:1000]) if hashes else []
        )
        if found:
            return queryset.filter(id__in=found)
    return queryset.filter(_begins(start))


def _exact(text: str) -> list[str]:
    """The stored forms of a key that reads like this: one part, or several joined by ``/``."""
    stored = []
    readings: list[keys.Key] = [text, tuple(text.split("/"))] if "/" in text else [text]
    for key in readings:
        try:
            stored.append(keys.encode(key))
        except ValidationFailed:
            continue
    return stored


def _begins(start: str) -> Q:
    """Keys that begin so. A stored key is a JSON list of texts: its text goes on behind the last quote."""
    condition = Q()
    spellings: set[tuple[str, ...]] = {(start,), tuple(start.split("/"))}
    for parts in spellings:
        try:
            stored = keys.encode((*parts,))
        except ValidationFailed:
            continue
        condition |= Q(key__startswith=stored.removesuffix('"]'))
    return condition or Q(pk__in=[])
