"""Where Django's admin looks for what to register: the pages are ``inspector``'s."""

from __future__ import annotations

from rivet_workflows.inspector.admin import ActorAdmin, WorkerAdmin

__all__ = ["ActorAdmin", "WorkerAdmin"]
