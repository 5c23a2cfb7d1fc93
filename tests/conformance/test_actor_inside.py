"""Workflows inside actors, and errors: A-STEP, A-RUN, A-ERR."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rivet_workflows import (
    Actor,
    CriticalError,
    UserError,
    action,
)
from rivet_workflows import exceptions as ours
from rivet_workflows.client import remote

REFUNDED: list[Any] = []


def refund(step, output):
    step.state["refunded"] += output
    REFUNDED.append((step.key, output))


@pytest.mark.parametrize(
    "use",
    [
        lambda ctx: ctx.state,
        lambda ctx: ctx.vars,
        lambda ctx: ctx.client(),
        lambda ctx: ctx.broadcast("x", 1),
        lambda ctx: ctx.schedule,
        lambda ctx: ctx.cron,
        lambda ctx: ctx.destroy(),
    ],
)
def test_a_step_01_what_belongs_into_steps_is_refused_in_run_with_the_line_and_the_mend(rivet, use):
    class Wrong(Actor):
        state = dict

        async def run(self, ctx):
            use(ctx)

    wrong = rivet.client.create(Wrong)
    rivet.run_until_idle()
    error = str(wrong.status().error)
    assert f"{__file__}:{use.__code__.co_firstlineno})" in error
    assert "not available in run" in error
    assert "inside a step" in error


def test_a_step_01_the_database_in_run_likewise(rivet):
    class Wrong(Actor):
        async def run(self, ctx):
            from django.contrib.auth.models import User

            User.objects.count()

    wrong = rivet.client.create(Wrong)
    rivet.run_until_idle()
    assert f"({__file__}:" in str(wrong.status().error)


OFFERED = ("state", "vars", "input", "queue", "schedule", "cron")


def test_a_step_02_a_step_03_what_a_step_offers_while_it_runs_and_not_after(rivet):
    kept: list[Any] = []

    class Stepping(Actor):
        state = dict
        vars = dict

        async def run(self, ctx):
            await ctx.step("one", self.one)

        def one(self, step):
            kept.append(step)
            for name in OFFERED:
                getattr(step, name)
            step.client()
            step.broadcast("told", 1)
            step.update(lambda state: None)

    stepping = rivet.client.create(Stepping, "k", input=5)
    rivet.run_until_idle()
    (step,) = kept
    uses = [lambda name=name: getattr(step, name) for name in OFFERED]
    for use in (*uses, step.client, step.destroy, lambda: step.broadcast("x"), lambda: step.update(print)):
        with pytest.raises(RuntimeError, match="only while the step runs"):
            use()
    assert (step.actor_id, step.name, step.key, step.attempt) == (stepping.actor_id, "stepping", "k", 1)
    assert step.idempotency_key
    step.log.info("still there")


def test_a_step_05_a_context_for_each_attempt_with_one_key(rivet):
    seen: list[Any] = []

    class Trying(Actor):
        async def run(self, ctx):
            await ctx.step("try", self.attempt)

        def attempt(self, step):
            seen.append(step)
            if len(seen) < 3:
                raise ValueError

    rivet.client.create(Trying).result(timeout=60)
    assert len({id(step) for step in seen}) == 3
    assert [step.attempt for step in seen] == [1, 2, 3]
    assert len({step.idempotency_key for step in seen}) == 1


def test_a_step_06_a_step_07_state_messages_and_events_are_there_with_the_record(rivet):
    class Telling(Actor):
        state = {"n": 0}

        async def run(self, ctx):
            await ctx.step("tell", self.tell)

        def tell(self, step):
            step.state["n"] += 1
            step.broadcast("told", step.attempt)
            step.queue.send("box", step.attempt)
            if step.attempt < 3:
                raise ValueError

        @action(read_only=True)
        def get(self, c):
            return c.state["n"]

    telling = rivet.client.create(Telling)
    rivet.crash_at("tell", "after_run")
    rivet.advance(60)
    # A failed attempt keeps its state and events and drops its messages; a crash leaves nothing of it.
    assert telling.get() == 3
    assert [e.payload for e in rivet.events(telling)] == [1, 2, 3]
    assert [m.body for m in rivet.messages(telling)] == [3]


def test_a_step_08_a_step_completes_a_message(rivet):
    class Asked(Actor):
        async def run(self, ctx):
            message = await ctx.queue.next("ask", completable=True)
            await ctx.step("answer", self.answer, message)

        def answer(self, step, message):
            step.complete(message, message.body + 1)

    sent = rivet.client.create(Asked).send("ask", 1, wait=True, timeout=5)
    assert (sent.status, sent.response) == ("completed", 2)


def test_a_step_09_a_rollback_handler_gets_a_step_context_and_the_output(rivet):
    REFUNDED.clear()

    class Paying(Actor):
        state = {"refunded": 0}

        async def run(self, ctx):
            await ctx.rollback_checkpoint("all")
            await ctx.step("pay", self.pay, rollback=refund)
            await ctx.step("fail", self.fail, max_retries=0)

        def pay(self, step):
            return 90

        def fail(self, step):
            raise ValueError

        @action(read_only=True)
        def get(self, c):
            return c.state

    paying = rivet.client.create(Paying, "k")
    rivet.run_until_idle()
    assert REFUNDED == [("k", 90)]
    assert paying.get() == {"refunded": 90}


def test_a_run_01_one_workflow_per_actor_with_its_id(rivet):
    class Once(Actor):
        async def run(self, ctx):
            return ctx.actor_id, ctx.key, ctx.name

    once = rivet.client.get_or_create(Once, "k")
    rivet.client.get_or_create(Once, "k")
    assert once.result() == (once.actor_id, "k", "once")


def test_a_run_03_a_completed_workflow_keeps_its_output_and_the_actor_stays_usable(rivet):
    ran: list[int] = []

    class Done(Actor):
        state = {"n": 0}

        async def run(self, ctx):
            return await ctx.step("one", self.one)

        def one(self, step):
            ran.append(1)
            return "output"

        @action
        def add(self, c):
            c.state["n"] += 1
            return c.state["n"]

    done = rivet.client.create(Done)
    assert done.result() == "output"
    done.send("any", 1)
    rivet.evict()
    rivet.advance(hours=1)
    assert (done.result(), done.add(), ran) == ("output", 1, [1])


@pytest.mark.parametrize("error", [CriticalError("over"), ZeroDivisionError("nought")])
def test_a_run_04_a_run_05_a_run_07_a_failed_workflow_leaves_the_actor_usable_and_does_not_run_by_itself(
    rivet, error
):
    ran: list[int] = []

    class Failing(Actor):
        state = {"n": 0}

        async def run(self, ctx):
            ran.append(1)
            if isinstance(error, CriticalError):
                await ctx.step("fail", self.fail)
            raise error

        def fail(self, step):
            raise error

        @action
        def add(self, c):
            c.state["n"] += 1
            return c.state["n"]

    failing = rivet.client.create(Failing)
    rivet.run_until_idle()
    before = len(ran)
    failing.send("any", 1)
    rivet.evict()
    rivet.advance(hours=1)
    assert str(failing.status()) == "failed"
    assert len(ran) == before
    assert failing.add() == 1
    assert failing.recover()


def test_a_run_08_on_error_may_change_state_broadcast_and_send(rivet):
    class Telling(Actor):
        state = {"errors": []}

        async def run(self, ctx):
            await ctx.step("fail", self.fail, max_retries=1)

        def fail(self, step):
            raise ValueError("no")

        def on_error(self, c, event):
            c.state["errors"].append((event.source, event.attempt, event.will_retry))
            c.broadcast("error", event.error.message)
            c.queue.send("errors", event.step_name)

        @action(read_only=True)
        def get(self, c):
            return c.state["errors"]

    telling = rivet.client.create(Telling)
    rivet.advance(60)
    assert telling.get() == [("step", 1, True), ("step", 2, False)]
    assert [e.payload for e in rivet.events(telling)] == ["no", "no"]
    assert [m.body for m in rivet.messages(telling)] == ["fail", "fail"]


# -- errors


def test_a_err_01_a_err_07_every_error_has_a_stable_code_in_lower_snake_case():
    kinds = [getattr(ours, name) for name in ours.__all__]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, ours.RivetError)]
    kinds.remove(UserError)  # the project names its codes
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert all(code == code.lower() and code.replace("_", "").isalpha() for code in codes)


def test_a_err_02_a_user_error_is_shown_as_it_is():
    shown = remote.problem_of(UserError("not on Sundays", code="closed", metadata={"until": 8}))
    assert (shown.status, shown.code, shown.detail, shown.metadata) == (
        400,
        "closed",
        "not on Sundays",
        {"until": 8},
    )
    assert remote.problem_of(UserError("no")).code == "user_error"


@pytest.mark.parametrize(
    "error", [ValueError("secret"), ours.ActionFailed("secret"), ours.RivetError("secret")]
)
def test_a_err_03_anything_else_is_masked_and_logged_in_full(error, caplog):
    with caplog.at_level(logging.ERROR):
        shown = remote.problem_of(error)
    assert (shown.status, shown.code, shown.metadata) == (500, "internal_error", {})
    assert "secret" not in shown.detail
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ours.PermissionDenied, 403),
        (ours.ActorNotFound, 404),
        (ours.ActionNotFound, 404),
        (ours.QueueNotFound, 404),
        (ours.ActorExists, 409),
        (ours.PayloadTooLarge, 413),
        (ours.ValidationFailed, 422),
        (ours.TooManySchedules, 429),
        (ours.QueueFull, 429),
        (ours.ActorBusy, 503),
        (ours.NoWorker, 503),
    ],
)
def test_a_err_04_a_err_05_d_22_what_is_public_and_its_status(error, status):
    shown = remote.problem_of(error("a text", metadata={"a": 1}))
    assert (shown.status, shown.code, shown.detail, shown.metadata) == (
        status,
        error.code,
        "a text",
        {"a": 1},
    )
