"""What goes wrong between a worker and its database, at any statement: the process dies before it or after it, the
connection breaks before it or, with the answer on its way, after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from django.db import OperationalError

from rivet_workflows.records import Commit
from rivet_workflows.store.errors import UnknownOutcome

#: Chances of each, per statement.
DEATH, BREAK = 0.002, 0.004
#: Chances that a commit breaks off: it is the statement that matters most.
COMMIT_BREAK = 0.04


#: Nothing is waited for: time stands still while a verb is called.
NO_SOCKET = -1


class Died(BaseException):
    """The process is gone, with all that was in its memory."""


class FaultyStore:
    """A store as one worker sees it. ``chance`` is the seeded source, None while nothing is to go wrong; ``committed``
    is told of every item that was written."""

    def __init__(
        self,
        store: Any,
        chance: Callable[[], random.Random | None],
        committed: Callable[[Any], None],
        note: Callable[[str], None],
    ) -> None:
        self._store = store
        self._chance = chance
        self._committed = committed
        self._note = note
        #: The carrier's question whether to leave others time to write.
        self.vendor = "simulated"
        self.works_apart = True

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not callable(verb) or name in ("clock", "atomic"):
            return verb

        def called(*args: Any, meanwhile: Any = None, **kwargs: Any) -> Any:
            done = self._beside(verb, meanwhile)
            return self._guard(name, done, OperationalError, BREAK, args, kwargs)

        return called

    def _beside(self, verb: Callable[..., Any], meanwhile: Any) -> Callable[..., Any]:
        """``verb``, with what else is done while the database is at it, before or after what it does is there."""
        if meanwhile is None:
            return verb
        rng = self._chance()
        early, late = (1, 0) if rng is None else (rng.randrange(4), rng.randrange(3))

        def both(*args: Any, **kwargs: Any) -> Any:
            for _ in range(early):
                meanwhile(NO_SOCKET)
            result = verb(*args, **kwargs)
            for _ in range(late):
                meanwhile(NO_SOCKET)
            return result

        return both

    def commit_group(self, items: Any, *, wait: bool = False, meanwhile: Any = None) -> Any:
        def verb() -> Any:
            results = self._store.commit_group(items, wait=wait)
            for item, result in zip(items, results, strict=True):
                if result.outcome is Commit.OK:
                    self._committed(item)
                if result.outcome is not Commit.BUSY:
                    rows = [(row.seq, row.name) for row in item.rows]
                    self._note(
                        f"commits {item.actor_id.hex[-6:]} epoch {item.epoch} no {item.commit_no}: "
                        f"{result.outcome.name} {rows} {result.error}".rstrip()
                    )
            return results

        done = self._beside(verb, meanwhile)
        return self._guard("commit_group", done, UnknownOutcome, COMMIT_BREAK, (), {})

    def _guard(
        self,
        name: str,
        verb: Callable[..., Any],
        broken: type[Exception],
        breaks: float,
        args: Any,
        kwargs: Any,
    ) -> Any:
        rng = self._chance()
        luck = 1.0 if rng is None else rng.random()
        if (
            name == "load_state"
        ):  # on a thread that catches whatever is raised, and so could not be seen to die
            luck = max(luck, DEATH)
        if luck < DEATH:
            raise Died(f"before {name}")
        if luck < DEATH + breaks:
            self._note(f"connection breaks before {name}")
            raise broken(f"the connection broke before {name}")
        answer = verb(*args, **kwargs)
        if luck > 1 - DEATH and rng is not None and name != "load_state":
            raise Died(f"after {name}")
        if luck > 1 - DEATH - breaks and rng is not None:
            self._note(f"connection breaks after {name}")
            raise broken(f"the connection broke after {name}")
        return answer
