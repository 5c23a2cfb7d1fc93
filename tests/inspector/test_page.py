"""An actor's page: one page answers what it waits for, why a step failed, and what will happen next."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from rivet_workflows import Actor as DeclaredActor
from rivet_workflows import action, client
from rivet_workflows.exceptions import failure_record
from rivet_workflows.models import Actor, History, Run
from rivet_workflows.records import Blocked, EntryStatus, Finish, Kind, Lifecycle, child_scope
from rivet_workflows.registry import registry
from rivet_workflows.store import get_store
from tests.inspector.conftest import commit, completed, error, failed_step, order, page_of, step


def text_of(response: Any) -> str:
    """What is read, without tags and runs of blanks."""
    assert response.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def open_wait(**more: Any) -> dict[str, Any]:
    now = get_store().clock.now()
    entry = {
        "s": 3,
        "p": "",
        "n": "wait-approval",
        "k": int(Kind.MESSAGE),
        "t": now - 5_000_000,
        "q": ["approval"],
    }
    return entry | more


def test_a_wait_says_for_what_since_when_and_what_ends_it(operator: Client) -> None:
    handle = order()
    due = get_store().clock.now() + 3_600_000_000
    commit(handle, [step(1, "reserve")], opened=[open_wait(d=due)])
    shown = text_of(operator.get(page_of(handle)))
    assert "Waits for a message in “approval”." in shown
    assert "“wait-approval” waits since" in shown
    assert "A message ends the wait “wait-approval”; without one it gives up at" in shown
    assert "No running worker has code for “order”" in shown


def test_a_failure_shows_the_projects_error_its_traceback_and_the_step(operator: Client) -> None:
    handle = order()
    row = failed_step(2)
    commit(handle, [step(1), row], finish=Finish(Lifecycle.FAILED, get_store().clock.now(), error=row.error))
    response = operator.get(page_of(handle))
    shown = text_of(response)
    assert "The workflow failed." in shown
    assert "CardDeclined : The card was declined" in shown
    assert "Step “charge-card” failed (exhausted) after 2 attempts." in shown
    assert "in charge" in shown
    assert 'href="#e2"' in response.content.decode()
    assert "Recover tries the failed steps again" in shown


def test_a_step_in_backoff_says_when_it_is_tried_again(operator: Client) -> None:
    handle = order()
    now = get_store().clock.now()
    past = [[now - 2_000_000, now - 1_000_000, error("no answer").to_dict()]]
    entry = {
        "s": 1,
        "p": "",
        "n": "book",
        "k": int(Kind.STEP),
        "t": now,
        "a": 2,
        "b": now + 60_000_000,
        "x": past,
    }
    commit(handle, opened=[entry], keep=True)
    response = operator.get(page_of(handle))
    shown = text_of(response)
    assert "Waits to try the step “book” again." in shown
    assert "“book” failed: CardDeclined: no answer" in shown
    assert "Attempt 2 of “book” at" in shown
    assert "Held by worker web-1:4711." in shown
    assert "/do/recover/" in response.content.decode()


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (Blocked.DIVERGED, "the code no longer fits the history"),
        (Blocked.POISONED, "took its worker process down again and again"),
        (Blocked.UNREADABLE, "its stored rows could not be decoded"),
        (Blocked.ROLLBACK_FAILED, "Its rollback is stuck"),
        (Blocked.PAUSED, "Paused: no worker runs it."),
    ],
)
def test_trouble_says_what_to_do(operator: Client, block: Blocked, said: str) -> None:
    handle = order()
    commit(handle, opened=[open_wait()])
    Run.objects.filter(actor_id=handle.actor_id).update(blocked=int(block))
    assert said in text_of(operator.get(page_of(handle)))


def test_loops_and_branches_are_grouped_under_what_opened_them(operator: Client) -> None:
    handle = order()
    join = step(1, "load", kind=Kind.JOIN, input=json.dumps(["users", "orders"]), output=None)
    loop = {"s": 6, "p": "", "n": "pages", "k": int(Kind.LOOP), "t": 1, "i": 1, "v": "null"}
    rows = [
        join,
        step(2, "a", scope=child_scope("", 1, 0)),
        step(3, "b", scope=child_scope("", 1, 1)),
        step(4, "c", scope=child_scope("", 1, 0)),
        step(7, "d", scope=child_scope("", 6, 1)),
    ]
    commit(handle, rows, opened=[loop])
    response = operator.get(page_of(handle))
    page = response.context["page"]
    roots = page.timeline.root.nodes
    assert [node.line.label for node in roots] == ["load", "pages"]
    groups = roots[0].children()
    assert [(g.label, [n.line.label for n in g.nodes]) for g in groups] == [
        ("branch users", ["a", "c"]),
        ("branch orders", ["b"]),
    ]
    assert page.timeline.nodes[4].location == "load/users/c"
    assert page.timeline.nodes[7].location == "pages/~1/d"
    assert [e.location for e in handle.history()] == [
        page.timeline.nodes[e.seq].location for e in handle.history()
    ]


def test_history_is_paged_by_seq_and_headings_go_on(operator: Client) -> None:
    handle = order()
    scope = child_scope("", 1, 0)
    loop = {"s": 1, "p": "", "n": "pages", "k": int(Kind.LOOP), "t": 1, "i": 0, "v": "null"}
    commit(handle, [step(seq, scope=scope) for seq in range(2, 252)], opened=[loop])
    last = operator.get(page_of(handle))
    html = last.content.decode()
    assert 'id="e251"' in html
    assert 'id="e152"' in html
    assert 'id="e151"' not in html
    assert "continued" in html  # the loop's own line is on the first page
    assert 'href="?before=152"' in html
    middle = operator.get(page_of(handle) + "?before=152").content.decode()
    assert 'id="e52"' in middle
    assert 'id="e152"' not in middle
    assert 'href="?since=152"' in middle
    first = operator.get(page_of(handle) + "?before=52").content.decode()
    assert 'id="e1"' in first
    assert "?before=" not in first
    forward = operator.get(page_of(handle) + "?since=52").content.decode()
    assert 'id="e52"' in forward
    assert 'id="e151"' in forward
    assert 'href="?since=152"' in forward
    assert operator.get(page_of(handle) + "?before=nonsense&since=-1").status_code == 200


def test_few_queries_and_no_count(staff: Any) -> None:
    viewer = staff("view_actor")
    handle = order(input={"cart": [1]})
    scope = child_scope("", 1, 0)
    commit(handle, [step(seq, scope=scope) for seq in range(2, 130)], opened=[open_wait(s=130)], keep=True)
    for number in range(40):
        handle.send("approval", number)
    get_store().add_events(handle.actor_id, [("changed", "1")] * 40)
    with CaptureQueriesContext(connection) as seen:
        response = viewer.get(page_of(handle))
    assert response.status_code == 200
    assert len(seen) <= 15, "\n".join(q["sql"] for q in seen)
    assert not [q for q in seen if "COUNT(" in q["sql"].upper()]
    rows = [q["sql"] for q in seen if re.search(r'FROM "?rivet_(history|message|event)', q["sql"])]
    assert not [sql for sql in rows if not re.search(r'LIMIT|"seq" IN', sql)]


def test_a_look_that_finds_nothing_new_is_cheap(operator: Client) -> None:
    handle = order()
    commit(handle, opened=[open_wait()])
    version = operator.get(page_of(handle)).context["version"]
    with CaptureQueriesContext(connection) as seen:
        same = operator.get(page_of(handle), {"fragment": 1, "version": version})
    assert (same.status_code, same.content) == (204, b"")
    assert len(seen) <= 8
    handle.send("approval", 1)
    fresh = operator.get(page_of(handle), {"fragment": 1, "version": version})
    assert fresh.status_code == 200
    assert "<html" not in fresh.content.decode()
    assert "no-store" in fresh["Cache-Control"]
    assert "approval" in fresh.content.decode()


class Point:
    """Stands for a class that is gone when the page is opened."""


HARD = {
    "nan": float("nan"), "inf": float("-inf"), "big": 2**80, "bytes": b"\x00\xff", "surrogate": "\ud800",
    "nul": "a\0b", "html": "<script>alert(1)</script>", "set": {1, 2}, 7: "int key",
}  # fmt: skip


def test_values_that_json_cannot_show(operator: Client) -> None:
    handle = order(input=HARD)
    commit(handle, [step(1, output=HARD), step(2, "s\ud7ff")], finish=completed(HARD))
    html = operator.get(page_of(handle)).content.decode()
    assert "NaN" in html
    assert str(2**80) in html
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_large_values_are_cut_in_the_database(operator: Client) -> None:
    handle = order()
    large = json.dumps("x" * 5_000_000)
    rows = [step(seq, output=None) for seq in range(1, 4)]
    commit(handle, rows)
    History.objects.filter(actor_id=handle.actor_id).update(output=large, error=None, attempts=large)
    Actor.objects.filter(id=handle.actor_id).update(output=large, input=large, error=large)
    response = operator.get(page_of(handle))
    assert response.status_code == 200
    assert len(response.content) < 200_000
    assert "Download the whole" in response.content.decode()
    raw = operator.get(f"/admin/rivet_workflows/actor/{handle.actor_id}/raw/output/?entry=2")
    assert raw.content.decode() == large
    assert raw["Content-Disposition"].startswith("attachment")
    assert raw["X-Content-Type-Options"] == "nosniff"


DAMAGED: list[dict[str, Any]] = [
    {"kind": 99}, {"status": 77}, {"output": "{not json"}, {"output": '{"$": "obj", "c": "gone.Point", "f": {"x": 1}}'},
    {"error": "{not json"}, {"error": "[1, 2]"}, {"attempts": "[[1, 2"}, {"attempts": '[["x", {}, 3]]'},
    {"scope": "zz" * 12}, {"scope": "abc"}, {"started_at": -5}, {"done_at": 2**62}, {"name": ""},
    {"input": '{"names"', "kind": int(Kind.MESSAGE)}, {"error": '{"error": {"metadata": [1], "bases": 5}}'},
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED, ids=str)
def test_a_damaged_row_is_a_line_and_the_page_loads(operator: Client, damage: dict[str, Any]) -> None:
    handle = order()
    commit(handle, [step(1, "before"), step(2, "damaged"), step(3, "after")])
    History.objects.filter(actor_id=handle.actor_id, seq=2).update(**damage)
    response = operator.get(page_of(handle))
    assert response.status_code == 200
    html = response.content.decode()
    assert "before" in html
    assert "after" in html
    assert 'id="e2"' in html


@pytest.mark.parametrize(
    "inflight",
    ["{not json", "[]", '{"e": 5}', '{"e": [5, {}, {"s": "x"}, {"s": 1}, {"s": 1, "p": "zz", "k": 99, "n": "n"}]}',
     '{"e": [{"s": 1, "p": "", "n": "m", "k": 11, "t": 1, "bn": 3}]}'],
)  # fmt: skip
def test_a_damaged_position_does_not_stop_the_page(operator: Client, inflight: str) -> None:
    handle = order()
    commit(handle, [step(2, "whole")], inflight=inflight)
    assert "whole" in text_of(operator.get(page_of(handle)))
    assert operator.get("/admin/rivet_workflows/actor/").status_code == 200


def test_damage_in_the_actors_own_rows(operator: Client) -> None:
    handle = order()
    commit(handle)
    Actor.objects.filter(id=handle.actor_id).update(
        key="not json", lifecycle=99, error="{", input="{", output="x"
    )
    assert "cannot be read by this version" in text_of(operator.get(page_of(handle)))
    assert operator.get("/admin/rivet_workflows/actor/").status_code == 200
    Run.objects.filter(actor_id=handle.actor_id).delete()
    assert operator.get(page_of(handle)).status_code == 200
    assert operator.get("/admin/rivet_workflows/actor/").status_code == 200


def test_a_class_that_is_gone(operator: Client) -> None:
    handle = order()
    commit(handle, [step(1)])
    registry.unregister("order")
    assert "No class named “order” is known here" in text_of(operator.get(page_of(handle)))


def test_an_actor_that_is_not_there(operator: Client) -> None:
    handle = order()
    handle.destroy()
    assert operator.get(page_of(handle)).status_code == 302
    assert operator.get("/admin/rivet_workflows/actor/nonsense/change/").status_code == 302
    assert operator.get(page_of(handle) + "?fragment=1").status_code == 404
    assert operator.post(page_of(order("other"))).status_code == 405


def test_two_actors_of_one_key_are_kept_apart(operator: Client) -> None:
    mine, other = order("same"), order("same", name="plain")
    commit(mine, [step(1, "mine-alone", output="secret")])
    mine.send("approval", "for-me")
    html = operator.get(page_of(other)).content.decode()
    assert "mine-alone" not in html
    assert "secret" not in html
    assert "for-me" not in html


def test_an_error_of_many_branches_is_shown_from_its_beginning(operator: Client) -> None:
    from rivet_workflows.exceptions import JoinError

    handle = order()
    exc = JoinError("join failed", errors={f"b{n}": error("x" * 5_000) for n in range(200)})
    row = step(1, "all", kind=Kind.JOIN, status=EntryStatus.FAILED, error=json.dumps(failure_record(exc)))
    commit(handle, [row], finish=Finish(Lifecycle.FAILED, get_store().clock.now(), error=row.error))
    response = operator.get(page_of(handle))
    assert "JoinError" in text_of(response)
    assert len(response.content) < 500_000


@pytest.mark.parametrize("fired", [False, True])
def test_the_page_of_an_actor_with_schedules_shows_them(operator: Client, rivet: Any, fired: bool) -> None:
    class Later(DeclaredActor):
        def on_create(self, c: Any, given: Any) -> None:
            c.schedule.after(3600, "tick")
            c.cron.every(name="hourly", interval=1800, action="tick")

        @action
        def tick(self, c: Any) -> None:
            """Nothing to do."""

    handle = client.create(Later)
    if fired:
        rivet.advance(hours=1)
    assert "hourly" in text_of(operator.get(page_of(handle)))
