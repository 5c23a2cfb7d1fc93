"""Queues of actors, seen by their senders and receivers: A-QUEUE. What a receive is to the history is R-QUEUE's."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows import (
    Actor,
    PayloadTooLarge,
    PermissionDenied,
    Queue,
    QueueFull,
    QueueNotFound,
    ValidationFailed,
)
from rivet_workflows.client import remote
from rivet_workflows.models import Message


def declare(**body: Any) -> Any:
    class Worker(Actor):
        jobs = Queue(int, reply=str)
        other = Queue(int)
        asked = Queue(int)

        async def run(self, ctx):
            done = []
            while True:
                completable = (await ctx.queue.next("mode", names=[Worker.asked])).body
                message = await ctx.queue.next(
                    "next", names=[Worker.jobs, Worker.other], completable=bool(completable)
                )
                done.append(message.body)
                if completable == 2:
                    await ctx.step("answer", self.answer, message)
                elif completable == 1:
                    await message.complete(f"did {message.body}")
                elif completable == 3:
                    await message.complete()
                elif completable == 4:
                    await ctx.queue.next("again", names=[Worker.other])
                if message.body < 0:
                    return done

        def answer(self, step, message):
            step.complete(message, f"did {message.body} in a step")
            step.complete(message, "twice")

    for name, function in body.items():
        setattr(Worker, name, function)
    return Worker


@pytest.fixture
def worker(rivet: Any) -> Any:
    return rivet.client.create(declare())


def test_a_queue_03_ids_rise_and_arrival_order_holds_over_all_names(rivet, worker):
    sent = [worker.send("jobs" if n % 2 else "other", n).id for n in range(4)]
    assert sent == sorted(sent)
    worker.send("jobs", -1)
    for _ in range(5):
        worker.send("asked", 0)
    assert worker.result() == [0, 1, 2, 3, -1]


def test_a_queue_04_all_names_share_one_limit(rivet, settings):
    settings.RIVET_WORKFLOWS = {"MAX_QUEUE_SIZE": 2}
    worker = rivet.client.create(declare())
    worker.send("jobs", 1)
    worker.send("other", 2)
    for name in ("jobs", "asked"):
        with pytest.raises(QueueFull):
            worker.send(name, 3)


def test_a_queue_05_a_send_is_done_when_the_message_is_stored(rivet, worker):
    sent = worker.send("jobs", 1)
    assert (sent.status, sent.response, sent.duplicate) == ("queued", None, False)
    assert Message.objects.get().id == sent.id


def test_a_queue_06_a_wait_gives_the_response_or_times_out_and_the_message_stays(rivet, worker):
    sent = worker.send("jobs", 1, wait=True, timeout=5)
    assert (sent.status, sent.response) == ("timed_out", None)
    assert [m.id for m in rivet.messages(worker)] == [sent.id]
    worker.send("asked", 1)
    worker.send("asked", 1)
    answered = worker.send("jobs", 2, wait=True, timeout=5)
    assert (answered.status, answered.response) == ("completed", "did 2")


def test_a_queue_08_a_send_wakes_the_actor_and_the_answer_outlives_its_worker(rivet, worker):
    worker.send("asked", 1)
    rivet.run_until_idle()
    rivet.evict()
    rivet.crash_at("answer", "after_commit")
    worker.send("asked", 2)
    assert worker.send("jobs", 1, wait=True, timeout=5).response == "did 1"
    sent = worker.send("jobs", 2, wait=True, timeout=5)
    assert (sent.status, sent.response) == ("completed", "did 2 in a step")


@pytest.mark.parametrize(("mode", "status", "response"), [(3, "completed", None), (0, "failed", None)])
def test_a_queue_09_completed_without_a_value_and_taken_without_being_completed(
    rivet, worker, mode, status, response
):
    worker.send("asked", mode)
    before = rivet.now()
    sent = worker.send("jobs", 1, wait=True, timeout=60)
    assert (sent.status, sent.response) == (status, response)
    assert rivet.now() == before  # at once


def test_a_queue_10_too_large_and_full_are_errors_of_their_own(rivet, settings, worker):
    settings.RIVET_WORKFLOWS = {"MAX_QUEUE_SIZE": 1, "MAX_MESSAGE_SIZE": 1024}

    class Free(Actor): ...

    free = rivet.client.create(Free)
    with pytest.raises(PayloadTooLarge):
        free.send("any", "x" * 1024)
    free.send("any", "x")
    with pytest.raises(QueueFull):
        free.send("any", "x")


def test_a_queue_11_d_17_an_undeclared_queue_is_refused_with_what_there_is(rivet, worker):
    with pytest.raises(QueueNotFound, match="worker has no queue 'job'; did you mean 'jobs'") as failed:
        worker.send("job", 1)
    assert failed.value.metadata == {"queue": "job", "queues": ["asked", "jobs", "other"]}
    with pytest.raises(QueueNotFound, match="there is asked, jobs, other"):
        worker.send("zzz", 1)

    class Sending(Actor):
        async def run(self, ctx):
            await ctx.queue.send("anything", 1)  # declares none: takes any
            await ctx.step("wrong", self.wrong, max_retries=0)

        def wrong(self, step):
            step.client().get("worker").send("job", 1)

    sending = rivet.client.create(Sending)
    rivet.run_until_idle()
    assert [m.name for m in rivet.messages(sending)] == ["anything"]
    assert "has no queue 'job'" in str(sending.status().error)
    assert rivet.messages(worker) == []


def test_a_queue_12_who_may_send_is_asked_of_remote_senders_after_the_queue_is_known(rivet):
    asked: list[Any] = []

    def has_permission(self, request, operation, name):
        asked.append((operation, name))
        return name == "jobs"

    worker = rivet.client.create(
        type("Guarded", (declare(),), {"has_permission": has_permission}, name="guarded")
    )
    request = type(
        "Request", (), {"user": type("User", (), {"is_authenticated": True, "is_active": True})()}
    )()
    remote.require(worker, request, "send", "jobs")
    with pytest.raises(PermissionDenied):
        remote.require(worker, request, "send", "other")
    worker.send("other", 1)  # our own code is not asked
    assert asked == [("send", "jobs"), ("send", "other")]


def test_a_queue_13_a_body_that_does_not_fit_has_its_issues_and_nothing_is_stored(rivet, worker):
    with pytest.raises(ValidationFailed) as failed:
        worker.send("jobs", "many")
    assert failed.value.metadata["issues"][0]["type"] == "int_parsing"
    assert rivet.messages(worker) == []


def test_a_queue_14_a_completable_message_is_there_until_completed_and_comes_again_after_a_crash(
    rivet, worker
):
    worker.send("asked", 2)
    worker.send("jobs", 1)
    rivet.fail_step("answer", times=2)
    rivet.run_until_idle()
    (held,) = Message.objects.all()
    assert held.holder_seq is not None
    rivet.crash()
    rivet.advance(60)
    assert not Message.objects.exists()


def test_a_queue_15_completing_twice_changes_nothing(rivet, worker):
    worker.send("asked", 2)
    assert worker.send("jobs", 1, wait=True, timeout=5).response == "did 1 in a step"


def test_a_queue_16_a_receive_while_one_is_open_is_refused(rivet, worker):
    worker.send("asked", 4)
    worker.send("jobs", 1)
    worker.send("other", 2)
    rivet.run_until_idle()
    assert worker.status().error.is_a("MessageNotCompleted")


def test_d_16_a_cancelled_run_gives_back_what_it_held_and_recover_holds_it_again(rivet, worker):
    worker.send("asked", 2)
    sent = worker.send("jobs", 1)
    rivet.fail_step("answer", times=1)
    rivet.run_until_idle()
    assert Message.objects.get().holder_seq is not None
    worker.cancel()
    assert [m.id for m in rivet.messages(worker)] == [sent.id]
    assert Message.objects.get().holder_seq is None
    assert worker.recover()
    assert Message.objects.get().holder_seq is not None
    rivet.advance(60)
    assert not Message.objects.exists()
