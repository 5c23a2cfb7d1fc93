"""The list of actors, and that of workers: paged by key, filtered and searched without counting."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from rivet_workflows import Actor, client
from rivet_workflows.models import Worker
from rivet_workflows.records import Finish, Kind, Lifecycle
from rivet_workflows.store import get_store
from tests.inspector.conftest import LIST, WORKERS, commit, completed, order, step


def keys_of(response: Any) -> list[str]:
    from rivet_workflows.inspector.page import key_text

    assert response.status_code == 200
    return [key_text(actor.key) for actor in response.context["cl"].result_list]


def test_it_says_who_and_how_it_stands(operator: Client) -> None:
    wait = {"s": 1, "p": "", "n": "wait", "k": int(Kind.MESSAGE), "t": 1, "q": ["approval"]}
    commit(order("waiting"), opened=[wait])
    commit(order("done"), finish=completed())
    order(("eu", "1"))
    html = operator.get(LIST).content.decode()
    assert "waits for approval" in html
    assert "completed" in html
    assert "eu/1" in html
    assert "pending" in html


def test_pages_go_by_id_in_both_directions(operator: Client) -> None:
    for number in range(120):
        order(f"o-{number:03}")
    first = operator.get(LIST)
    assert keys_of(first) == [f"o-{n:03}" for n in range(119, 69, -1)]
    assert first.context["cl"].newer_link is None
    second = operator.get(LIST + first.context["cl"].older_link)
    assert keys_of(second) == [f"o-{n:03}" for n in range(69, 19, -1)]
    third = operator.get(LIST + second.context["cl"].older_link)
    assert keys_of(third) == [f"o-{n:03}" for n in range(19, -1, -1)]
    assert third.context["cl"].older_link is None
    assert keys_of(operator.get(LIST + third.context["cl"].newer_link)) == keys_of(second)
    assert keys_of(operator.get(LIST + second.context["cl"].first_link)) == keys_of(first)
    assert keys_of(operator.get(LIST + "?older=nonsense")) == keys_of(first)


def test_few_queries_and_no_count(staff: Any) -> None:
    viewer = staff("view_actor")
    for number in range(60):
        order(f"o-{number}")
    with CaptureQueriesContext(connection) as seen:
        viewer.get(LIST)
    assert len(seen) <= 8, "\n".join(q["sql"] for q in seen)
    assert not [q for q in seen if "COUNT(" in q["sql"].upper()]
    # Of the actors' own values nothing is loaded.
    assert not [q for q in seen if '"rivet_actor"."input"' in q["sql"]]
    with CaptureQueriesContext(connection) as seen:
        viewer.get(LIST, {"q": "o-7", "name": "order", "lifecycle": "live"})
    assert len(seen) <= 10
    assert not [q for q in seen if "COUNT(" in q["sql"].upper()]


def test_filters(operator: Client) -> None:
    now = get_store().clock.now()
    commit(order("done"), finish=completed())
    commit(order("broken"), finish=Finish(Lifecycle.FAILED, now))
    order("alive")
    order("other", name="plain")
    assert set(keys_of(operator.get(LIST, {"lifecycle": "failed"}))) == {"broken"}
    assert set(keys_of(operator.get(LIST, {"lifecycle": "live"}))) == {"alive", "other"}
    assert set(keys_of(operator.get(LIST, {"name": "plain"}))) == {"other"}
    assert set(keys_of(operator.get(LIST, {"name": "order", "lifecycle": "live"}))) == {"alive"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("order-1", {"order-1"}),  # exact: not order-12
        ("order-1*", {"order-1", "order-12"}),
        ("order-", {"order-1", "order-12"}),
        ("eu/west", {"eu/west"}),
        ("eu*", {"eu/west"}),
        ('"quoted', {'"quoted"'}),
        ("100%", {"100%_"}),
        ("nothing", set()),
        ("x" * 5000, set()),
    ],
)
def test_search(operator: Client, text: str, found: set[str]) -> None:
    for key in ("order-1", "order-12", ("eu", "west"), '"quoted"', "100%_"):
        order(key)
    assert set(keys_of(operator.get(LIST, {"q": text}))) == found


def test_search_by_id(operator: Client) -> None:
    handle = order("a")
    order("b")
    assert keys_of(operator.get(LIST, {"q": str(handle.actor_id)})) == ["a"]


def test_destroyed_actors_are_gone_and_names_that_a_class_hides(operator: Client, staff: Any) -> None:
    class Secret(Actor):
        def has_permission(self, request: Any, operation: str, name: str | None) -> bool:
            return bool(request.user.is_superuser)

    client.create(Secret, "hidden")
    order("seen")
    order("gone").destroy()
    assert set(keys_of(operator.get(LIST))) == {"seen", "hidden"}
    viewer = staff("view_actor")
    response = viewer.get(LIST)
    assert keys_of(response) == ["seen"]
    assert "secret" not in response.content.decode()
    assert viewer.get(LIST + "?q=hidden").context["cl"].result_count == 0


def test_one_operation_on_many(operator: Client) -> None:
    handles = [order(f"o-{n}") for n in range(3)]
    commit(handles[0], finish=completed())
    chosen = {"action": "pause", "_selected_action": [str(h.actor_id) for h in handles], "select_across": "1"}
    response = operator.post(LIST, chosen, follow=True)
    assert [str(handle.status()) for handle in handles] == ["completed", "paused", "paused"]
    html = response.content.decode()
    assert "Pause: 2 actors." in html
    assert "for 1 actor." in html


def test_actions_take_their_permission(staff: Any) -> None:
    handle = order()
    viewer, changer = staff("view_actor"), staff("view_actor", "change_actor", name="changer")
    assert 'name="action"' not in viewer.get(LIST).content.decode()
    assert "Pause selected" in changer.get(LIST).content.decode()
    viewer.post(LIST, {"action": "pause", "_selected_action": [str(handle.actor_id)]})
    assert str(handle.status()) == "pending"


def test_workers_and_what_they_hold(operator: Client, staff: Any) -> None:
    handle = order("held")
    wait = {"s": 1, "p": "", "n": "wait", "k": int(Kind.MESSAGE), "t": 1, "q": ["approval"]}
    worker = commit(handle, [step(2)], opened=[wait], keep=True)
    dead = get_store().register_worker("old-host", 1, {})
    Worker.objects.filter(id=dead).update(heartbeat_at=1)
    with CaptureQueriesContext(connection) as seen:
        html = operator.get(WORKERS).content.decode()
    assert "web-1:4711" in html
    assert "live" in html
    assert "taken for dead" in html
    assert not [q for q in seen if "COUNT(" in q["sql"].upper()]
    page = operator.get(f"{WORKERS}{worker}/change/").content.decode()
    assert "held" in page
    assert f"/actor/{handle.actor_id}/" in page
    alone = staff("view_worker").get(f"{WORKERS}{worker}/change/").content.decode()
    assert str(handle.actor_id) not in alone
    assert operator.get(f"{WORKERS}999999/change/").status_code == 302
    assert operator.get(f"{WORKERS}x/change/").status_code == 302
    Worker.objects.filter(id=worker).update(codes="{")
    assert operator.get(f"{WORKERS}{worker}/change/").status_code == 200


@override_settings(USE_TZ=False)
def test_without_time_zones(operator: Client) -> None:
    handle = order()
    assert operator.get(LIST).status_code == 200
    assert operator.get(f"{LIST}{handle.actor_id}/change/").status_code == 200


def test_every_row_is_read_only(operator: Client) -> None:
    handle = order()
    assert operator.get(f"{LIST}add/").status_code == 403
    assert operator.post(f"{LIST}{handle.actor_id}/delete/", {"post": "yes"}).status_code == 403
    assert handle.status()


def test_a_permission_method_that_fails_hides_its_own_actors_alone(staff: Any, caplog: Any) -> None:
    class Failing(Actor):
        def has_permission(self, request: Any, operation: str, name: str | None) -> bool:
            raise RuntimeError("no")

    client.create(Failing, "hidden")
    order("seen")
    assert keys_of(staff("view_actor").get(LIST)) == ["seen"]
    assert "has_permission of failing failed" in caplog.text
