"""The store on PostgreSQL."""

from __future__ import annotations

from rivet_workflows.store.postgres.claims import PostgresClaims
from rivet_workflows.store.postgres.commit import PostgresCommits
from rivet_workflows.store.postgres.looks import PostgresLooks
from rivet_workflows.store.store import Store


class PostgresStore(PostgresCommits, PostgresClaims, PostgresLooks, Store):
    """The verbs, those of the worker in statements made for PostgreSQL."""
