"""Actions and sends over REST."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from rivet_workflows import Actor, UserError, action, client
from rivet_workflows.client import looking, waiting
from tests.client import worker_side
from tests.client.shop import Cart, Order

pytestmark = pytest.mark.django_db


def call(api, handle, action, *args, **kwargs):
    url = f"/rivet/actors/{handle.actor_id}/actions/{action}/"
    return api.post(url, {"args": args, "kwargs": kwargs}, format="json")


def send(api, handle, queue, body=None, *, key=None, **data):
    headers = {} if key is None else {"Idempotency-Key": key}
    url = f"/rivet/actors/{handle.actor_id}/queues/{queue}/"
    return api.post(url, {"body": body, **data}, format="json", headers=headers)


@pytest.fixture
def cart():
    return client.create(Cart, "c-1")


@pytest.fixture
def order():
    return client.create(Order, "o-1")


class TestActions:
    def test_output_is_what_the_action_returned_as_json(self, api, cart):
        assert call(api, cart, "add", {"sku": "a"}).json() == {"output": 1}
        assert call(api, cart, "add", line={"sku": "b", "count": 2}).json() == {"output": 2}
        assert call(api, cart, "get_lines").json() == {
            "output": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}]
        }

    def test_values_that_json_has_no_type_for_have_their_json_form(self, api):
        class Values(Actor):
            @action(read_only=True)
            def read(self, c):
                return {
                    "when": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("1.10"), "tags": {"x"},
                    "nan": float("nan"), "big": 2**60, "raw": b"abc", 5: (1, 2), "half": "\ud800",
                }  # fmt: skip

        answer = call(api, client.create(Values, 1), "read")
        assert answer.json()["output"] == {
            "when": "2026-01-02T00:00:00+00:00", "price": "1.10", "tags": ["x"], "nan": "NaN", "big": str(2**60),
            "raw": "YWJj", "5": [1, 2], "half": "\\ud800",
        }  # fmt: skip

    def test_async_actions_too(self, api, cart):
        assert call(api, cart, "aadd_slowly", {"sku": "a"}).json() == {"output": 1}

    def test_a_http_03_a_user_error_reaches_the_caller_as_it_is(self, api, cart):
        answer = call(api, cart, "add_and_fail", {"sku": "a"})
        assert answer.status_code == 400
        assert answer.json() == {
            "code": "closed",
            "detail": "no more today",
            "metadata": {"until": "tomorrow"},
        }
        assert cart.get_lines() == []

    def test_any_other_error_is_masked_and_logged_in_full(self, api, caplog):
        class Broken(Actor):
            state = dict

            @action
            def go(self, c):
                c.state["touched"] = True
                raise ValueError("the password is hunter2")

            @action(read_only=True)
            def read(self, c):
                return c.state

        broken = client.create(Broken, 1)
        answer = call(api, broken, "go")
        assert answer.status_code == 500
        assert answer.json() == {
            "code": "internal_error",
            "detail": "an internal error occurred",
            "metadata": {},
        }
        assert "hunter2" in caplog.text
        assert broken.read() == {}

    def test_a_result_that_cannot_be_sent_is_the_servers_fault_and_undoes_the_action(self, api, caplog):
        class Odd(Actor):
            state = dict

            @action
            def go(self, c):
                c.state["touched"] = True
                return object()

            @action(read_only=True)
            def read(self, c):
                return c.state

        odd = client.create(Odd, 1)
        assert call(api, odd, "go").status_code == 500
        assert "odd.go returned what cannot be sent" in caplog.text
        assert odd.read() == {}

    @pytest.mark.parametrize(
        ("action", "args", "kwargs", "status", "code"),
        [
            ("nothing", [], {}, 404, "action_not_found"),
            ("on_destroy", [], {}, 404, "action_not_found"),
            ("__init__", [], {}, 404, "action_not_found"),
            ("add", [], {}, 422, "validation_failed"),
            ("add", [{"sku": 5}], {}, 422, "validation_failed"),
            ("add", [{"sku": "a"}], {"more": 1}, 422, "validation_failed"),
            ("flush", [], {}, 503, "no_worker"),
        ],
    )
    def test_calls_that_cannot_be_answered(self, api, cart, settings, action, args, kwargs, status, code):
        settings.RIVET_WORKFLOWS = {"WORKER_ACTION_TIMEOUT": 0.01}
        answer = call(api, cart, action, *args, **kwargs)
        assert (answer.status_code, answer.json()["code"]) == (status, code)

    def test_busy_says_when_to_try_again(self, api, cart, settings):
        settings.RIVET_WORKFLOWS = {"WORKER_ACTION_TIMEOUT": 0.01}
        assert call(api, cart, "flush").headers["Retry-After"] == "1"

    def test_an_action_knows_its_user(self, api, user):
        class Asker(Actor):
            @action(read_only=True)
            def who(self, c):
                return c.user.username

        assert call(api, client.create(Asker, 1), "who").json() == {"output": "ann"}

    @pytest.mark.parametrize("data", [{"args": {}}, {"args": "x"}, {"kwargs": []}, {"arg": []}])
    def test_bodies_that_do_not_fit(self, api, cart, data):
        url = f"/rivet/actors/{cart.actor_id}/actions/who/"
        assert api.post(url, data, format="json").status_code == 422

    def test_an_empty_body_calls_without_arguments(self, api, cart):
        assert api.post(f"/rivet/actors/{cart.actor_id}/actions/get_lines/").json() == {"output": []}

    def test_in_one_round_trip(self, api):
        url = "/rivet/call/cart/add/"
        data = {"key": ["eu", "1"], "args": [{"sku": "a"}]}
        assert api.post(url, data, format="json").json() == {"output": 1}
        assert api.post(url, data, format="json").json() == {"output": 2}
        assert client.get(Cart, ("eu", 1)).get_lines()[0].sku == "a"


class TestSends:
    def test_a_message_is_queued(self, api, order):
        answer = send(api, order, "orders", {"order_id": 5})
        assert answer.status_code == 202
        body = answer.json()
        assert body == {"status": "queued", "id": body["id"], "response": None, "duplicate": False}
        assert [m.body for m in looking.messages(order)] == [{"order_id": 5, "total": 0.0}]

    def test_an_idempotency_key_sends_once(self, api, order):
        first, second = (send(api, order, "control-commands", n, key="evt 42").json() for n in (1, 2))
        assert (first["duplicate"], second["duplicate"]) == (False, True)
        assert first["id"] == second["id"]
        assert send(api, order, "control-commands", key="x" * 256).status_code == 422

    def test_waiting_gives_the_response_or_times_out(self, api, order):
        def answer(look, timeout):
            worker_side.complete(order, {"at": datetime(2026, 1, 2, tzinfo=UTC)})
            return look()

        waiting.set_driver(answer)
        try:
            answered = send(api, order, "control-commands", wait=True)
        finally:
            waiting.set_driver(None)
        assert send(api, order, "control-commands", wait=True, timeout=0.02).json()["status"] == "timed_out"
        assert answered.status_code == 200
        assert answered.json()["status"] == "completed"
        assert answered.json()["response"] == {"at": "2026-01-02T00:00:00+00:00"}

    def test_an_error_of_a_waiting_send_has_its_status(self, api, order):
        answer = send(api, order, "orders", "nonsense", wait=True)
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")

    @pytest.mark.parametrize(
        ("queue", "data", "status", "code"),
        [
            ("nothing", {}, 404, "queue_not_found"),
            ("orders", {"body": {"order_id": "x"}}, 422, "validation_failed"),
            ("orders", {"wait": True, "timeout": 61}, 422, "validation_failed"),
            ("orders", {"wait": True, "timeout": -1}, 422, "validation_failed"),
            ("orders", {"wait": "maybe"}, 422, "validation_failed"),
            ("orders", {"delay": -1}, 422, "validation_failed"),
            ("orders", {"delay": 1e300}, 422, "validation_failed"),
            ("orders", {"delay": "nan"}, 422, "validation_failed"),
            ("orders", {"delay": 10**400}, 422, "validation_failed"),
            ("orders", {"delay": [1]}, 422, "validation_failed"),
            ("orders", {"wait": True, "timeout": "nan"}, 422, "validation_failed"),
            ("orders", {"wait": True, "timeout": 10**400}, 422, "validation_failed"),
            ("control-commands", {"body": "x" * 70_000}, 413, "payload_too_large"),
        ],
    )
    def test_sends_that_are_refused(self, api, order, queue, data, status, code):
        answer = send(api, order, queue, **data)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert looking.messages(order) == []

    def test_a_delay_that_no_calendar_holds_is_named(self, api, order):
        answer = send(api, order, "control-commands", delay=1e300).json()
        assert answer["detail"].startswith("delay: delay is longer than")
        assert [issue["path"] for issue in answer["metadata"]["issues"]] == [["delay"]]

    @pytest.mark.parametrize("name", ["dedupe_key", "idempotency_key"])
    def test_a_dedupe_key_in_the_body_is_refused_with_the_header_it_goes_into(self, api, order, name):
        answer = send(api, order, "control-commands", **{name: "x"})
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
        assert "Idempotency-Key header" in answer.json()["detail"]

    def test_a_full_queue_is_429(self, api, order, settings):
        settings.RIVET_WORKFLOWS = {"MAX_QUEUE_SIZE": 1}
        send(api, order, "control-commands")
        assert send(api, order, "control-commands").status_code == 429

    def test_in_one_round_trip(self, api):
        answer = api.post("/rivet/send/order/orders/", {"key": "o-9", "body": {"order_id": 1}}, format="json")
        assert answer.status_code == 202
        assert len(looking.messages(client.get(Order, "o-9"))) == 1


class TestBodies:
    def post(self, api, order, text, **kwargs):
        url = f"/rivet/actors/{order.actor_id}/queues/control-commands/"
        return api.post(url, text, content_type="application/json", **kwargs)

    @pytest.mark.parametrize(
        ("text", "about"),
        [
            ('{"body": NaN}', "NaN is not JSON"),
            ('{"body": -Infinity}', "-Infinity is not JSON"),
            ('{"body"', "JSON parse error"),
            (b"\xff\xfe", "JSON parse error"),
            ('{"body": ' + "[" * 100_000, "nested too deeply"),
            ('{"body": ' + "9" * 10_000 + "}", "JSON parse error"),
        ],
    )
    def test_what_is_no_json_is_400(self, api, order, text, about):
        answer = self.post(api, order, text)
        assert (answer.status_code, answer.json()["code"]) == (400, "parse_error")
        assert about in answer.json()["detail"]

    def test_too_much_is_413_before_it_is_read(self, api, order):
        answer = self.post(api, order, json.dumps({"body": "x" * 10_000_000}))
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")

    def test_too_deep_a_value_is_422(self, api, order):
        answer = self.post(api, order, '{"body": ' + "[" * 200 + "]" * 200 + "}")
        assert (answer.status_code, answer.json()["code"]) == (422, "not_serializable")

    def test_any_text_passes(self, api, order):
        self.post(api, order, r'{"body": "nul \u0000 and half a pair \ud800"}')
        assert looking.messages(order)[0].body.startswith("nul \0 and half")

    def test_other_content_types_are_415(self, api, order):
        url = f"/rivet/actors/{order.actor_id}/queues/orders/"
        assert api.post(url, "a=b", content_type="application/x-www-form-urlencoded").status_code == 415

    def test_a_http_01_other_methods_are_405(self, api, order):
        assert api.get(f"/rivet/actors/{order.actor_id}/queues/orders/").status_code == 405


def test_a_request_is_never_one_transaction(api, order, settings):
    """ATOMIC_REQUESTS would keep an action's lock for the whole view, and a waiting send for ever."""
    from django.db import connection

    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert send(api, order, "control-commands", wait=True, timeout=0).json()["status"] == "timed_out"
        assert call(api, client.create(Cart, 5), "get_lines").status_code == 200
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False


def test_an_unknown_actor_is_404(api):
    class Nobody:
        actor_id = uuid.uuid4()

    assert call(api, Nobody, "x").json()["code"] == "actor_not_found"
    assert send(api, Nobody, "x").json()["code"] == "actor_not_found"
    assert issubclass(UserError, Exception)
