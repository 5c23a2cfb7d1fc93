"""The permission hook: who may do what while nobody says otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import override_settings

from rivet_workflows.actors import Actor
from rivet_workflows.registry import registry


def actor(cls: type[Actor] | None = None) -> Actor:
    return registry.get(cls or type("Job", (Actor,), {})).bind(UUID(int=1), "k")


def asking(user: object) -> SimpleNamespace:
    return SimpleNamespace(user=user)


@pytest.mark.parametrize("operation", ["create", "get", "call", "send", "subscribe", "cancel", "set_state"])
def test_nothing_is_open_to_someone_who_is_not_signed_in(operation: str) -> None:
    assert not actor().has_permission(asking(AnonymousUser()), operation, None)
    assert not actor().has_permission(asking(None), operation, None)
    assert not actor().has_permission(object(), operation, None)
    assert not actor().has_permission(asking(User(is_active=False, is_staff=True)), operation, None)


@pytest.mark.parametrize("operation", ["create", "get", "call", "send", "connect", "subscribe", "history"])
def test_a_signed_in_user_may_use_actors(operation: str) -> None:
    assert actor().has_permission(asking(User()), operation, "x")


@pytest.mark.parametrize("operation", ["cancel", "destroy", "replay_from", "set_state", "list", "unheard_of"])
def test_operating_them_takes_staff(operation: str) -> None:
    assert not actor().has_permission(asking(User()), operation, None)
    assert actor().has_permission(asking(User(is_staff=True)), operation, None)


def only_gets(actor: Actor, request: object, operation: str, name: str | None) -> bool:
    return operation == "get" and actor.key == "k"


@override_settings(RIVET_WORKFLOWS={"PERMISSION": f"{__name__}.only_gets"})
def test_a_project_may_set_one_rule_for_all_and_a_class_its_own() -> None:
    class Open(Actor):
        def has_permission(self, request, operation, name):
            return True

    assert actor().has_permission(asking(AnonymousUser()), "get", None)
    assert not actor().has_permission(asking(User(is_staff=True)), "call", "x")
    assert actor(Open).has_permission(asking(AnonymousUser()), "call", "x")
    assert "has_permission" in registry.get(Open).hooks
