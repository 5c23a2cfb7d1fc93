"""The patches that break a promise each still fit the code; ``python -m tests.breakages`` lets the hunters loose."""

from __future__ import annotations

import pytest

from .hunt import BREAKAGES, CHECKOUT, HERE, Breakage, apply


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_patch_fits_the_code(breakage: Breakage):
    apply(breakage.patch, CHECKOUT, check=True)


def test_each_of_the_ten_invariants_has_a_patch_and_each_patch_is_hunted():
    assert [breakage.invariant for breakage in BREAKAGES] == list(range(1, 11))
    assert {breakage.patch for breakage in BREAKAGES} == set(HERE.glob("*.patch"))


def test_a_patch_that_does_not_fit_fails_loudly(tmp_path):
    patch = tmp_path / "stale.patch"
    patch.write_text(BREAKAGES[0].patch.read_text().replace("run[:2]", "walk[:2]"))
    with pytest.raises(RuntimeError, match="does not apply any more"):
        apply(patch, CHECKOUT, check=True)
