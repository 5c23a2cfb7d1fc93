"""``RENAMED``: classes in stored values and rollback handlers are found under their new names, module by module."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.test import override_settings

from rivet_workflows import Actor, client, codec
from rivet_workflows.conf import settings
from rivet_workflows.worker.programs import _resolve, handler_path


def undo(step: Any, output: Any) -> None: ...


class Shelf:
    @staticmethod
    def put_back(step: Any, output: Any) -> None: ...


@override_settings(RIVET_WORKFLOWS={"RENAMED": {"old_shop.steps": __name__}})
def test_one_entry_moves_a_whole_module_for_values_and_handlers():
    assert settings.RENAMED
    assert codec.current_name("old_shop.steps:Order") == f"{__name__}.Order"
    assert _resolve("old_shop.steps:undo") is undo
    assert _resolve("old_shop.steps:Shelf.put_back") is Shelf.put_back


@override_settings(RIVET_WORKFLOWS={"RENAMED": {"old_shop.refund": f"{__name__}.undo"}})
def test_one_entry_moves_one_function():
    assert settings.RENAMED
    assert _resolve("old_shop:refund") is undo
    with pytest.raises(LookupError, match="RENAMED"):
        _resolve("old_shop:other")


def test_without_entries_a_path_leads_back_to_its_function():
    assert _resolve(handler_path(undo)) is undo


class Sleeper(Actor, name="renamed_asyncio_sleeper"):
    async def run(self, ctx: Any) -> None:
        await asyncio.sleep(1)


@pytest.mark.django_db
def test_asyncio_in_run_is_refused_with_the_mend(rivet):
    sleeper = client.create(Sleeper, "1")
    rivet.run_until_idle()
    error = sleeper.status().error
    assert error is not None
    assert error.is_a("NotReplaySafe")
    assert "ctx.sleep" in error.message
