"""The store on SQLite and MariaDB."""

from __future__ import annotations

from rivet_workflows.store.portable.claims import PortableClaims
from rivet_workflows.store.portable.commit import PortableCommits
from rivet_workflows.store.portable.looks import PortableLooks
from rivet_workflows.store.store import Store


class PortableStore(PortableCommits, PortableClaims, PortableLooks, Store):
    """The verbs, those of the worker in plain statements."""
