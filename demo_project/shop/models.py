"""What the shop keeps in its own tables: products and their stock. Orders are actors (``actors.py``)."""

from __future__ import annotations

from django.db import models


class Product(models.Model):
    """Something to sell. Prices are whole cents."""

    sku = models.SlugField(primary_key=True)
    name = models.CharField(max_length=80)
    price = models.PositiveIntegerField()
    stock = models.PositiveIntegerField()

    class Meta:
        ordering = ("sku",)

    def __str__(self) -> str:
        return self.name


class Reservation(models.Model):
    """Stock that an order holds, or, once ``sold``, has taken."""

    order = models.CharField(max_length=64, primary_key=True)
    product = models.ForeignKey(Product, on_delete=models.PROTECT, related_name="reservations")
    quantity = models.PositiveIntegerField()
    sold = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product_id} for {self.order}"
