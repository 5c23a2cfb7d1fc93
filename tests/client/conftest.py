"""The test actors are registered while a test of this folder runs."""

from __future__ import annotations

import pytest

from rivet_workflows.registry import registry
from tests.client import shop


@pytest.fixture(autouse=True)
def shop_actors():
    for name, actor_type in SHOP.items():
        registry.add(actor_type)
        assert registry.get(name).cls is not None
    shop.DESTROYED.clear()


SHOP = {name: registry.get(name) for name in ("cart", "order")}
