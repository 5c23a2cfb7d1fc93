"""Rows as the engine would leave them, made through the client and the store, and people who look at them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from rivet_workflows import Actor, Queue, action, client, codec
from rivet_workflows.client import Handle
from rivet_workflows.exceptions import ErrorInfo, StepExhausted, failure_record
from rivet_workflows.records import (
    Blocked,
    CommitItem,
    Entry,
    EntryStatus,
    Finish,
    Kind,
    Lifecycle,
    dump_open,
)
from rivet_workflows.store import get_store

LIST = "/admin/rivet_workflows/actor/"
WORKERS = "/admin/rivet_workflows/worker/"


def page_of(handle: Handle) -> str:
    return f"{LIST}{handle.actor_id}/change/"


@pytest.fixture(autouse=True)
def actors(db: None) -> None:
    """The actors that most tests look at."""

    class Order(Actor):
        """Takes an order from the cart to the parcel."""

        state = dict
        approval = Queue()

        async def run(self, ctx: Any) -> None: ...

        @action
        def touch(self, c: Any) -> None:
            c.state["touched"] = True

    class Plain(Actor):
        state = dict


@pytest.fixture
def operator() -> Client:
    """Signed in as a superuser."""
    browser = Client()
    browser.force_login(User.objects.create_superuser("root", "", "x"))
    return browser


@pytest.fixture
def staff() -> Callable[..., Client]:
    """Signed in as somebody with just these permissions."""

    def sign_in(*codenames: str, name: str = "staff") -> Client:
        user = User.objects.create_user(name, "", "x", is_staff=True)
        found = Permission.objects.filter(content_type__app_label="rivet_workflows", codename__in=codenames)
        assert len(found) == len(codenames)
        user.user_permissions.set(found)
        browser = Client()
        browser.force_login(user)
        return browser

    return sign_in


def order(key: Any = "order-1", *, name: str = "order", input: Any = None) -> Handle:
    return client.get_or_create(name, key, input=input)


def step(seq: int, name: str = "", *, output: Any = None, scope: str = "", **more: Any) -> Entry:
    """A finished step."""
    values: dict[str, Any] = {
        "name": name or f"step-{seq}", "kind": Kind.STEP, "status": EntryStatus.COMPLETED, "done_seq": seq,
        "started_at": 1_790_000_000_000_000, "done_at": 1_790_000_000_340_000, "output": codec.dumps(output),
    }  # fmt: skip
    return Entry(seq=seq, scope=scope, **(values | more))


def error(message: str = "The card was declined", kind: str = "shop.CardDeclined") -> ErrorInfo:
    return ErrorInfo(
        kind, message, (kind, "Exception"), f"Traceback\n  in charge\n{kind}: {message}", {"code": "51"}
    )


def failed_step(seq: int, name: str = "charge-card", **more: Any) -> Entry:
    """A step whose two attempts failed."""
    exc = StepExhausted(f"{name} failed", step_name=name, kind="exhausted", attempts=2, error=error())
    past = [[1_790_000_000_000_000, 1_790_000_000_100_000, error().to_dict()]] * 2
    return step(
        seq,
        name,
        status=EntryStatus.FAILED,
        error=json.dumps(failure_record(exc)),
        attempts=json.dumps(past),
        **more,
    )


def commit(
    handle: Handle,
    rows: Iterable[Entry] = (),
    *,
    opened: list[dict[str, Any]] | None = None,
    inflight: str | None = None,
    block: Blocked | None = None,
    finish: Finish | None = None,
    keep: bool = False,
    **more: Any,
) -> int:
    """Take the actor up as a worker would, commit, and (unless ``keep``) let it go. The worker's id."""
    store = get_store()
    worker = store.register_worker("web-1", 4711, {handle.name: "code"})
    claimed, _ = store.claim(worker, {handle.name: "code"}, 1_000)
    mine = next(c for c in claimed if c.actor_id == handle.actor_id)
    text = inflight if inflight is not None else dump_open(opened or [])
    item = CommitItem(
        mine.actor_id, mine.epoch, mine.commit_no, 1_000, text, rows=list(rows), finish=finish, **more
    )
    if block is not None:
        item.block = (block, "code")
    result = store.commit_group([item])[0]
    assert result.outcome == 1, result
    if not keep:
        store.forget_worker(worker)
    return worker


def completed(output: Any = None) -> Finish:
    return Finish(Lifecycle.COMPLETED, get_store().clock.now(), codec.dumps(output))
