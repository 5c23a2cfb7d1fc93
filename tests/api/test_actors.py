"""Actors over REST: get or create, list, look, destroy."""

from __future__ import annotations

import json
import uuid

import pytest

from rivet_workflows import client
from tests.client import worker_side
from tests.client.shop import Cart, Order

pytestmark = pytest.mark.django_db

ACTORS = "/rivet/actors/"


def put(api, **data):
    # By hand: the test client's own encoder has no bytes for half a surrogate pair.
    return api.put(ACTORS, json.dumps(data), content_type="application/json")


def test_a_http_04_put_makes_the_actor_once(api):
    first, second = (put(api, name="order", key="o-1", input={"total": 5}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"] == str(client.get(Order, "o-1").actor_id)
    assert first.json() | {"since": None, "id": None} == {
        "id": None,
        "name": "order",
        "key": "o-1",
        "status": "pending",
        "reason": None,
        "waiting_for": None,
        "since": None,
        "wake_at": None,
        "error": None,
    }


@pytest.mark.parametrize("key", ["a/b", ["eu", "7"], "nul\0", "\ud800", "", ["one", ""]])
def test_any_key_goes_in_and_comes_out_as_it_was(api, key):
    made = put(api, name="cart", key=key)
    assert made.status_code == 201
    assert made.json()["key"] == key
    assert api.get(f"{ACTORS}{made.json()['id']}/").json()["key"] == key


@pytest.mark.parametrize(
    ("data", "status", "code", "about"),
    [
        ({"name": "cart", "key": 5}, 422, "validation_failed", "string or a list of strings"),
        ({"name": "cart", "key": ["a", None]}, 422, "validation_failed", "string or a list of strings"),
        ({"name": "cart", "key": {"a": 1}}, 422, "validation_failed", "string or a list of strings"),
        ({"name": "cart", "key": "x" * 129}, 422, "validation_failed", "128 bytes"),
        ({"key": "x"}, 422, "validation_failed", "name: "),
        ({"name": "cart", "kye": "x"}, 422, "validation_failed", "did you mean key"),
        ({"name": "nobody", "key": "x"}, 404, "actor_not_found", "no actor is called 'nobody'"),
        ({"name": "a\0b", "key": "x"}, 422, "validation_failed", "name: "),
        ([1], 422, "validation_failed", "dictionary"),
        ("text", 422, "validation_failed", "dictionary"),
    ],
)
def test_requests_that_do_not_fit_are_refused_with_the_reason(api, data, status, code, about):
    answer = api.put(ACTORS, data, format="json")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert about in answer.json()["detail"]
    assert client.list(Cart) == []


def test_an_actor_is_found_by_its_id_and_gone_when_destroyed(staff):
    cart = client.create(Cart, 1)
    url = f"{ACTORS}{cart.actor_id}/"
    assert staff.get(url).json()["status"] == "idle"
    assert staff.delete(url).status_code == 204
    for answer in (staff.get(url), staff.delete(url), staff.get(f"{ACTORS}{uuid.uuid4()}/")):
        assert (answer.status_code, answer.json()["code"]) == (404, "actor_not_found")


def test_the_status_says_what_a_workflow_waits_for(api):
    order = client.create(Order, 1)
    at = worker_side.AT
    worker_side.open_entries(
        order, {"s": 1, "p": "", "n": "wait", "k": 4, "t": at, "q": ["orders"], "d": at + 1_000_000}
    )
    body = api.get(f"{ACTORS}{order.actor_id}/").json()
    assert (body["status"], body["waiting_for"]) == ("sleeping", ["orders"])
    assert (body["since"], body["wake_at"]) == ("2023-11-14T22:13:20+00:00", "2023-11-14T22:13:21+00:00")


def test_a_failed_workflow_shows_its_error_without_the_traceback(api):
    order = client.create(Order, 1)
    worker_side.fail(order, ValueError("broken"))
    error = api.get(f"{ACTORS}{order.actor_id}/").json()["error"]
    assert error == {"type": "ValueError", "message": "broken", "metadata": {}}


class TestList:
    def test_a_http_04_by_name_status_and_key(self, staff):
        carts = [client.create(Cart, n) for n in range(3)]
        order = client.create(Order, ("eu", 1))
        worker_side.fail(order, ValueError())

        def ids(query):
            return [one["id"] for one in staff.get(f"{ACTORS}?{query}").json()["results"]]

        assert ids("name=cart") == [str(cart.actor_id) for cart in carts]
        assert ids("name=cart&key=1") == [str(carts[1].actor_id)]
        assert ids("key=eu&key=1") == [str(order.actor_id)]
        assert ids("status=failed") == [str(order.actor_id)]
        assert len(ids("")) == 4

    def test_by_pages(self, staff):
        made = [str(client.create(Cart, n).actor_id) for n in range(5)]
        seen, url = [], f"{ACTORS}?name=cart&limit=2"
        while url:
            page = staff.get(url).json()
            seen.append([one["id"] for one in page["results"]])
            url = page["next"]
        assert seen == [made[:2], made[2:4], made[4:]]

    @pytest.mark.parametrize(
        "query", ["status=sleeping", "limit=0", "limit=x", "limit=201", "cursor=x", "limit=²"]
    )
    def test_a_query_that_does_not_fit_is_refused(self, staff, query):
        assert staff.get(f"{ACTORS}?{query}").status_code == 422

    def test_a_page_costs_the_same_however_many_there_are(self, staff, django_assert_max_num_queries):
        for n in range(20):
            client.create(Cart, n)
        with django_assert_max_num_queries(4):
            assert len(staff.get(f"{ACTORS}?name=cart").json()["results"]) == 20

    def test_an_unknown_name_is_404(self, staff):
        assert staff.get(f"{ACTORS}?name=nobody").status_code == 404

    def test_listing_is_for_staff(self, api, anonymous):
        assert api.get(f"{ACTORS}?name=cart").status_code == 403
        assert api.get(ACTORS).status_code == 403
        assert anonymous.get(ACTORS).status_code == 401
