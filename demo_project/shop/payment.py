"""The shop's side of the payment service: one function that charges a card, and the one answer that is final."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from django.conf import settings


class CardDeclined(Exception):
    """The bank said no. Trying again would not help."""


class PaymentUnavailable(Exception):
    """No usable answer. Whether the card was charged is unknown; asking again with the same key is safe."""


def charge(order: str, amount: int, card: str, *, idempotency_key: str) -> int:
    """Charge ``amount`` cents for ``order`` and return the charge's number.

    However often it is called with one ``idempotency_key``, the card is charged once.
    Raises ``CardDeclined``, ``PaymentUnavailable``, or what the network has to offer.
    """
    request = urllib.request.Request(
        f"{settings.PAYMENTS_URL}/charges",
        data=json.dumps({"order": order, "amount": amount, "card": card}).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": idempotency_key},
    )
    try:
        with urllib.request.urlopen(request, timeout=4) as response:
            return int(json.load(response)["id"])
    except urllib.error.HTTPError as error:
        if error.code == 402:
            raise CardDeclined(f"the card for {order} was declined") from error
        raise PaymentUnavailable(f"the payment service answered {error.code}") from error
