"""The reference pages say what the code says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from rivet_workflows import checks, declaration
from rivet_workflows.conf import Settings

DOCS = Path(__file__).parent.parent / "docs"


def rows(page: str) -> dict[str, list[str]]:
    found = re.findall(r"^\| `(\w+)` \| (.+) \|$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {key: re.split(r" (?<!\\)\| ", rest) for key, rest in found}


def test_every_setting_is_documented_with_its_default_and_meaning() -> None:
    page, defaults = rows("settings.md"), Settings()
    assert set(page) == {field.name for field in dataclasses.fields(Settings)}
    for field in dataclasses.fields(Settings):
        default, doc = page[field.name]
        assert default.strip("`") == repr(getattr(defaults, field.name)).removesuffix(".0"), field.name
        assert doc == field.metadata["doc"]


def test_every_check_is_documented() -> None:
    page = set(rows("checks.md"))
    raised = set(re.findall(r'"([EW]\d{3})"', Path(declaration.__file__).read_text()))
    listed = set(re.findall(r"^([EW]\d{3})  ", checks.__doc__ or "", re.MULTILINE))
    assert page == raised | listed


def test_no_check_is_given_an_id_that_is_not_listed() -> None:
    listed = set(re.findall(r"^([EW]\d{3})  ", checks.__doc__ or "", re.MULTILINE))
    used: set[str] = set()
    for module in ("checks", "conf", "replay_lint"):
        path = Path(checks.__file__).with_name(f"{module}.py")
        used |= set(re.findall(r'"([EW]\d{3})"', path.read_text()))
    assert used == listed
