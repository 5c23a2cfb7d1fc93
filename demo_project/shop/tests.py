"""The order, as a project would test it: no worker, no payment service, a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows import StepFailed, UserError
from shop import payment
from shop.actors import REMIND_AFTER, Decision, Order
from shop.board import OrderBoard
from shop.models import Product, Reservation


@pytest.fixture(autouse=True)
def shop(rivet: Any) -> None:
    Product.objects.create(sku="mug", name="Mug", price=1_900, stock=3)
    Product.objects.create(sku="desk", name="Desk", price=79_900, stock=3)
    rivet.client.create(OrderBoard, "main")
    rivet.stub_step("charge_card", lambda step: 42)


def an_order(rivet: Any, sku: str = "mug", quantity: int = 1, key: str = "order-1") -> Any:
    return rivet.client.create(Order, key, input={"sku": sku, "quantity": quantity, "card": "4242"})


def stock(sku: str) -> int:
    return Product.objects.get(sku=sku).stock


def test_an_order_is_confirmed(rivet: Any) -> None:
    order = an_order(rivet, quantity=2)
    rivet.run_until_idle()
    assert order.result() == "confirmed"
    assert (order.get_state().charge, stock("mug")) == (42, 1)
    assert Reservation.objects.get().sold
    assert [event.payload for event in rivet.events(order)] == ["reserved", "confirmed"]


@pytest.mark.parametrize("step", ["reserve_stock", "charge_card", "confirm"])
@pytest.mark.parametrize("moment", ["before", "after_run", "after_commit"])
def test_a_crash_anywhere_changes_nothing(rivet: Any, step: str, moment: str) -> None:
    rivet.crash_at(step, moment)
    order = an_order(rivet)
    rivet.run_until_idle()
    assert (order.result(), stock("mug")) == ("confirmed", 2)


def test_what_is_not_there_is_not_sold(rivet: Any) -> None:
    order = an_order(rivet, quantity=4)
    rivet.run_until_idle()
    assert (order.result(), stock("mug")) == ("sold out", 3)
    assert not Reservation.objects.exists()


@pytest.mark.parametrize(("approved", "end", "left"), [(True, "confirmed", 2), (False, "rejected", 3)])
def test_a_large_order_waits_for_a_person(rivet: Any, approved: bool, end: str, left: int) -> None:
    order = an_order(rivet, "desk")
    rivet.run_until_idle()
    assert order.get_state().status == "waiting for approval"
    rivet.advance(seconds=3 * REMIND_AFTER.total_seconds())
    assert order.get_state().reminders == 3
    order.send(Order.approval, Decision(approved, by="eve"))
    rivet.run_until_idle()
    assert (order.result(), stock("desk")) == (end, left)


def test_a_declined_card_gives_the_stock_back(rivet: Any) -> None:
    rivet.fail_step("charge_card", times=None, error=payment.CardDeclined("no"))
    order = an_order(rivet)
    rivet.run_until_idle()
    assert (order.result(), stock("mug")) == ("declined", 3)


def test_an_order_whose_charge_is_in_doubt_fails_and_keeps_the_stock(rivet: Any) -> None:
    rivet.fail_step("charge_card", times=None, error=ConnectionError("no answer"))
    order = an_order(rivet)
    rivet.advance(seconds=60)
    with pytest.raises(StepFailed):
        order.result()
    assert stock("mug") == 2
    assert order.status().state == "failed"


@pytest.mark.parametrize(
    "wrong", [{}, {"sku": "moon", "quantity": 1, "card": "4"}, {"sku": "mug", "quantity": 0}]
)
def test_an_order_that_cannot_be_taken_leaves_no_trace(rivet: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        rivet.client.create(Order, "order-1", input=wrong)
    assert list(rivet.client.list(Order)) == []


def test_the_board_shows_every_order(rivet: Any) -> None:
    for number in range(3):
        an_order(rivet, key=f"order-{number}")
    rivet.run_until_idle()
    rows = rivet.client.get(OrderBoard, "main").get_rows()
    assert {row.order: row.status for row in rows} == {f"order-{n}": "confirmed" for n in range(3)}
