"""What the store raises beside the database's own errors, and how it reads those."""

from __future__ import annotations

from enum import Enum

from django.db import DataError, Error, IntegrityError, InterfaceError, OperationalError


class UnknownOutcome(Exception):
    """The connection broke while a group was being committed: it may or may not be there. Reconnect, then
    ``store.resolve(items)``."""


class WorkerForgotten(Exception):
    """The worker's row is gone: another worker took it for dead. Stop, or register again under a new id."""


class Trouble(Enum):
    """What an error of a commit is about, and so what to do."""

    #: Serialization failure or deadlock: run the same again.
    AGAIN = 1
    #: A lock was not to be had in time.
    LOCKED = 2
    #: One of the values cannot be stored: find whose, set that one aside.
    CONTENT = 3
    #: The connection is gone.
    LOST = 4
    #: Anything else (disk full, read-only server, missing privilege): not the actors' fault.
    OTHER = 5


#: Class 22 data, 23 integrity, 54 program limit; P0001 raised by a trigger; 57014 statement timeout.
_CONTENT_CLASSES = ("22", "23", "54")
_CONTENT_STATES = ("57014", "P0001")
_AGAIN_STATES = ("40001", "40P01")
_LOST_STATES = ("57P01", "57P02", "57P03")
#: Of MariaDB and MySQL, by number. Again: deadlock; a row that changed since a strict transaction began (MariaDB 11.6).
#: Locked: waited too long; NOWAIT (MySQL). Content: SIGNAL, as of a trigger; interrupted, took too long (either's); a
#: text in a character set that lacks it; more than a packet holds. Lost: shut down, network, killed; and the client's.
_MYSQL = {
    **dict.fromkeys((1213, 1020), Trouble.AGAIN),
    **dict.fromkeys((1205, 3572), Trouble.LOCKED),
    **dict.fromkeys((1644, 1317, 1969, 3024, 1366, 1153), Trouble.CONTENT),
    **dict.fromkeys((1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927), Trouble.LOST),
    **dict.fromkeys(range(2000, 3000), Trouble.LOST),
}


def sqlstate(error: Exception) -> str | None:
    """PostgreSQL's code of an error, whatever the server's language; None for other databases and errors."""
    code = getattr(error.__cause__ if isinstance(error, Error) else error, "sqlstate", None)
    return code if isinstance(code, str) else None


def classify(error: Exception) -> Trouble:
    """What ``error`` (Django's, around the driver's) is about."""
    cause = error.__cause__ if isinstance(error, Error) else error
    state = sqlstate(error)
    if state is not None:
        return _classify_state(state)
    # MySQLdb's, which is 0 for a connection that is closed.
    code = cause.args[0] if cause is not None and cause.args and isinstance(cause.args[0], int) else None
    if code in _MYSQL and isinstance(error, Error):
        return _MYSQL[code]
    if isinstance(error, DataError | IntegrityError | ValueError | OverflowError | TypeError):
        return Trouble.CONTENT
    if isinstance(error, OperationalError | InterfaceError):
        text = str(error)
        if "is locked" in text or "table is locked" in text:
            return Trouble.LOCKED
        # A driver's error without a code: psycopg's "connection is lost" and the like.
        return Trouble.OTHER if code or type(cause).__module__.startswith("sqlite3") else Trouble.LOST
    return Trouble.OTHER


def _classify_state(state: str) -> Trouble:
    if state in _AGAIN_STATES:
        return Trouble.AGAIN
    if state == "55P03":
        return Trouble.LOCKED
    if state[:2] in _CONTENT_CLASSES or state in _CONTENT_STATES:
        return Trouble.CONTENT
    if state[:2] == "08" or state in _LOST_STATES:
        return Trouble.LOST
    return Trouble.OTHER
