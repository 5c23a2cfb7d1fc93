"""``manage.py rivet_actors``: what an operator types, and what comes back."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from rivet_workflows import Actor, CriticalError, Queue, action, client

pytestmark = pytest.mark.django_db
broken = {"yes": False}


def work(step: Any) -> str:
    if broken["yes"]:
        raise CriticalError("broken")
    return "worked"


class Desk(Actor, name="command_desk"):
    state = {"title": "?"}
    inbox = Queue()

    async def run(self, ctx: Any) -> Any:
        message = await ctx.queue.next("wait", names=["inbox"])
        return [message.body, await ctx.step("work", work)]

    @action
    def rename(self, c: Any, title: str) -> str:
        c.state["title"] = title
        return title


def run(*args: str) -> str:
    out = StringIO()
    call_command("rivet_actors", *args, stdout=out)
    return out.getvalue()


@pytest.fixture
def desk(rivet):
    broken["yes"] = False
    handle = client.create(Desk, "a/b")
    rivet.run_until_idle()
    return handle


def test_list_and_show_tell_where_actors_stand(desk):
    assert f"{desk.actor_id}  sleeping      command_desk/a/b" in run("list", "--name", "command_desk")
    assert json.loads(run("list", "--json"))[0]["key"] == "a/b"
    shown = run("show", "command_desk/a/b")
    assert "waiting for  inbox" in shown
    assert json.loads(run("show", str(desk.actor_id), "--json"))["status"] == "sleeping"


def test_send_call_and_history(desk, rivet):
    assert "queued" in run("send", "command_desk/a/b", "inbox", '{"n": 1}')
    rivet.run_until_idle()
    assert desk.result(timeout=0) == [{"n": 1}, "worked"]
    assert json.loads(run("call", "command_desk/a/b", "rename", '"Ada"')) == "Ada"
    assert "work" in run("history", "command_desk/a/b")
    assert [e["kind"] for e in json.loads(run("history", "command_desk/a/b", "--json"))] == [
        "message",
        "step",
    ]


def test_recover_and_replay(desk, rivet):
    broken["yes"] = True
    run("send", "command_desk/a/b", "inbox", "2")
    rivet.run_until_idle()
    assert "CriticalError: broken" in run("show", "command_desk/a/b")
    broken["yes"] = False
    assert "done" in run("recover", "command_desk/a/b")
    rivet.run_until_idle()
    assert desk.result(timeout=0) == [2, "worked"]
    assert "done" in run("replay", "command_desk/a/b", "--entry", "work")
    rivet.run_until_idle()
    assert desk.result(timeout=0) == [2, "worked"]
    assert "pruned" in run("prune")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["show", "command_desk"], "neither an actor's id nor name/key"),
        (["show", "command_desk/nobody"], "actor_not_found"),
        (["show", "nothing/x"], "no actor is called 'nothing'"),
        (["send", "command_desk/a/b", "inbox", "{no json"], "must be JSON"),
        (["send", "command_desk/a/b", "outbox", "1"], "queue_not_found"),
        (["call", "command_desk/a/b", "nothing"], "action_not_found"),
        (["recover", "command_desk/a/b"], "changed nothing: the actor is sleeping"),
        (["replay", "command_desk/a/b", "--entry", "nowhere"], "no entry 'nowhere'"),
    ],
)
def test_what_cannot_be_done_says_so(desk, args, words):
    with pytest.raises(CommandError, match=words.replace("(", "\\(")):
        run(*args)


def test_a_key_is_shown_as_what_no_terminal_obeys(rivet):
    for key in ("\x1b[31mred\nfake line\0", "\ud800", "plain"):
        client.create(Desk, key)
    lines = run("list", "--name", "command_desk").splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() and line.isascii() for line in lines)
