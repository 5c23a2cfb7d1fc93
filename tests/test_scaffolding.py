"""What the suite itself promises: a database per checkout, and no silent skips in CI."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection

from tests import servers
from tests.databases import CHECKOUT_HASH, database_from_url


def test_the_app_is_installed_under_its_label() -> None:
    assert apps.get_app_config("rivet_workflows").name == "rivet_workflows"


@pytest.mark.django_db
def test_the_database_answers() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_a_server_database_is_named_after_the_checkout() -> None:
    config = database_from_url("postgres://user:p%40ss@db.example:6000/app")
    assert config["TEST"]["NAME"].endswith(CHECKOUT_HASH)
    assert (config["HOST"], config["PORT"], config["PASSWORD"]) == ("db.example", "6000", "p@ss")


def test_a_database_of_mysql_is_blind_to_case_as_most_are() -> None:
    assert database_from_url("mysql://root@127.0.0.1/x")["TEST"]["COLLATION"].endswith("_ci")


def test_an_unknown_database_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        database_from_url("oracle://x")


def test_a_missing_server_is_told_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    url = ("redis://127.0.0.1:1", 6379, "RIVET_TEST_REDIS_URL")
    monkeypatch.setitem(servers.URLS, "requires_redis", url)
    reason = servers.missing("requires_redis")
    assert reason is not None
    assert "127.0.0.1:1" in reason


def test_a_missing_program_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "chromium" in (servers.missing("requires_chromium") or "")


@pytest.mark.requires_redis
def test_redis_is_there_when_marked() -> None:
    assert servers.missing("requires_redis") is None
