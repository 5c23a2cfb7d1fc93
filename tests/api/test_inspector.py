"""Looking into an actor over REST: history, state, queue, events, and the operations on its run."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from rivet_workflows import Actor, ErrorInfo, action, client, codec
from rivet_workflows.models import Event
from tests.client import worker_side
from tests.client.shop import Cart, Order
from tests.client.worker_side import AT, Kind, child_scope

pytestmark = pytest.mark.django_db

WHEN = "2023-11-14T22:13:20"


@pytest.fixture
def order():
    return client.create(Order, "o-1")


def inspector(api, handle, what, method="get", data=None):
    return getattr(api, method)(f"/rivet/actors/{handle.actor_id}/inspector/{what}", data, format="json")


def test_a_insp_03_the_history_of_a_workflow(api, order):
    failed = ErrorInfo.from_exception(OSError("down")).to_dict()
    worker_side.row(
        order, 1, "charge", Kind.STEP, input=codec.dumps([["o-1"], {}]), output=codec.dumps({"paid": (1,)}),
        attempts=json.dumps([[AT, AT + 1, failed], [AT + 2, AT + 3, None]]),
    )  # fmt: skip
    worker_side.row(order, 3, "inner", Kind.SLEEP, child_scope("", 2, 0), input='["cut')
    worker_side.open_entries(order, {"s": 2, "p": "", "n": "outer", "k": Kind.LOOP, "t": AT, "i": 0})
    body = inspector(api, order, "workflow-history").json()
    entries = body.pop("history")["entries"]
    assert body == {"is_workflow_enabled": True, "status": "pending"}
    assert [(e["seq"], e["location"], e["kind"], e["status"]) for e in entries] == [
        (1, "charge", "step", "completed"),
        (2, "outer", "loop", "running"),
        (3, "outer/~0/inner", "sleep", "completed"),
    ]
    assert entries[0] == {
        "seq": 1, "done_seq": 101, "location": "charge", "name": "charge", "kind": "step", "status": "completed",
        "attempts": [
            {
                "started_at": f"{WHEN}+00:00", "done_at": f"{WHEN}.000001+00:00",
                "error": {"type": "OSError", "message": "down", "metadata": {}},
            },
            {"started_at": f"{WHEN}.000002+00:00", "done_at": f"{WHEN}.000003+00:00", "error": None},
        ],
        "input": [["o-1"], {}], "output": {"paid": [1]}, "error": None,
        "started_at": f"{WHEN}.000001+00:00", "done_at": f"{WHEN}.000002+00:00",
    }  # fmt: skip
    assert entries[2]["input"] == '["cut'


def test_a_insp_04_an_actor_without_workflow_has_no_history(api):
    body = inspector(api, client.create(Cart, 1), "workflow-history").json()
    assert body == {"is_workflow_enabled": False, "status": "idle", "history": None}


def test_a_insp_02_the_summary(staff):
    cart = client.create(Cart, 1)
    cart.note("x")
    body = inspector(staff, cart, "summary").json()
    assert (body["name"], body["status"], body["queue_size"]) == ("cart", "idle", 1)
    assert (body["is_workflow_enabled"], body["is_state_enabled"]) == (False, True)
    assert body["state"] == {"owner": "", "lines": [], "log": []}
    assert "add" in body["actions"]
    assert (body["queues"], body["events"]) == (["notes"], ["changed"])


class TestState:
    def test_it_is_shown_and_replaced(self, staff):
        @dataclass
        class Count:
            n: int = 0

        class Tally(Actor):
            state = Count

            @action(read_only=True)
            def read(self, c):
                return c.state

        globals()["Count"], Count.__qualname__ = Count, "Count"
        counter = client.create(Tally, 1)
        assert inspector(staff, counter, "state").json() == {"is_state_enabled": True, "state": {"n": 0}}
        answer = inspector(staff, counter, "state", "patch", {"state": {"n": "7"}})
        assert answer.json() == {"is_state_enabled": True, "state": {"n": 7}}
        assert counter.read() == Count(7)
        assert inspector(staff, counter, "state", "patch", {"state": {"n": "x"}}).status_code == 422
        assert inspector(staff, counter, "state", "patch", {}).status_code == 422
        assert counter.read() == Count(7)

    def test_an_actor_without_state_has_none(self, staff, order):
        assert inspector(staff, order, "state").json() == {"is_state_enabled": False, "state": None}
        assert inspector(staff, order, "state", "patch", {"state": 1}).status_code == 422


def test_the_queue(staff, order):
    for n in range(3):
        order.send("orders", {"order_id": n})
    body = inspector(staff, order, "queue?limit=2").json()
    assert (body["size"], body["max_size"], body["truncated"]) == (3, 1000, True)
    assert [(m["queue"], m["body"]["order_id"]) for m in body["messages"]] == [("orders", 0), ("orders", 1)]
    assert inspector(staff, order, "queue?limit=0").status_code == 422


class TestEvents:
    def url(self, handle, query=""):
        return f"/rivet/actors/{handle.actor_id}/events/{query}"

    @pytest.fixture
    def cart(self):
        cart = client.create(Cart, 1)
        for sku in "abc":
            cart.add({"sku": sku})
        return cart

    def test_all_and_those_after_one(self, api, cart):
        body = api.get(self.url(cart)).json()
        assert [(e["seq"], e["name"], e["payload"]) for e in body["results"]] == [
            (1, "changed", 1),
            (2, "changed", 2),
            (3, "changed", 3),
        ]
        assert body["gap"] is None
        assert "created_at" in body["results"][0]
        assert [e["seq"] for e in api.get(self.url(cart, "?after=2")).json()["results"]] == [3]
        assert [e["seq"] for e in api.get(self.url(cart, "?limit=1")).json()["results"]] == [1]
        assert api.get(self.url(cart, "?after=3")).json() == {"results": [], "gap": None}

    def test_a_gap_says_what_is_no_longer_kept(self, api, cart):
        Event.objects.filter(actor_id=cart.actor_id, seq__lte=2).delete()
        body = api.get(self.url(cart)).json()
        assert (body["gap"], [e["seq"] for e in body["results"]]) == ({"from": 1, "to": 2}, [3])
        assert api.get(self.url(cart, "?after=2")).json()["gap"] is None
        Event.objects.filter(actor_id=cart.actor_id).delete()
        assert api.get(self.url(cart, "?after=1")).json() == {"results": [], "gap": {"from": 2, "to": 3}}

    @pytest.mark.parametrize(
        "query", ["?after=x", "?after=-1", "?after=1.5", "?limit=0", "?limit=1001", "?after=" + "9" * 30]
    )
    def test_numbers_that_are_none(self, api, cart, query):
        assert api.get(self.url(cart, query)).status_code == 422


class TestControls:
    def test_pause_and_resume(self, staff, order):
        answers = [inspector(staff, order, what, "post").json() for what in ("pause", "pause", "resume")]
        assert [(a["done"], a["status"]) for a in answers] == [
            (True, "paused"),
            (False, "paused"),
            (True, "pending"),
        ]

    def test_cancel(self, staff, order):
        answers = [inspector(staff, order, "cancel", "post").json() for _ in range(2)]
        assert [(a["done"], a["status"]) for a in answers] == [(True, "cancelled"), (False, "cancelled")]

    def test_an_entry_that_is_not_there(self, staff, order):
        for what in ("replay", "skip"):
            answer = inspector(staff, order, what, "post", {"entry": "nowhere"})
            assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")

    def test_a_insp_06_unknown_keys_and_operations(self, staff, order):
        assert inspector(staff, order, "cancel", "post", {"force": True}).status_code == 422
        assert inspector(staff, order, "explode", "post").status_code == 404


def test_the_openapi_document(api, anonymous):
    pytest.importorskip("drf_spectacular")
    assert anonymous.get("/rivet/schema/").status_code == 401
    document = api.get("/rivet/schema/").json()
    assert "/rivet/actors/{actor_id}/queues/{queue}/" in document["paths"]
    assert "/rivet/actors/" in document["paths"]
    assert set(document["components"]["schemas"]["RivetSendRequest"]["properties"]) == {
        "body", "wait", "timeout", "delay"
    }  # fmt: skip
