"""The HTTP side: ``python -m payments.server --port 9000 --ledger ledger.sqlite3 --seed 1``.

``POST /charges`` with an ``Idempotency-Key`` header and ``{"order", "amount", "card"}`` charges a card once
per key, however often it is asked. 201 new, 200 repeated, 402 declined, 422 key reused, 503 try again.
``GET /ledger`` shows the books, ``GET /health`` answers when the service is up.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

from payments.faults import NO_FAULTS, Fault, Faults
from payments.ledger import KeyReused, Ledger

#: The test card that the bank refuses, as payment providers have one.
DECLINED_CARD = "4000-0002"
_LIMIT = 64 * 1024


class PaymentServer(ThreadingHTTPServer):
    """A thread per connection. ``port=0`` takes a free one; ``url`` says which."""

    daemon_threads = True
    # A hundred orders may knock at the same moment; the default backlog of five would refuse some.
    request_queue_size = 128

    def __init__(
        self, ledger: Ledger, faults: Faults = NO_FAULTS, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        super().__init__((host, port), _Handler)
        self.ledger = ledger
        self.faults = faults

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed mid-call is what this service is for, not worth a traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PaymentServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, {"ok": True})
        elif self.path == "/ledger":
            self._answer(200, self.server.ledger.report())
        else:
            self._answer(404, {"error": "not_found"})

    def do_POST(self) -> None:
        body = self._body()
        key = self.headers.get("Idempotency-Key", "")
        if self.path != "/charges":
            self._answer(404, {"error": "not_found"})
        elif not _is_order(body) or not key:
            self._answer(400, {"error": "expected an Idempotency-Key and {order, amount, card}"})
        else:
            self._charge(key, body["order"], body["amount"], body["card"])

    def _charge(self, key: str, order: str, amount: int, card: str) -> None:
        ledger = self.server.ledger
        call, attempt = ledger.begin_call(key, order)
        outcome = "broke"
        try:
            outcome = self._serve(key, order, amount, card, self.server.faults.for_call(order, attempt))
        finally:
            ledger.end_call(call, outcome)

    def _serve(self, key: str, order: str, amount: int, card: str, fault: Fault) -> str:
        """Answer one call, or fail to. Returns what the ledger says of it."""
        if fault is Fault.REFUSE:
            self._answer(503, {"error": "try_again"})
            return fault.value
        if card == DECLINED_CARD:
            self._answer(402, {"error": "card_declined"})
            return "declined"
        try:
            charge, new = self.server.ledger.charge(key, order, amount)
        except KeyReused as error:
            self._answer(422, {"error": "key_reused", "detail": str(error)})
            return "key reused"
        if fault is Fault.DROP:
            self._hang_up()
            return fault.value
        if fault is Fault.SLOW:
            time.sleep(self.server.faults.delay)
        try:
            self._answer(
                201 if new else 200, {"id": charge.id, "order": charge.order, "amount": charge.amount}
            )
        except OSError:
            return "charged, but the caller was gone"
        return fault.value if new or fault is not Fault.NONE else "repeated"

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _LIMIT:
            return None
        try:
            return json.loads(self.rfile.read(length))
        except ValueError:
            return None

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the ledger tells more than an access log."""


def _is_order(body: Any) -> bool:
    return (
        isinstance(body, dict)
        and isinstance(body.get("order"), str)
        and isinstance(body.get("card"), str)
        and type(body.get("amount")) is int
        and body["amount"] > 0
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="A payment service with a ledger of its own, flaky on purpose."
    )
    parser.add_argument("--port", type=int, default=9000, help="0 takes a free one")
    parser.add_argument("--ledger", type=Path, default=Path("ledger.sqlite3"))
    parser.add_argument("--seed", type=int, default=1, help="which calls go wrong")
    parser.add_argument("--reliable", action="store_true", help="no call goes wrong")
    options = parser.parse_args(argv)
    ledger = Ledger(options.ledger)
    faults = NO_FAULTS if options.reliable else Faults(seed=options.seed)
    server = PaymentServer(ledger, faults, port=options.port)

    def stop(signum: int, frame: FrameType | None) -> None:
        # shutdown() waits for the serving loop, which this handler interrupts: so from another thread.
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(f"Payment service at {server.url}", flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    ledger.close()


if __name__ == "__main__":
    main()
