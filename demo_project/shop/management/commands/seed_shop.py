"""Products, the board, and an account to sign in with."""

from __future__ import annotations

import os
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from rivet_workflows import client
from shop.board import OrderBoard
from shop.models import Product

#: sku, name, price in cents, stock
PRODUCTS = [
    ("mug", "Enamel mug", 1_900, 200),
    ("lamp", "Desk lamp", 8_900, 60),
    ("chair", "Oak chair", 24_900, 40),
    ("desk", "Standing desk", 79_900, 25),
    ("print", "Signed print, the last three", 12_000, 3),
]


class Command(BaseCommand):
    """Fill an empty shop. Run again, it changes nothing but the password."""

    help = "Add the demo's products, its board of orders and the account 'admin' (password: DEMO_PASSWORD)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--migrate", action="store_true", help="migrate first: one start of Django less")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["migrate"]:
            call_command("migrate", verbosity=0)
        password = os.environ.get("DEMO_PASSWORD", "admin")
        with transaction.atomic():
            for sku, name, price, stock in PRODUCTS:
                defaults = {"name": name, "price": price, "stock": stock}
                Product.objects.get_or_create(sku=sku, defaults=defaults)
            user, _ = get_user_model().objects.get_or_create(username="admin")
            user.is_staff = user.is_superuser = True
            user.set_password(password)
            user.save()
            client.get_or_create(OrderBoard, "main")
        self.stdout.write(f"Seeded {len(PRODUCTS)} products; sign in as admin.")
