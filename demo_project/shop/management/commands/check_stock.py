"""Do the shop's own tables add up? What is on the shelf and what was sold is what there was."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Sum

from shop.management.commands.seed_shop import PRODUCTS
from shop.models import Product, Reservation


class Command(BaseCommand):
    """Exits with 1 when stock was lost or sold twice, or is still held although all orders are done."""

    help = "Check that stock and sales add up to what the shop was seeded with, and nothing is held."

    def handle(self, *args: Any, **options: Any) -> None:
        problems = [f"{held} is still held" for held in Reservation.objects.filter(sold=False)]
        sold = dict(Reservation.objects.values_list("product").annotate(n=Sum("quantity")))
        for sku, _, _, at_first in PRODUCTS:
            stock = Product.objects.get(sku=sku).stock
            if stock + sold.get(sku, 0) != at_first:
                problems.append(f"{sku}: {stock} in stock and {sold.get(sku, 0)} sold, of {at_first}")
        if problems:
            raise CommandError("; ".join(problems))
        self.stdout.write("Stock and sales add up.")
