"""The demo's payment service: one charge per key, whatever happens to the calls; faults that repeat."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from payments.faults import NO_FAULTS, Fault, Faults
from payments.ledger import KeyReused, Ledger
from payments.server import DECLINED_CARD, PaymentServer

ALWAYS_DROPS_ONCE = Faults(refuse=0, drop=1, slow=0, patience=1)
ALWAYS_REFUSES_ONCE = Faults(refuse=1, drop=0, slow=0, patience=1)
ALWAYS_SLOW_ONCE = Faults(refuse=0, drop=0, slow=1, delay=0.2, patience=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    books = Ledger(tmp_path / "ledger.sqlite3")
    yield books
    books.close()


@contextmanager
def serving(ledger: Ledger, faults: Faults = NO_FAULTS) -> Iterator[PaymentServer]:
    server = PaymentServer(ledger, faults)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def call(server: PaymentServer, key: str = "k1", **body: Any) -> tuple[int, dict[str, Any]]:
    data = json.dumps({"order": "order-1", "amount": 500, "card": "4242", **body}).encode()
    request = urllib.request.Request(f"{server.url}/charges", data, {"Idempotency-Key": key})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def books(server: PaymentServer) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}/ledger", timeout=10) as response:
        report: dict[str, Any] = json.load(response)
        return report


def test_a_key_is_charged_once_however_often_it_comes(ledger: Ledger) -> None:
    with serving(ledger) as server:
        first = call(server)
        second = call(server)
        report = books(server)
    assert (first[0], second[0]) == (201, 200)
    assert first[1] == second[1]
    assert report["total"] == 500
    assert report["calls"]["k1"] == {"order": "order-1", "calls": 2, "outcomes": ["answered", "repeated"]}


def test_other_keys_are_other_charges(ledger: Ledger) -> None:
    with serving(ledger) as server:
        call(server, "k1")
        call(server, "k2")
        assert [c["key"] for c in books(server)["charges"]] == ["k1", "k2"]


def test_a_key_cannot_come_back_with_another_amount(ledger: Ledger) -> None:
    with serving(ledger) as server:
        call(server, amount=500)
        status, body = call(server, amount=700)
        assert (status, body["error"], books(server)["total"]) == (422, "key_reused", 500)


def test_a_refused_call_charges_nothing(ledger: Ledger) -> None:
    with serving(ledger, ALWAYS_REFUSES_ONCE) as server:
        assert call(server)[0] == 503
        assert books(server)["charges"] == []
        assert call(server)[0] == 201


def test_a_dropped_call_has_charged(ledger: Ledger) -> None:
    with serving(ledger, ALWAYS_DROPS_ONCE) as server:
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected, urllib.error.URLError)):
            call(server)
        assert books(server)["total"] == 500
        assert call(server)[0] == 200
        assert books(server)["total"] == 500


def test_a_slow_call_is_in_flight_with_its_charge_made(ledger: Ledger) -> None:
    with serving(ledger, ALWAYS_SLOW_ONCE) as server:
        caller = threading.Thread(target=call, args=(server,))
        caller.start()
        # The ledger itself tells when the call has come in; no clock is needed.
        while not (open_calls := books(server)["in_flight"]):
            assert caller.is_alive()
        caller.join()
        report = books(server)
    assert open_calls[0]["order"] == "order-1"
    assert report["in_flight"] == []
    assert report["calls"]["k1"]["outcomes"] == [Fault.SLOW.value]


def test_a_declined_card_is_not_charged(ledger: Ledger) -> None:
    with serving(ledger) as server:
        assert call(server, card=DECLINED_CARD)[0] == 402
        assert books(server)["charges"] == []


@pytest.mark.parametrize(
    "body", [{"amount": 0}, {"amount": "5"}, {"amount": True}, {"order": None}, {"card": 1}]
)
def test_nonsense_is_refused(ledger: Ledger, body: dict[str, Any]) -> None:
    with serving(ledger) as server:
        assert call(server, **body)[0] == 400
        assert call(server, key="")[0] == 400


def test_many_at_once_with_one_key_make_one_charge(ledger: Ledger) -> None:
    with serving(ledger) as server:
        callers = [threading.Thread(target=call, args=(server,)) for _ in range(20)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        report = books(server)
    assert len(report["charges"]) == 1
    assert report["calls"]["k1"]["calls"] == 20


def test_faults_are_the_same_every_time_and_end() -> None:
    def fates(seed: int) -> list[Fault]:
        return [Faults(seed=seed).for_call(f"order-{n}", 1) for n in range(200)]

    assert fates(1) == fates(1)
    assert fates(1) != fates(2)
    assert set(fates(1)) == set(Fault)
    assert Faults(refuse=1, patience=3).for_call("order-1", 4) is Fault.NONE


def test_the_ledger_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    first = Ledger(path)
    first.charge("k1", "order-1", 500)
    first.close()
    again = Ledger(path)
    charge, new = again.charge("k1", "order-1", 500)
    assert (charge.amount, new) == (500, False)
    with pytest.raises(KeyReused):
        again.charge("k1", "order-2", 500)
    again.close()


def test_it_runs_as_a_process_and_stops_when_told(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[2] / "demo_project"
    command = [
        sys.executable,
        "-m",
        "payments.server",
        "--port",
        "0",
        "--ledger",
        str(tmp_path / "l.sqlite3"),
    ]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            assert response.status == 200
        process.terminate()
        assert process.wait(timeout=10) == 0
