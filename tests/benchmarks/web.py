"""What callers wait for (W): Python and REST, alone and while a worker is busy on the same machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.benchmarks.messages import all_wait
from tests.benchmarks.rig import Rig, latencies, spread


def callers(rig: Rig) -> None:
    """W: p50 and p95 of each call, from one thread and from four, and with loops that keep the worker busy."""
    rig.worker()
    _measure_all(rig, "idle worker", 1)
    busy = [rig.create("bench_looped", iterations=10**9, window=1) for _ in range(rig.sizes.workflows)]
    try:
        for threads in (1, 4):
            _measure_all(rig, "busy worker", threads)
    finally:
        for loop in busy:
            loop.destroy()


def _measure_all(rig: Rig, setting: str, threads: int) -> None:
    receivers = [rig.create("bench_receiver", messages=10**6) for _ in range(threads)]
    all_wait(receivers)
    plain = [rig.create("bench_steps", mode="async", steps=1) for _ in range(threads)]
    for how, call in _calls(rig, receivers, plain).items():
        found: list[float] = []
        workers = [
            threading.Thread(target=_in_thread, args=(call, k, rig.sizes.calls, found))
            for k in range(threads)
        ]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        assert len(found) == threads * rig.sizes.calls, f"{how} failed"
        rig.emit("W", how=how, setting=f"{setting}, {threads} callers", **latencies(found))


def _in_thread(call: Callable[[int, int], Any], k: int, count: int, found: list[float]) -> None:
    from django.db import connections

    try:
        call(k, -1)  # the connection is made, classes are loaded
        found += spread(lambda n: call(k, n), count)
    finally:
        connections.close_all()


def _calls(rig: Rig, receivers: list[Any], plain: list[Any]) -> dict[str, Callable[[int, int], Any]]:
    from rivet_workflows import client

    rest = _Rest()
    return {
        "send": lambda k, n: receivers[k].send("q", n),
        "send by REST": lambda k, n: rest.post(f"actors/{receivers[k].actor_id}/queues/q/", 202, {"body": n}),
        "call": lambda k, _: plain[k].call("count"),
        "call by REST": lambda k, _: rest.post(f"actors/{plain[k].actor_id}/actions/count/", 200, {}),
        "call, read only": lambda k, _: plain[k].call("get_count"),
        "call, read only, by REST": lambda k, _: rest.post(
            f"actors/{plain[k].actor_id}/actions/get_count/", 200, {}
        ),
        "get_or_create": lambda k, _: client.get_or_create("bench_steps", plain[k].key),
        "get_or_create by REST": lambda k, _: rest.put({"name": "bench_steps", "key": plain[k].key}),
        "create": lambda _, n: rig.create("bench_steps", mode="async", steps=0),
    }


class _Rest:
    """REST without a socket: Django's handlers, middleware and DRF, called in the thread."""

    def __init__(self) -> None:
        from django.contrib.auth.models import User

        self.user = User.objects.get_or_create(username="ann", is_staff=True)[0]
        self._local = threading.local()

    def _client(self) -> Any:
        if not hasattr(self._local, "client"):
            from rest_framework.test import APIClient

            self._local.client = APIClient()
            self._local.client.force_authenticate(self.user)
        return self._local.client

    def post(self, address: str, status: int, body: Any) -> None:
        answer = self._client().post(f"/{address}", body, format="json")
        assert answer.status_code == status, answer.content

    def put(self, body: Any) -> None:
        answer = self._client().put("/actors/", body, format="json")
        assert answer.status_code == 200, answer.content
