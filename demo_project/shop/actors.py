"""An order, from the cart to the confirmation, as one durable workflow. This is the page to copy from.

``Order.run`` reads like a script that never crashes. Each ``ctx.step`` runs once and its result is recorded; a
worker that takes over a dead one's orders runs ``run`` again from the top, gets the recorded results back, and
goes on where the dead one stopped. So everything that touches the world (tables, network, state) is inside
steps, and between them there is plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import F

from rivet_workflows import Actor, Event, Queue, QueueTimeout, StepFailed, UserError, action
from shop import payment
from shop.board import OrderBoard, Row
from shop.models import Product, Reservation

#: Orders above this (in cents) wait for somebody to approve them.
APPROVAL_ABOVE = 50_000
#: How often we ask again, and how many times. Seconds, so that a demo can show it: a shop would say hours.
REMIND_AFTER = timedelta(seconds=4)
REMINDERS = 150


@dataclass
class OrderState:
    """What is known of an order. Stored with every step, readable at any time, also while no worker runs."""

    sku: str
    quantity: int
    card: str
    total: int
    status: str = "received"
    reminders: int = 0
    charge: int | None = None


@dataclass
class Decision:
    """What an approver sends to ``Order.approval``. Checked where it is sent: nonsense never gets here."""

    approved: bool
    by: str


class Order(Actor):
    """Reserve stock, ask for approval when it is a lot of money, charge the card, confirm."""

    approval = Queue(Decision)
    status_changed = Event(str)

    def create_state(self, c: Any, input: dict[str, Any]) -> OrderState:
        """Runs in the transaction that places the order: an order we cannot take is refused and leaves no trace."""
        try:
            product = Product.objects.get(sku=input["sku"])
            quantity, card = int(input["quantity"]), str(input["card"])
        except (KeyError, TypeError, ValueError):
            raise UserError("an order has a sku, a quantity and a card", code="bad_order") from None
        except Product.DoesNotExist:
            raise UserError(f"we do not sell {input['sku']!r}", code="unknown_product") from None
        if quantity < 1:
            raise UserError("order at least one", code="bad_order")
        return OrderState(product.sku, quantity, card, total=product.price * quantity)

    async def run(self, ctx: Any) -> str:
        total = await ctx.step(reserve_stock, atomic=True)
        if total is None:
            return "sold out"
        if total > APPROVAL_ABOVE and not await self.approved(ctx):
            await ctx.step(release_stock, "rejected", atomic=True)
            return "rejected"
        try:
            charge = await ctx.step(
                charge_card,
                timeout=5,
                retry_on_timeout=True,
                max_retries=10,
                retry_backoff_max=1,
                no_retry=(payment.CardDeclined,),
            )
        except StepFailed as failure:
            if not failure.error.is_a("CardDeclined"):
                raise  # Nobody knows whether the card was charged: the order fails, for a person to look at.
            await ctx.step(release_stock, "declined", atomic=True)
            return "declined"
        await ctx.step(confirm, charge, atomic=True)
        return "confirmed"

    async def approved(self, ctx: Any) -> bool:
        """Wait for a decision. Waiting costs a row in a table, for four seconds or for four months."""
        await ctx.step("ask-for-approval", set_status, "waiting for approval")
        for _ in range(REMINDERS):
            try:
                message = await ctx.queue.next("wait-approval", names=[Order.approval], timeout=REMIND_AFTER)
            except QueueTimeout:
                await ctx.step(remind)
            else:
                return message.body.approved
        return False

    @action(read_only=True)
    def get_state(self, c: Any) -> OrderState:
        return c.state

    def has_permission(self, request: Any, operation: str, name: str | None) -> bool:
        """Whoever is signed in may order; only staff may approve."""
        if operation == "send" and name == "approval":
            return bool(request.user.is_staff)
        return super().has_permission(request, operation, name)


# Steps. With ``atomic=True`` a step's changes to the shop's own tables and the record that it is done are one
# commit: exactly once. What a step does elsewhere may happen again when the process dies in between, so the
# payment service is handed a key by which it knows the charge again.


def reserve_stock(step: Any) -> int | None:
    """Take the goods off the shelf; the total to pay, or None when there are too few of them."""
    order = step.state
    on_the_shelf = Product.objects.filter(sku=order.sku, stock__gte=order.quantity)
    if not on_the_shelf.update(stock=F("stock") - order.quantity):
        set_status(step, "sold out")
        return None
    Reservation.objects.create(order=step.key, product_id=order.sku, quantity=order.quantity)
    set_status(step, "reserved")
    return order.total


def charge_card(step: Any) -> int:
    """The key is the same in every attempt, also after a crash, so the payment service charges once."""
    order = step.state
    return payment.charge(step.key, order.total, order.card, idempotency_key=step.idempotency_key)


def confirm(step: Any, charge: int) -> None:
    Reservation.objects.filter(order=step.key).update(sold=True)
    step.state.charge = charge
    set_status(step, "confirmed")


def release_stock(step: Any, status: str) -> None:
    held = Reservation.objects.get(order=step.key)
    Product.objects.filter(sku=held.product_id).update(stock=F("stock") + held.quantity)
    held.delete()
    set_status(step, status)


def remind(step: Any) -> None:
    """A shop would write to somebody here."""
    step.state.reminders += 1
    set_status(step, "waiting for approval")


def set_status(step: Any, status: str) -> None:
    """New state, event and message become visible together with the record that the step is done."""
    order = step.state
    order.status = status
    step.broadcast("status_changed", status)
    row = Row(step.key, order.sku, order.quantity, order.total, status, order.reminders, str(step.actor_id))
    step.client().get(OrderBoard, "main").send(OrderBoard.changes, row)
