"""Tests of the kit run in both modes, unless they say otherwise."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["replay", "parked"])
def rivet_mode(request):
    return request.param
