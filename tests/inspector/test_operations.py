"""The buttons: who may press them, which ask first, what they leave behind; and who may look at all."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import path

from rivet_workflows import Actor, client
from rivet_workflows.inspector.admin import ActorAdmin, WorkerAdmin
from rivet_workflows.models import Actor as ActorModel
from rivet_workflows.models import Worker
from rivet_workflows.records import Kind
from tests.inspector.conftest import LIST, WORKERS, commit, completed, order, page_of, step

other_site = AdminSite(name="operations")
other_site.register(ActorModel, ActorAdmin)
other_site.register(Worker, WorkerAdmin)
urlpatterns = [path("ops/", other_site.urls)]

OPEN_STEP = {"s": 2, "p": "", "n": "work", "k": int(Kind.STEP), "t": 1, "a": 1, "z": 1}


def do(browser: Client, handle: Any, operation: str, **data: Any) -> Any:
    return browser.post(f"{LIST}{handle.actor_id}/do/{operation}/", data, follow=True)


def test_pause_resume_cancel_recover(operator: Client) -> None:
    handle = order()
    assert "Paused." in do(operator, handle, "pause").content.decode()
    assert str(handle.status()) == "paused"
    assert "There was nothing to pause." in do(operator, handle, "pause").content.decode()
    do(operator, handle, "resume")
    assert str(handle.status()) == "pending"
    do(operator, handle, "cancel", confirmed="yes")
    assert str(handle.status()) == "cancelled"
    do(operator, handle, "recover")
    assert str(handle.status()) in ("pending", "running")
    notes = list(LogEntry.objects.order_by("id").values_list("object_id", "change_message"))
    assert notes == [
        (str(handle.actor_id), text) for text in ("Paused.", "Resumed.", "Cancelled.", "Recovered.")
    ]


@pytest.mark.parametrize("operation", ["cancel", "destroy", "replay_from"])
def test_what_cannot_be_undone_asks_first(operator: Client, operation: str) -> None:
    handle = order()
    commit(handle, [step(1)], opened=[OPEN_STEP])
    before = str(handle.status())
    for response in (
        do(operator, handle, operation),
        operator.get(f"{LIST}{handle.actor_id}/do/{operation}/"),
    ):
        assert response.status_code == 200
        assert 'name="confirmed"' in response.content.decode()
    assert str(handle.status()) == before
    assert not LogEntry.objects.exists()


def test_a_insp_05_replay_from_an_entry(operator: Client) -> None:
    handle = order()
    commit(handle, [step(1), step(2), step(3)], finish=completed())
    asked = operator.get(f"{LIST}{handle.actor_id}/do/replay_from/?entry=2").content.decode()
    assert "#2" in asked
    assert 'name="entry" value="2"' in asked
    do(operator, handle, "replay_from", entry="2", confirmed="yes")
    assert [entry.seq for entry in handle.history()] == [1]
    assert str(handle.status()) == "pending"
    assert "(from entry 2)" in LogEntry.objects.get().change_message
    assert "99" in do(operator, handle, "replay_from", entry="99", confirmed="yes").content.decode()
    assert [entry.seq for entry in handle.history()] == [1]


def test_destroy_ends_in_the_list(operator: Client) -> None:
    handle = order()
    response = do(operator, handle, "destroy", confirmed="yes")
    assert response.redirect_chain[-1][0] == LIST
    assert "Destroyed." in response.content.decode()
    assert not client.list("order")


def test_an_error_of_the_project_is_masked_and_told(operator: Client, caplog: Any) -> None:
    class Fragile(Actor):
        def on_destroy(self, c: Any) -> None:
            raise RuntimeError("the password is hunter2")

    handle = client.create(Fragile, "x")
    html = do(operator, handle, "destroy", confirmed="yes").content.decode()
    assert "internal error" in html
    assert "hunter2" not in html
    assert "hunter2" in caplog.text
    assert client.list(Fragile)


def test_only_what_would_do_something_is_offered(operator: Client) -> None:
    handle = order()
    commit(handle, [step(1)], finish=completed())
    html = operator.get(page_of(handle)).content.decode()
    assert "/do/replay_from/" in html
    assert "/do/destroy/" in html
    for name in ("cancel", "pause", "resume", "recover", "wake"):
        assert f"/do/{name}/" not in html


def test_nobody_looks_without_the_permission(staff: Any) -> None:
    handle = order()
    commit(handle, [step(1, output="secret")])
    stranger = staff()
    paths = [LIST, page_of(handle), page_of(handle) + "?fragment=1", WORKERS]
    paths += [f"{LIST}{handle.actor_id}/raw/output/?entry=1", f"{LIST}{handle.actor_id}/do/cancel/"]
    paths += [f"{LIST}{handle.actor_id}/history/", f"{LIST}nonsense/change/"]
    for address in paths:
        response = stranger.get(address)
        assert response.status_code == 403, address
        assert "secret" not in response.content.decode()
    assert "Actors" not in stranger.get("/admin/").content.decode()
    for address in paths:
        assert Client().get(address).status_code == 302, address


def test_who_may_view_may_not_operate(staff: Any) -> None:
    viewer, handle = staff("view_actor"), order()
    html = viewer.get(page_of(handle)).content.decode()
    assert "/do/" not in html
    for name in ("cancel", "pause", "recover", "destroy", "replay_from", "wake", "resume"):
        assert viewer.post(f"{LIST}{handle.actor_id}/do/{name}/", {"confirmed": "yes"}).status_code == 403
    changer = staff("view_actor", "change_actor", name="changer")
    assert do(changer, handle, "pause").status_code == 200
    assert str(handle.status()) == "paused"
    assert changer.post(f"{LIST}{handle.actor_id}/do/destroy/", {"confirmed": "yes"}).status_code == 403


def test_the_actor_itself_is_asked(staff: Any) -> None:
    class Guarded(Actor):
        def has_permission(self, request: Any, operation: str, name: str | None) -> bool:
            return self.key == "mine" and operation in ("list", "inspect", "pause")

        async def run(self, ctx: Any) -> None: ...

    mine, other = client.create(Guarded, "mine"), client.create(Guarded, "other")
    browser = staff("view_actor", "change_actor", "delete_actor")
    assert browser.get(page_of(other)).status_code == 403
    html = browser.get(page_of(mine)).content.decode()
    assert "/do/pause/" in html
    assert "/do/cancel/" not in html
    assert browser.post(f"{LIST}{mine.actor_id}/do/cancel/", {"confirmed": "yes"}).status_code == 403
    assert do(browser, mine, "pause").status_code == 200


def test_forms_need_their_token() -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(User.objects.create_superuser("root2", "", "x"))
    handle = order()
    assert browser.post(f"{LIST}{handle.actor_id}/do/pause/").status_code == 403
    assert "csrfmiddlewaretoken" in browser.get(page_of(handle) + "?fragment=1").content.decode()


def test_unknown_operations_and_texts(operator: Client) -> None:
    handle = order()
    for rest in ("do/explode/", "do/__class__/", "raw/password/", "raw/output/?entry=77", "raw/attempts/"):
        assert operator.get(f"{LIST}{handle.actor_id}/{rest}").status_code == 404
    assert operator.put(f"{LIST}{handle.actor_id}/do/pause/").status_code == 405


@override_settings(ROOT_URLCONF=__name__)
def test_on_an_admin_site_of_the_projects_own(operator: Client) -> None:
    handle = order()
    commit(handle, [step(1)], opened=[OPEN_STEP])
    address = f"/ops/rivet_workflows/actor/{handle.actor_id}/"
    html = operator.get(f"{address}change/").content.decode()
    assert f"{address}do/pause/" in html
    assert 'href="/admin/' not in html
    response = operator.post(f"{address}do/pause/", follow=True)
    assert response.redirect_chain[-1][0] == f"{address}change/"
    assert operator.get("/ops/rivet_workflows/worker/").status_code == 200
    assert operator.get("/ops/rivet_workflows/actor/").status_code == 200


def test_no_script_or_style_stands_in_the_page(operator: Client) -> None:
    handle = order()
    commit(handle, [step(1)], opened=[OPEN_STEP])
    for address in (page_of(handle), f"{LIST}{handle.actor_id}/do/cancel/", LIST):
        html = operator.get(address).content.decode()
        assert " style=" not in html
        assert "<style" not in html
        assert " onclick=" not in html
        assert not [tag for tag in html.split("<script")[1:] if " src=" not in tag.split(">")[0]]
