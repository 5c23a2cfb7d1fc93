"""Products and reservations."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: list[tuple[str, str]] = []

    operations = [
        migrations.CreateModel(
            name="Product",
            fields=[
                ("sku", models.SlugField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=80)),
                ("price", models.PositiveIntegerField()),
                ("stock", models.PositiveIntegerField()),
            ],
            options={"ordering": ("sku",)},
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("order", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("quantity", models.PositiveIntegerField()),
                ("sold", models.BooleanField(default=False)),
                (
                    "product",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="reservations",
                        to="shop.product",
                    ),
                ),
            ],
        ),
    ]
