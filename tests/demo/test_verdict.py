"""A proof that cannot fail proves nothing: each way to break the demo's promise is found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runner import verdict
from runner.story import Murder, Plan, plans

PLANS = [
    Plan("order-001", "mug", 1, "good", frozenset({"confirmed"})),
    Plan("order-002", "mug", 1, "bad", frozenset({"declined"})),
    *(Plan(f"order-00{n}", "print", 1, "good", frozenset({"confirmed", "sold out"})) for n in (3, 4, 5)),
]


def a_story() -> Any:
    rows = {p.key: {"status": "confirmed", "total": 500} for p in PLANS}
    rows["order-002"]["status"] = "declined"
    actors = [{"key": p.key, "status": "completed"} for p in PLANS]
    return SimpleNamespace(
        plans=PLANS,
        rows=rows,
        murders=[Murder(["order-001"], ["k1"], 4), Murder(["order-003"], ["k3"], 2)],
        worker=SimpleNamespace(kills=2),
        site=SimpleNamespace(rest_list=lambda path: actors),
        actors=actors,
    )


def a_ledger() -> dict[str, Any]:
    paid = [1, 3, 4, 5]
    return {
        "charges": [{"id": n, "key": f"k{n}", "order": f"order-00{n}", "amount": 500} for n in paid],
        "calls": {
            f"k{n}": {"order": f"order-00{n}", "calls": 2 if n in (1, 3) else 1, "outcomes": ["answered"]}
            for n in (1, 2, 3, 4, 5)
        },
        "in_flight": [],
        "total": 2000,
    }


def events(*last: str) -> Any:
    told = last or ("confirmed", "declined", "confirmed", "confirmed", "confirmed")
    frames = [
        {"seq": n, "payload": {"order": plan.key, "status": status}}
        for n, (plan, status) in enumerate(zip(PLANS, told, strict=True), 1)
    ]
    return SimpleNamespace(events=frames, error="")


def of_ledger(change: Any = None) -> list[str]:
    ledger = a_ledger()
    if change is not None:
        change(ledger)
    return list(verdict.of_ledger(a_story(), ledger))


def test_nothing_is_found_where_all_is_well() -> None:
    story = a_story()
    assert list(verdict.of_orders(story)) == []
    assert of_ledger() == []
    assert list(verdict.of_kills(story, a_ledger())) == []
    assert list(verdict.of_events(story, events())) == []
    assert "charged twice: none" in verdict.ledger_for_people(story, a_ledger())


def charge_twice(ledger: dict[str, Any]) -> None:
    ledger["charges"].append({"id": 9, "key": "k9", "order": "order-001", "amount": 500})


def lose_a_charge(ledger: dict[str, Any]) -> None:
    del ledger["charges"][0]


def charge_the_declined(ledger: dict[str, Any]) -> None:
    ledger["charges"].append({"id": 9, "key": "k2", "order": "order-002", "amount": 500})


def charge_too_much(ledger: dict[str, Any]) -> None:
    ledger["charges"][0]["amount"] = 501


def lose_a_cent(ledger: dict[str, Any]) -> None:
    ledger["total"] = 1999


def ask_with_another_key(ledger: dict[str, Any]) -> None:
    ledger["calls"]["k9"] = {"order": "order-001", "calls": 1, "outcomes": ["answered"]}


@pytest.mark.parametrize(
    "change",
    [charge_twice, lose_a_charge, charge_the_declined, charge_too_much, lose_a_cent, ask_with_another_key],
)
def test_a_wrong_ledger_is_found(change: Any) -> None:
    assert of_ledger(change) != []


def test_a_double_charge_is_told_to_people() -> None:
    ledger = a_ledger()
    charge_twice(ledger)
    lose_a_charge(ledger)
    ledger["charges"].append({"id": 10, "key": "k3", "order": "order-003", "amount": 500})
    text = verdict.ledger_for_people(a_story(), ledger)
    assert "charged twice: order-003" in text


def test_a_lost_or_wrong_order_is_found() -> None:
    story = a_story()
    story.rows["order-002"]["status"] = "confirmed"
    story.actors[0]["status"] = "failed"
    found = list(verdict.of_orders(story))
    assert "order-002 ended as 'confirmed', not as declined" in found
    assert any("order-001" in text and "not completed" in text for text in found)


def test_too_many_signed_prints_are_found() -> None:
    story = a_story()
    story.rows["order-005"]["status"] = "sold out"
    assert list(verdict.of_orders(story)) == ["3 signed prints were in stock, 2 were sold"]


def test_a_kill_that_interrupted_nothing_is_found() -> None:
    story, ledger = a_story(), a_ledger()
    ledger["calls"]["k3"]["calls"] = 1
    story.murders[0].unfinished = 0
    assert len(list(verdict.of_kills(story, ledger))) == 2
    story.murders.pop()
    assert any("not twice" in text for text in verdict.of_kills(story, ledger))


def test_missing_and_repeated_events_are_found() -> None:
    told = events("confirmed", "declined", "confirmed", "confirmed", "reserved")
    assert any("order-005" in text for text in verdict.of_events(a_story(), told))
    told = events()
    told.events.append(told.events[-1])
    assert any("twice" in text for text in verdict.of_events(a_story(), told))


def test_the_story_has_something_of_everything() -> None:
    kinds = [plan.sku for plan in plans()]
    assert len(kinds) == len({plan.key for plan in plans()}) == 36
    assert kinds.count("print") > 3
    assert kinds.count("desk") >= 3
    assert sum(plan.ends == {"rejected"} for plan in plans()) == 1
    assert sum(plan.ends == {"declined"} for plan in plans()) == 2
