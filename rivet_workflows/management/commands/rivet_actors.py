"""``manage.py rivet_actors``: look at actors and operate on them from a terminal.

    rivet_actors list --name order --status failed
    rivet_actors show order/42            rivet_actors history order/42 --json
    rivet_actors send order/42 approval '{"approved": true}'
    rivet_actors call order/42 get_state
    rivet_actors recover order/42         rivet_actors replay order/42 --entry charge-card
    rivet_actors prune

An actor is named by its id, or ``name/key``; a key of several parts is a JSON list (``order/["eu", "42"]``).
Uses the client alone. Exit code 1 when an operation changed nothing or met an error.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from rivet_workflows import codec
from rivet_workflows.client import Handle, HistoryEntry
from rivet_workflows.client import default as client
from rivet_workflows.exceptions import RivetError

OPERATIONS = ("cancel", "recover", "wake", "pause", "resume", "destroy")


class Command(BaseCommand):
    help = "List actors, show one, and operate on it."

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        add: Callable[..., CommandParser] = commands.add_parser
        one = add("list", help="actors, oldest first")
        one.add_argument("--name", help="of this class only")
        one.add_argument("--status", help="live, completed, failed, cancelled or set_aside")
        one.add_argument("--limit", type=int, default=100)
        one.add_argument("--json", action="store_true")
        for name, text in (("show", "where an actor stands"), ("history", "its recorded calls")):
            one = add(name, help=text)
            one.add_argument("actor", help="id or name/key")
            one.add_argument("--json", action="store_true")
        one = add("send", help="put a message into a queue")
        one.add_argument("actor")
        one.add_argument("queue")
        one.add_argument("body", nargs="?", default="null", help="JSON")
        one = add("call", help="call an action")
        one.add_argument("actor")
        one.add_argument("action")
        one.add_argument("arguments", nargs="*", help="JSON, one each")
        for name in OPERATIONS:
            add(
                name, help=f"{name} the actor's run" if name != "destroy" else "remove the actor"
            ).add_argument("actor")
        one = add("replay", help="run again from an entry on")
        one.add_argument("actor")
        one.add_argument("--entry", help="number or location; the whole workflow when left out")
        one = add("prune", help="delete what is no longer kept, now")
        one.add_argument("--json", action="store_true")

    def handle(self, *_args: Any, **options: Any) -> None:
        command = options["command"]
        try:
            if command == "list":
                self._list(options)
            elif command == "prune":
                self._prune()
            else:
                self._on_one(command, _find(options["actor"]), options)
        except RivetError as exc:
            raise CommandError(f"{exc.code}: {exc}") from exc

    # -- reads

    def _list(self, options: dict[str, Any]) -> None:
        found = client.list(options["name"], status=options["status"], limit=options["limit"])
        rows = [
            {"id": str(h.actor_id), "name": h.name, "key": h.key, "status": str(h.status())} for h in found
        ]
        if options["json"]:
            self.stdout.write(json.dumps(rows))
            return
        for row in rows:
            self.stdout.write(f"{row['id']}  {row['status']:<12}  {row['name']}/{_shown(row['key'])}")
        if len(rows) == options["limit"]:
            self.stderr.write(f"only the first {len(rows)}; --limit shows more")

    def _show(self, handle: Handle, as_json: bool) -> None:
        status = handle.status()
        waiting = status.waiting_for
        facts = {
            "id": str(handle.actor_id),
            "name": handle.name,
            "key": handle.key,
            "status": str(status),
            "reason": status.reason,
            "waiting_for": None if waiting is None else (", ".join(waiting) or "any queue"),
            "since": status.since and status.since.isoformat(),
            "wake_at": status.wake_at and status.wake_at.isoformat(),
            "error": status.error and str(status.error),
        }
        if as_json:
            self.stdout.write(json.dumps(facts))
            return
        for name, value in facts.items():
            if value is not None:
                self.stdout.write(f"{name.replace('_', ' '):<12} {value}")

    def _history(self, handle: Handle, as_json: bool) -> None:
        entries = handle.history()
        if as_json:
            self.stdout.write(json.dumps([_plain(entry) for entry in entries]))
            return
        for entry in entries:
            tries = f"  {len(entry.attempts)} attempts" if len(entry.attempts) > 1 else ""
            error = f"  {entry.error}" if entry.error else ""
            self.stdout.write(
                f"{entry.seq:>6}  {entry.status:<10} {entry.kind:<8} {entry.location}{tries}{error}"
            )

    def _prune(self) -> None:
        from rivet_workflows.store import get_store
        from rivet_workflows.worker import maintenance

        self.stdout.write(f"pruned {maintenance.run_once(get_store())} rows")

    # -- operations

    def _on_one(self, command: str, handle: Handle, options: dict[str, Any]) -> None:
        if command == "show":
            self._show(handle, options["json"])
        elif command == "history":
            self._history(handle, options["json"])
        elif command == "send":
            sent = handle.send(options["queue"], _json(options["body"], "the body"))
            self.stdout.write(
                f"{sent.status}: message {sent.id}" + (", a duplicate" if sent.duplicate else "")
            )
        elif command == "call":
            args = [_json(text, "an argument") for text in options["arguments"]]
            self.stdout.write(json.dumps(codec.to_plain(handle.call(options["action"], *args))))
        else:
            entry = options.get("entry")
            done = (
                handle.replay_from(int(entry) if entry and entry.isdigit() else entry)
                if command == "replay"
                else (getattr(handle, command)())
            )
            if done is False:
                raise CommandError(f"{command} changed nothing: the actor is {handle.status()}")
            self.stdout.write(f"{command}: done")


def _find(text: str) -> Handle:
    try:
        return client.get_for_id(uuid.UUID(text))
    except ValueError:
        pass
    name, slash, key = text.partition("/")
    if not slash:
        raise CommandError(f"{text!r} is neither an actor's id nor name/key")
    if key.startswith("["):
        return client.get(name, tuple(_json(key, "a key of several parts")))
    return client.get(name, key)


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise CommandError(
            f"{what} must be JSON (quote texts: '\"like this\"'), not {text!r}: {exc}"
        ) from exc


def _shown(key: Any) -> str:
    """On one line, and nothing that a terminal would obey."""
    text = key if isinstance(key, str) else json.dumps(list(key))
    return text if text.isprintable() else ascii(text)


def _plain(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "kind": entry.kind,
        "location": entry.location,
        "status": entry.status,
        "attempts": len(entry.attempts),
        "error": str(entry.error) if entry.error else None,
        "started_at": entry.started_at and entry.started_at.isoformat(),
        "done_at": entry.done_at and entry.done_at.isoformat(),
    }
