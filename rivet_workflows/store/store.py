"""The store put together: the verbs of all modules, and those that each database has in a form of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from uuid import UUID

from rivet_workflows.records import Claimed, CommitItem, CommitResult, Look, Looked, Release
from rivet_workflows.store.actors import ActorVerbs
from rivet_workflows.store.base import Meanwhile
from rivet_workflows.store.children import ChildVerbs
from rivet_workflows.store.control import ControlVerbs
from rivet_workflows.store.fires import FireVerbs
from rivet_workflows.store.prune import PruneVerbs
from rivet_workflows.store.reads import ReadVerbs
from rivet_workflows.store.sending import SendVerbs
from rivet_workflows.store.states import StateVerbs
from rivet_workflows.store.workers import WorkerVerbs


class Store(
    ActorVerbs,
    SendVerbs,
    ControlVerbs,
    ChildVerbs,
    StateVerbs,
    ReadVerbs,
    WorkerVerbs,
    PruneVerbs,
    FireVerbs,
    ABC,
):
    """What callers hold. The verbs below differ by database; their meaning does not."""

    @abstractmethod
    def claim(
        self,
        worker_id: int,
        types: dict[str, str],
        limit: int,
        *,
        meanwhile: Meanwhile | None = None,
    ) -> tuple[list[Claimed], bool]: ...

    @abstractmethod
    def take_over(
        self, worker_id: int, dead_worker_id: int, types: dict[str, str], limit: int
    ) -> list[Claimed]: ...

    @abstractmethod
    def load(self, worker_id: int, held: Sequence[tuple[UUID, int]]) -> list[Claimed]: ...

    @abstractmethod
    def commit_group(
        self,
        items: Sequence[CommitItem],
        *,
        wait: bool = False,
        meanwhile: Meanwhile | None = None,
    ) -> list[CommitResult]: ...

    @abstractmethod
    def resolve(self, items: Sequence[CommitItem]) -> list[CommitResult]: ...

    @abstractmethod
    def look(self, looks: Sequence[Look], *, meanwhile: Meanwhile | None = None) -> list[Looked]: ...

    @abstractmethod
    def release(self, releases: Sequence[Release]) -> list[CommitResult]: ...

    @abstractmethod
    def due_wakes_of_held(
        self, worker_id: int, types: Sequence[str] | dict[str, str], limit: int = 2_000
    ) -> list[UUID]: ...
