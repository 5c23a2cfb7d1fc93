"""The side database, for tests with whole workers."""

from __future__ import annotations

from tests.sidedb import side, side_source

__all__ = ["side", "side_source"]
