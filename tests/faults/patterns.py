"""Every pattern of the demo's gallery in real workers, killed with SIGKILL in its middle.

    python -m tests.faults.patterns --database postgres

All patterns run twice, in two workers each time. The second time one step of each has run its function, and waits
there, when its worker is killed; another worker takes over. In the end every pattern has come to what it came to
undisturbed, actors that it called included; no step that was recorded before a kill has run after it; none ran more
than twice.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess, read_ledger, run_scenario
from tests.waiting import until

WAIT = 180


@dataclass
class Play:
    """How one actor of the gallery is played, and where its worker dies."""

    name: str
    #: The function that is held at its first call.
    dies_in: str
    key: str = "one"
    input: Any = None
    #: Messages: queue and body.
    sends: tuple[tuple[str, Any], ...] = ()
    #: Of an actor whose loop has no end: when it has done what it was sent.
    done: Callable[[Any], bool] | None = None
    #: Another actor, which this one has started, whose function it is.
    of: str = ""
    #: What is compared beside the result and the state: part of the state may depend on time, or on the kill.
    compare: Callable[[Any], Any] = lambda state: state

    @property
    def title(self) -> str:
        return f"{self.name}/{self.key}"

    @property
    def held(self) -> str:
        return f"{self.of or self.title} {self.dies_in}"


def plays() -> list[Play]:
    from patterns.basics import Hours
    from patterns.messages import QuoteRequest, Upload, Verdict
    from patterns.together import Task

    transfer = {"source": "ada", "target": "bob", "amount": 30}
    return [
        Play("welcome", "create_account"),
        Play(
            "thermostat", "adjust_heating",
            sends=(("readings", 21.0), ("readings", 18.5)), done=lambda s: s.readings == 2,
        ),
        Play("crawl", "fetch_page"),
        Play("export", "write_line", sends=(("commands", "a"), ("commands", "b"), ("commands", "finish"))),
        Play("feed", "publish", sends=(("ticks", "1"), ("ticks", "2")), done=lambda s: s.ticks == 2),
        Play("import", "import_row", input=["a", "b", "c"]),
        Play(
            "payroll", "pay",
            sends=(("hours", Hours("ada", 10)), ("hours", Hours("bob", 2))), done=lambda s: len(s.paid) == 2,
        ),
        Play(
            "scanner", "scan",
            sends=(("uploads", Upload("a", 1)), ("uploads", Upload("b", 2))), done=lambda s: s.bytes == 3,
        ),
        Play("freight", "work_out_quote", sends=(("requests", QuoteRequest(4)),), done=lambda s: s.quotes == 1),
        Play("purchase", "ask_for_quote", input=4),
        Play(
            "meter", "store_batch",
            sends=tuple(("readings", n) for n in range(20)), done=lambda s: s.readings == 20,
            compare=lambda s: (s.readings, s.total),
        ),
        Play(
            "resizer", "resize",
            sends=tuple(("images", f"{n}.png") for n in range(15)), done=lambda s: s.resized == 15,
            compare=lambda s: s.resized,
        ),
        Play("conveyor", "move", sends=(("parcels", "a"), ("parcels", "b"), ("control", "stop"))),
        Play("expense", "settle", key="decided", sends=(("verdicts", Verdict(approved=True, by="eve")),)),
        Play("expense", "settle", key="nobody decides"),
        Play("trial", "send_mail"),
        Play(
            "transcript", "save_transcript",
            sends=(("recordings", "hello"),), done=lambda s: s.text == "HELLO", compare=lambda s: s.text,
        ),
        Play("rates", "keep_rate"),
        Play("build", "poll_build"),
        Play(
            "backup", "back_up",
            done=lambda s: s.backups > 0, compare=lambda s: s.backups > 0,
        ),
        Play("printer", "print_page", sends=(("jobs", "a"),), done=lambda s: s.pages == 1, compare=lambda s: s.pages),
        Play("dashboard", "count"),
        Play("auction", "close_auction", key="sold", sends=(("offers", 300),)),
        Play("auction", "close_auction", key="not sold"),
        Play("word_count", "count_words", input=["one two", "three", "four five six"]),
        Play("tender", "ask_supplier"),
        Play("dispatcher", "dispatch", sends=(("tasks", Task("stamp", "two")),), done=lambda s: len(s.results) == 1),
        Play("consignment", "mark_parcel", of="parcel/('one', 'books')", input=["books", "lamps"]),
        Play("avatar", "fetch_picture"),
        Play("avatar", "fetch_picture", key="nobody"),
        Play("door", "open_with"),
        Play("shipment", "load_plane", key="piano"),
        Play("trip", "pay_trip", key="rich"),
        Play("trip", "cancel_booking", key="broke"),
        Play("transfer", "deposit", key="1", input=transfer),
        Play("transfer", "put_back", key="2", input=transfer | {"target": "frozen"}),
        Play("sync", "push_changes", compare=lambda s: None),
        Play("onboarding", "tick_off", sends=(("signatures", "Ada"),)),
        Play(
            "billing", "write_invoice", sends=(("months", "June"),), done=lambda s: len(s.invoices) == 1,
        ),
    ]  # fmt: skip


class Stage:
    """The actors of one run, on the database of this process."""

    def __init__(self) -> None:
        from rivet_workflows import client
        from rivet_workflows.registry import registry

        self.client = client
        self.plays = plays()
        gallery = {
            kind.name for kind in registry.all() if kind.run and kind.cls.__module__.startswith("patterns.")
        }
        assert gallery == {play.name for play in self.plays} | {"parcel"}, (
            "every workflow of the gallery is played"
        )
        client.get_or_create("rate_source", "live").call("set", 1.08, in_order=False)
        client.get_or_create("rate_source", "yesterday").call("set", 1.05)
        self.actors = [client.create(play.name, play.key, input=play.input) for play in self.plays]
        for play, actor in zip(self.plays, self.actors, strict=True):
            for queue, body in play.sends:
                actor.send(queue, body)

    def over(self) -> bool:
        return all(
            play.done(actor.call("get_state"))
            if play.done
            else str(actor.status()) in ("completed", "failed")
            for play, actor in zip(self.plays, self.actors, strict=True)
        )

    def outcome(self) -> dict[str, Any]:
        """All that the patterns came to, and the actors that they called."""
        from rivet_workflows.models import State

        found: dict[str, Any] = {}
        for play, actor in zip(self.plays, self.actors, strict=True):
            state = play.compare(actor.call("get_state"))
            if play.done is not None:
                found[play.title] = repr(state)
                continue
            status = actor.status()
            error = None if status.error is None else (status.error.type, status.error.message)
            result = actor.result(timeout=1) if str(status) == "completed" else None
            entries = sorted((e.location, e.kind, e.status) for e in actor.history())
            found[play.title] = repr((str(status), result, error, state, entries))
        get = self.client.get
        found |= {f"account {name}": get("account", name).call("balance") for name in ("ada", "bob")}
        found |= {f"supplier {s}": get("supplier", s).call("price", "x") for s in ("north", "south", "west")}
        called = [get("supplier", "north"), get("desk", "two"), get("freight", "sea"), get("account", "bob")]
        found |= {f"state of {a.name} {a.key}": State.objects.get(actor_id=a.actor_id).body for a in called}
        found["parcels"] = [get("parcel", ("one", what)).result(timeout=1) for what in ("books", "lamps")]
        return found


def completed_keys() -> set[str]:
    """Idempotency keys of the steps that are recorded as completed, of all actors."""
    from rivet_workflows.models import History
    from rivet_workflows.records import EntryStatus, Kind

    rows = History.objects.filter(kind=int(Kind.STEP), status=int(EntryStatus.COMPLETED))
    return {f"{actor_id}:{seq}" for actor_id, seq in rows.values_list("actor_id", "seq")}


def undisturbed(folder: Path) -> Iterator[dict[str, Any]]:
    stage = Stage()
    with WorkerProcess(log=folder / "log"), WorkerProcess(log=folder / "log"):
        until(stage.over, "all are over", WAIT)
    yield stage.outcome()


def killed(folder: Path) -> Iterator[dict[str, Any]]:
    stage = Stage()
    hold = folder / "hold"
    hold.write_text("\n".join(play.held for play in stage.plays))
    os.environ["RIVET_HOLD"] = str(hold)
    ledger = folder / "ledger"
    began = time.monotonic()

    def waiting() -> dict[str, int]:
        """Steps whose function has run and that are held, and the process that holds each."""
        path = folder / "holding"
        lines = [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []
        return {what: int(pid) for pid, what in lines}

    wanted = {play.held for play in stage.plays}
    killed_in: set[int] = set()
    recorded: list[tuple[set[str], int]] = []
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(log=folder / "log")) for _ in range(2)]
        until(lambda: waiting().keys() == wanted, "each is held", WAIT)
        first = waiting()
        for worker in workers[:]:
            workers.append(stack.enter_context(WorkerProcess(log=folder / "log")))
            worker.kill(signal.SIGKILL)
            assert worker.wait() == -signal.SIGKILL
            killed_in.add(worker.process.pid)
            recorded.append((completed_keys(), len(read_ledger(ledger))))
        assert set(first.values()) <= killed_in, "every held step was in a worker that was killed"
        until(stage.over, "all are over", WAIT)
        outcome = stage.outcome()
    lines = read_ledger(ledger)
    for keys, length in recorded:
        again = {call.key for call in lines[length:]} & keys
        assert not again, f"steps ran again that were recorded before a kill: {again}"
    calls = Counter((call.key, call.attempt) for call in lines)
    assert max(calls.values()) == 2, [call for call, times in calls.items() if times > 2]
    assert wanted <= {line.note for line in lines if calls[line.key, line.attempt] == 2}, (
        "a step that was held did not run again"
    )
    figures = {
        "held": len(wanted),
        "calls": len(lines),
        "ran_twice": sum(n > 1 for n in calls.values()),
        "seconds": round(time.monotonic() - began, 1),
    }
    yield {"outcome": outcome, "figures": figures}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="sqlite")
    parser.add_argument("--story", choices=["undisturbed", "killed"], required=True)
    args = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.faults.gallery_settings"
    sys.exit(
        run_scenario(
            args.database,
            undisturbed if args.story == "undisturbed" else killed,
            RIVET_CLUSTER_LEASE="6",
            RIVET_CLUSTER_HEARTBEAT="1",
            RIVET_CLUSTER_LOG="WARNING",
        )
    )
