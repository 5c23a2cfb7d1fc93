"""The proof: what the payment service's own ledger, the events and the pages say. Each finding is one sentence."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from runner.site import Site
from runner.story import ENDS, Story
from runner.websocket import EventWatcher


def faults(story: Story, ledger: dict[str, Any], watcher: EventWatcher, site: Site) -> list[str]:
    """All that is not as promised; empty when the demo has shown what it says."""
    found: list[str] = []
    for check in (
        of_orders(story),
        of_ledger(story, ledger),
        of_kills(story, ledger),
        of_events(story, watcher),
        of_pages(site),
    ):
        found += check
    return found


def of_orders(story: Story) -> Iterator[str]:
    for plan in story.plans:
        status = story.rows.get(plan.key, {}).get("status", "lost")
        if status not in plan.ends:
            yield f"{plan.key} ended as {status!r}, not as {' or '.join(sorted(plan.ends))}"
    prints = sum(p.sku == "print" and story.rows[p.key]["status"] == "confirmed" for p in story.plans)
    if prints != 3:
        yield f"3 signed prints were in stock, {prints} were sold"
    actors = story.site.rest_list("actors/?name=order")
    unfinished = [a["key"] for a in actors if a["status"] != "completed"]
    if len(actors) != len(story.plans) or unfinished:
        yield f"of {len(actors)} workflows (expected {len(story.plans)}) these are not completed: {unfinished}"


def of_ledger(story: Story, ledger: dict[str, Any]) -> Iterator[str]:
    charges: dict[str, list[int]] = defaultdict(list)
    for charge in ledger["charges"]:
        charges[charge["order"]].append(charge["amount"])
    expected = 0
    for order, row in story.rows.items():
        due = [row["total"]] if row["status"] == "confirmed" else []
        expected += sum(due)
        if charges[order] != due:
            yield f"{order} is {row['status']!r} and was charged {charges[order]}; due was {due}"
    if ledger["total"] != expected:
        yield f"the ledger's total is {ledger['total']}, the confirmed orders' {expected}"
    keys = Counter(call["order"] for call in ledger["calls"].values())
    yield from (f"{order} was asked for with {n} idempotency keys" for order, n in keys.items() if n > 1)


def of_kills(story: Story, ledger: dict[str, Any]) -> Iterator[str]:
    if len(story.murders) != 2 or story.worker.kills != 2:
        yield f"the worker was killed {story.worker.kills} times, not twice"
    for number, murder in enumerate(story.murders, 1):
        if murder.unfinished == 0:
            yield f"kill {number} came when all orders were done"
        if not interrupted(murder.keys, ledger):
            yield f"kill {number} interrupted nothing: no charge of {murder.charging} was asked for again"


def interrupted(keys: list[str], ledger: dict[str, Any]) -> list[str]:
    """Orders whose charge was in flight at a kill and was asked for again afterwards."""
    calls = [ledger["calls"][key] for key in keys]
    return [call["order"] for call in calls if call["calls"] > 1]


def of_events(story: Story, watcher: EventWatcher) -> Iterator[str]:
    if watcher.error:
        yield f"the WebSocket broke: {watcher.error}"
    numbers = [event["seq"] for event in watcher.events]
    if numbers != sorted(set(numbers)):
        yield "events came twice or out of order over the WebSocket"
    last = {event["payload"]["order"]: event["payload"]["status"] for event in watcher.events}
    missing = [plan.key for plan in story.plans if last.get(plan.key) not in ENDS]
    if missing:
        yield f"{len(numbers)} events came over the WebSocket; none told the end of {missing}"


def of_pages(site: Site) -> Iterator[str]:
    paths = ["/", "/static/rivet_workflows/rivet.js", "/admin/", "/admin/rivet_workflows/"]
    _, index = site.page("/admin/rivet_workflows/")
    paths += sorted(set(re.findall(r'href="(/admin/rivet_workflows/[a-z_]+/)"', index)))
    if len(paths) < 5:
        yield "the admin has no list of actors"
    for path in paths:
        status, _ = site.page(path)
        if status != 200:
            yield f"{path} answered {status}"


def ledger_for_people(story: Story, ledger: dict[str, Any]) -> str:
    """The ledger in a few lines: what was asked, what was charged, and what went wrong on purpose."""
    outcomes = Counter(outcome for call in ledger["calls"].values() for outcome in call["outcomes"])
    charged = Counter(charge["order"] for charge in ledger["charges"])
    confirmed = [order for order, row in story.rows.items() if row["status"] == "confirmed"]
    twice = [order for order, n in charged.items() if n > 1]
    lost = [order for order in confirmed if order not in charged]
    again = {
        order: len(call["outcomes"])
        for murder in story.murders
        for order in interrupted(murder.keys, ledger)
        for call in ledger["calls"].values()
        if call["order"] == order
    }
    lines = [
        "",
        "The payment service's own ledger",
        f"  {len(story.plans)} orders, {sum(outcomes.values())} calls, {len(ledger['charges'])} charges, "
        f"{ledger['total'] / 100:,.2f} in all",
        f"  charged twice: {', '.join(twice) or 'none'}        lost: {', '.join(lost) or 'none'}",
        "  calls: " + ", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common()),
    ]
    lines += [
        f"  {order} was being charged when kill -9 came: asked {n} times, charged once"
        for order, n in again.items()
    ]
    return "\n".join(lines)
