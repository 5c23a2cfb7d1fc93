"""What happens in the demo: three waves of orders, two murders, some approvals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner.processes import DemoFailed, Worker
from runner.site import Site, get_json

GOOD_CARD, DECLINED_CARD = "4242-4242", "4000-0002"
WAITING = "waiting for approval"
#: Orders that the demo leaves undone before it places the next.
OPEN_ORDERS = 14
#: Statuses that an order ends with.
ENDS = {"confirmed", "declined", "rejected", "sold out"}


@dataclass(frozen=True, slots=True)
class Plan:
    """One order that the demo places, and the ends that are right for it."""

    key: str
    sku: str
    quantity: int
    card: str
    ends: frozenset[str]


def plans(count: int = 36) -> list[Plan]:
    """Mugs, lamps and chairs; desks that need approval; more signed prints than there are; two bad cards."""
    made = []
    for n in range(1, count + 1):
        sku, quantity, card, ends = ("mug", "lamp", "chair")[n % 3], 1 + n % 2, GOOD_CARD, {"confirmed"}
        if n % 7 == 3:
            sku, quantity = "desk", 1
            ends = {"rejected"} if n == 10 else {"confirmed"}
        elif n % 7 == 5:
            sku, quantity, ends = "print", 1, {"confirmed", "sold out"}
        elif n in (8, 29):
            card, ends = DECLINED_CARD, {"declined"}
        made.append(Plan(f"order-{n:03}", sku, quantity, card, frozenset(ends)))
    return made


@dataclass(slots=True)
class Murder:
    """One ``kill -9``: which orders had a card being charged at that moment, and how many were not done."""

    charging: list[str]
    keys: list[str]
    unfinished: int


@dataclass(slots=True)
class Story:
    """Tells itself with ``tell()``. ``rows`` is the board as it was last seen."""

    site: Site
    payments_url: str
    worker: Worker
    show: Callable[[list[dict[str, Any]], str], None]
    plans: list[Plan] = field(default_factory=plans)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    murders: list[Murder] = field(default_factory=list)
    decided: set[str] = field(default_factory=set)
    placed: int = 0
    #: Seconds between two orders: for an audience.
    pause: float = 0.0

    def tell(self, deadline: float) -> None:
        """Until every order is done; raises :class:`DemoFailed` when that takes past ``deadline`` (monotonic)."""
        self.kill_in_the_act(deadline, placing=len(self.plans) - 14)
        # Nobody works now. What is ordered meanwhile must wait, not vanish.
        self.place(self.placed + 3)
        self.worker.start()
        self.kill_in_the_act(deadline, placing=len(self.plans) - 3)
        self.place(len(self.plans))
        self.worker.start()
        self.wait_for(lambda: self.reminded() and self.decide(), deadline, "orders that wait for approval")
        self.wait_for(lambda: self.decide() and self.all_done(), deadline, "the last orders")

    def place(self, up_to: int) -> None:
        for plan in self.plans[self.placed : up_to]:
            body = {"sku": plan.sku, "quantity": plan.quantity, "card": plan.card}
            self.site.rest("PUT", "actors/", {"name": "order", "key": plan.key, "input": body})
            self.placed += 1
            time.sleep(self.pause)

    def kill_in_the_act(self, deadline: float, placing: int) -> None:
        """SIGKILL at the worst moment there is: money has moved, and the worker has not heard of it yet.

        Not before this worker has finished a few orders. Meanwhile new ones come in as others are done, up to
        ``placing`` of them.
        """
        before, looked = self.finished(), 0.0
        while True:
            self.worker.check()
            if time.monotonic() - looked > 0.4:
                self.look()
                self.show(list(self.rows.values()), "")
                looked = time.monotonic()
            if self.finished() >= before + 3 and (charged := self.being_charged()):
                break
            if time.monotonic() > deadline:
                raise DemoFailed("time is up, and there was no card being charged: nothing to interrupt")
            if self.placed - self.finished() < OPEN_ORDERS and self.placed < placing:
                self.place(self.placed + 1)
            time.sleep(0.02)
        self.worker.kill()
        self.look()
        orders, keys = [call["order"] for call in charged], [call["key"] for call in charged]
        self.murders.append(Murder(orders, keys, self.placed - self.finished()))
        self.show(
            list(self.rows.values()), f"kill -9 no. {self.worker.kills}, while charging {', '.join(orders)}"
        )

    def being_charged(self) -> list[dict[str, Any]]:
        """Calls whose charge is made and whose answer is not given yet.

        A late answer is late by a second; one that is due within a moment may have arrived already.
        """
        return [call for call in self.ledger()["in_flight"] if call["charged"] and call["seconds"] < 0.6]

    def ledger(self) -> dict[str, Any]:
        found: dict[str, Any] = get_json(f"{self.payments_url}/ledger")
        return found

    def reminded(self) -> bool:
        """Approvals are left alone until a reminder's timer has fired, so that one does."""
        return any(row["reminders"] for row in self.rows.values())

    def decide(self) -> bool:
        """Approve what waits, but for the one that is to be rejected. Always True, to be used in a condition."""
        for plan in self.plans:
            row = self.rows.get(plan.key)
            if row is None or row["status"] != WAITING or plan.key in self.decided:
                continue
            body = {"approved": "rejected" not in plan.ends, "by": "the demo"}
            self.site.rest("POST", "send/order/approval/", {"key": plan.key, "body": body})
            self.decided.add(plan.key)
        return True

    def finished(self) -> int:
        return sum(row["status"] in ENDS for row in self.rows.values())

    def all_done(self) -> bool:
        return self.finished() == len(self.plans)

    def look(self) -> None:
        """Ask the board, in the web process: it answers also while no worker runs."""
        answer = self.site.rest("POST", "call/order_board/get_rows/", {"key": "main"})
        self.rows = {row["order"]: row for row in answer["output"] if row["order"].startswith("order-")}

    def wait_for(self, condition: Callable[[], Any], deadline: float, what: str) -> None:
        while True:
            self.worker.check()
            self.look()
            self.show(list(self.rows.values()), "")
            if condition():
                return
            if time.monotonic() > deadline:
                waiting = {
                    p.key: self.rows.get(p.key, {}).get("status", "not seen")
                    for p in self.plans[: self.placed]
                }
                open_orders = {key: status for key, status in waiting.items() if status not in ENDS}
                raise DemoFailed(f"time is up while waiting for {what}. Not done: {open_orders}")
            time.sleep(0.4)
