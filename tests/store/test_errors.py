"""What an error of MariaDB is about: the server's own errors, by its codes."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, InterfaceError, connection

from rivet_workflows.store.errors import Trouble, classify
from rivet_workflows.store.store import Store
from tests import servers, sessions


@pytest.mark.parametrize(
    ("statement", "trouble"),
    [
        pytest.param("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'", Trouble.CONTENT, id="trigger"),
        pytest.param(
            "SET STATEMENT max_statement_time = 0.01 FOR SELECT sleep(5)", Trouble.CONTENT, id="too long"
        ),
        pytest.param("SELECT * FROM nowhere", Trouble.OTHER, id="no such table"),
        pytest.param("SET GLOBAL version = '1'", Trouble.OTHER, id="not allowed"),
        pytest.param("DROP DATABASE nowhere", Trouble.OTHER, id="no such database"),
        pytest.param("KILL connection_id()", Trouble.LOST, id="killed"),
    ],
)
def test_an_error_of_mariadb_is_read_by_its_code(store: Store, statement: str, trouble: Trouble) -> None:
    if store.vendor != "mysql":
        pytest.skip("errors of MariaDB")
    try:
        with pytest.raises(DatabaseError) as caught:
            store.query(statement)
    finally:
        connection.close()
    assert classify(caught.value) is trouble, caught.value


def test_a_connection_to_mariadb_that_was_lost_says_so(store: Store) -> None:
    if store.vendor != "mysql":
        pytest.skip("errors of MariaDB")
    sessions.cut(servers.MARIADB_URL, sessions.own(connection))
    lost = []
    for _ in range(2):
        with pytest.raises((DatabaseError, InterfaceError)) as caught:
            store.query("SELECT 1")
        lost.append(classify(caught.value))
    connection.close()
    assert lost == [Trouble.LOST] * 2
    assert store.query("SELECT 1") == [(1,)]
