"""The shop's own tables in the admin. The orders are under "Workflows", where the package puts its actors."""

from __future__ import annotations

from django.contrib import admin

from shop.models import Product, Reservation


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("sku", "name", "price", "stock")


@admin.register(Reservation)
class ReservationAdmin(admin.ModelAdmin):
    list_display = ("order", "product", "quantity", "sold")
    list_filter = ("sold",)
    list_select_related = ("product",)
