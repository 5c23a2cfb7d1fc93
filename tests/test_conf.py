"""The settings dict: what a project may write in it, and when it takes effect."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from rivet_workflows.conf import Problem, Settings, problems, settings


def one(raw: Any) -> Problem:
    found = problems(raw)
    assert len(found) == 1, found
    return found[0]


def test_every_key_has_a_default() -> None:
    assert settings.DATABASE == "default"
    assert settings.LEASE == 6
    assert settings.MAX_MESSAGE_SIZE == 65_536
    assert settings.RETENTION == 30 * 24 * 3600
    assert settings.LISTEN_DSN is None


def test_every_key_says_what_it_is_for() -> None:
    assert all(field.metadata["doc"].endswith(".") for field in dataclasses.fields(Settings))


def test_the_defaults_pass_their_own_checks() -> None:
    assert problems(dataclasses.asdict(Settings())) == []


def test_overridden_settings_take_effect_at_once_and_end_with_the_override() -> None:
    with override_settings(RIVET_WORKFLOWS={"MAX_PARKED": 3}):
        assert settings.MAX_PARKED == 3
        assert settings.CONCURRENCY == 50
    assert settings.MAX_PARKED == 1000


def test_durations_may_be_timedeltas() -> None:
    with override_settings(RIVET_WORKFLOWS={"RETENTION": timedelta(days=1), "GRACE": 2}):
        assert settings.RETENTION == 86_400
        assert settings.GRACE == 2


def test_reading_settings_with_a_mistake_says_what_is_wrong() -> None:
    with (
        override_settings(RIVET_WORKFLOWS={"MAX_PARKD": 3}),
        pytest.raises(ImproperlyConfigured, match="Did you mean 'MAX_PARKED'"),
    ):
        _ = settings.MAX_PARKED


def test_the_projects_own_dict_is_not_handed_out() -> None:
    mine = {"RENAMED": {"old.Class": "new.Class"}}
    with override_settings(RIVET_WORKFLOWS=mine):
        settings.RENAMED["another"] = "x"
    assert mine == {"RENAMED": {"old.Class": "new.Class"}}


def test_a_name_that_is_no_key_is_an_attribute_error() -> None:
    assert not hasattr(settings, "NO_SUCH_KEY")


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    problem = one({"HEARTBEET": 1})
    assert (problem.code, problem.hint) == ("E001", "Did you mean 'HEARTBEAT'?")


def test_something_else_than_a_dict_is_refused() -> None:
    assert one(["DATABASE"]).code == "E001"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"GRACE": "15"}, "not a number of seconds or a timedelta"),
        ({"GRACE": float("nan")}, "not a number of seconds"),
        ({"GRACE": True}, "not a number of seconds"),
        ({"GRACE": None}, "not a number of seconds"),
        ({"CONCURRENCY": 2.5}, "not a whole number"),
        ({"CONCURRENCY": True}, "not a whole number"),
        ({"RENAMED": {"a": 1}}, "not a dict of strings"),
        ({"STEP_DEFAULTS": ["timeout"]}, "not a dict with string keys"),
        ({"LISTEN_DSN": 5}, "not a string, or None"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(raw: dict[str, Any], expected: str) -> None:
    problem = one(raw)
    assert problem.code == "E002"
    assert expected in problem.message


@pytest.mark.parametrize(
    "raw",
    [
        {"CONCURRENCY": 0},
        {"GROUP_SIZE": 100_000},
        {"GRACE": timedelta(seconds=-1)},
        {"SQLITE_SYNCHRONOUS": "OFF"},
    ],
)
def test_a_value_out_of_range_is_refused(raw: dict[str, Any]) -> None:
    assert one(raw).code == "E003"


def test_step_defaults_are_checked_as_step_options_are() -> None:
    problem = one({"STEP_DEFAULTS": {"timeout": 0}})
    assert problem.code == "E002"
    assert "timeout must be greater than 0" in problem.message
    assert problems({"STEP_DEFAULTS": {"timeout": timedelta(minutes=1), "max_retries": 5}}) == []


def test_no_retention_means_for_ever() -> None:
    assert problems({"RETENTION": None}) == []


@pytest.mark.parametrize("path", ["tests.nowhere.function", "tests.settings.SECRET_KEY", "nodots"])
def test_a_dotted_path_must_lead_to_something_callable(path: str) -> None:
    assert one({"PERMISSION": path}).code == "E004"


def test_a_dotted_path_that_does_is_fine() -> None:
    assert problems({"PERMISSION": "tests.servers.missing"}) == []


def test_the_database_must_be_configured() -> None:
    problem = one({"DATABASE": "other"})
    assert problem.code == "E005"
    assert "default" in problem.hint


def test_a_lease_must_outlast_a_late_heartbeat() -> None:
    assert one({"LEASE": 3, "HEARTBEAT": timedelta(seconds=2)}).code == "E006"
