"""Tests declare actors, and the classes of their state and messages, inside functions; so may a shell."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rivet_workflows import Actor, codec
from rivet_workflows.exceptions import SerializationError
from rivet_workflows.registry import registry


def test_classes_made_in_the_function_that_declares_an_actor_can_be_stored():
    @dataclass
    class Basket:
        items: list[str] = field(default_factory=list)

    try:

        class LocalBasketHolder(Actor):
            state = Basket

        assert codec.loads(codec.dumps(Basket(["a"]))) == Basket(["a"])
    finally:
        registry.unregister("local_basket_holder")


def test_classes_made_in_other_functions_cannot():
    @dataclass
    class Elsewhere:
        n: int

    with pytest.raises(SerializationError, match="made in a function"):
        codec.dumps(Elsewhere(1))
