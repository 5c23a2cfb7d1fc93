"""Small helpers of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction that does not come to pass."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
