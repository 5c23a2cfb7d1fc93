"""Who may do what over REST: nothing without an account unless a project says so, one hook for everything."""

from __future__ import annotations

import uuid

import pytest
from rest_framework.test import APIClient

from rivet_workflows import Actor, Queue, action, client
from tests.client.shop import Cart, Order

pytestmark = pytest.mark.django_db

ROUTES = [
    ("get", "actors/{id}/"),
    ("delete", "actors/{id}/"),
    ("post", "actors/{id}/actions/get_lines/"),
    ("post", "actors/{id}/queues/notes/"),
    ("get", "actors/{id}/events/"),
    ("get", "actors/{id}/inspector/workflow-history"),
    ("get", "actors/{id}/inspector/summary"),
    ("get", "actors/{id}/inspector/state"),
    ("patch", "actors/{id}/inspector/state"),
    ("get", "actors/{id}/inspector/queue"),
    ("get", "actors/{id}/inspector/events"),
    *(
        ("post", f"actors/{{id}}/inspector/{control}")
        for control in ("replay", "recover", "cancel", "wake", "pause", "resume", "skip")
    ),
    ("post", "call/cart/get_lines/"),
    ("post", "send/cart/notes/"),
    ("put", "actors/"),
    ("get", "actors/"),
]
OPERATING = [route for route in ROUTES if "inspector" in route[1] and "history" not in route[1]]

BODIES = {
    "actors/": {"name": "cart", "key": "c-1"},
    "actors/{id}/queues/notes/": {"body": "x"},
    "send/cart/notes/": {"key": "c-1", "body": "x"},
}


def request(api, method, route, actor_id):
    body = BODIES.get(route, {"key": "c-1"} if route.startswith("call") else {})
    if method == "get":
        return api.get(f"/rivet/{route.format(id=actor_id)}")
    return getattr(api, method)(f"/rivet/{route.format(id=actor_id)}", body, format="json")


@pytest.fixture
def cart():
    return client.create(Cart, "c-1")


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_without_an_account_nothing_is_reachable(anonymous, cart, method, route):
    for actor_id in (cart.actor_id, uuid.uuid4()):
        answer = request(anonymous, method, route, actor_id)
        assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")


@pytest.mark.parametrize(("method", "route"), OPERATING)
def test_a_insp_01_operating_actors_takes_a_staff_account(api, cart, method, route):
    answer = request(api, method, route, cart.actor_id)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")


@pytest.mark.parametrize(
    ("method", "route"), [r for r in ROUTES if r not in OPERATING and r != ("get", "actors/")]
)
def test_a_http_05_using_actors_takes_an_account(api, cart, method, route):
    expected = 403 if method == "delete" else 200
    assert request(api, method, route, cart.actor_id).status_code in (expected, 202)


def test_an_inactive_user_is_nobody(cart, django_user_model):
    api = APIClient()
    api.force_authenticate(django_user_model.objects.create_user("bob", is_active=False))
    assert request(api, "get", "actors/{id}/", cart.actor_id).status_code == 401


def test_the_hook_of_the_class_decides_with_everything_at_hand():
    asked = []

    class Public(Actor):
        jobs = Queue(int)
        state = dict

        @action(read_only=True)
        def look(self, c):
            return "seen"

        def has_permission(self, request, operation, name):
            asked.append((self.key, request.user.is_anonymous, operation, name))
            return operation in ("get", "create") or name == "look"

    anonymous = APIClient()
    made = anonymous.put("/rivet/actors/", {"name": "public", "key": ["a", "b"]}, format="json")
    assert made.status_code == 201
    url = f"/rivet/actors/{made.json()['id']}/"
    assert anonymous.get(url).status_code == 200
    assert anonymous.post(f"{url}actions/look/").json() == {"output": "seen"}
    assert anonymous.post(f"{url}queues/jobs/", {"body": 1}, format="json").status_code == 401
    assert anonymous.delete(url).status_code == 401
    assert asked == [
        (("a", "b"), True, "create", None),
        (("a", "b"), True, "get", None),
        (("a", "b"), True, "call", "look"),
        (("a", "b"), True, "send", "jobs"),
        (("a", "b"), True, "destroy", None),
    ]


def test_the_hook_may_be_async():
    class Careful(Actor):
        async def has_permission(self, request, operation, name):  # type: ignore[override]
            return operation == "get"

    careful = client.create(Careful, 1)
    assert APIClient().get(f"/rivet/actors/{careful.actor_id}/").status_code == 200
    assert APIClient().delete(f"/rivet/actors/{careful.actor_id}/").status_code == 401


def only_reading(actor, request, operation, name):
    return operation == "get"


def test_the_setting_decides_for_all_classes_without_a_hook(anonymous, cart, settings):
    settings.RIVET_WORKFLOWS = {"PERMISSION": f"{__name__}.only_reading"}
    assert request(anonymous, "get", "actors/{id}/", cart.actor_id).status_code == 200
    assert request(anonymous, "delete", "actors/{id}/", cart.actor_id).status_code == 401


def test_creating_on_the_way_needs_the_permission_to_create(api):
    class Guarded(Actor):
        jobs = Queue(int)

        def has_permission(self, request, operation, name):
            return operation == "send"

    url = "/rivet/send/guarded/jobs/"
    assert api.post(url, {"key": "k", "body": 1}, format="json").status_code == 403
    assert client.list(Guarded) == []
    client.create(Guarded, "k")
    assert api.post(url, {"key": "k", "body": 1}, format="json").status_code == 202


def test_a_session_without_csrf_token_may_not_write(django_user_model, cart):
    django_user_model.objects.create_user("eve", password="x")
    browser = APIClient(enforce_csrf_checks=True)
    assert browser.login(username="eve", password="x")
    for route in ("queues/notes/", "actions/get_lines/"):
        answer = browser.post(f"/rivet/actors/{cart.actor_id}/{route}", {}, format="json")
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert browser.get(f"/rivet/actors/{cart.actor_id}/").status_code == 200


def test_actors_whose_class_is_gone_are_for_staff(api, staff):
    from rivet_workflows.registry import registry

    order = client.create(Order, 1)
    registry.unregister("order")
    url = f"/rivet/actors/{order.actor_id}/"
    assert api.get(url).status_code == 403
    assert staff.get(url).status_code == 200
    assert staff.get(f"{url}inspector/workflow-history").status_code == 200
    assert staff.delete(url).status_code == 204
