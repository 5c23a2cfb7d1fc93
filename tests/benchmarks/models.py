"""What a step of a project would write: one row."""

from __future__ import annotations

from django.db import models


class Row(models.Model):
    number = models.IntegerField()

    class Meta:
        app_label = "benchmarks"

    def __str__(self) -> str:
        return str(self.number)
