"""How the service misbehaves: on purpose, and the same way every time.

What happens to a call depends on the seed, the order and how often that order was tried, not on the clock or
on which thread came first. So a run that went wrong can be looked at again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What goes wrong with one call. The two after ``REFUSE`` strike when the money has already moved."""

    NONE = "answered"
    REFUSE = "refused with 503"
    DROP = "charged, then hung up"
    SLOW = "charged, then answered late"


@dataclass(frozen=True, slots=True)
class Faults:
    """The dice. Rates are shares of all calls; an order that was tried ``patience`` times is served well."""

    seed: int = 1
    refuse: float = 0.15
    drop: float = 0.15
    slow: float = 0.3
    delay: float = 1.0
    patience: int = 4

    def for_call(self, order: str, attempt: int) -> Fault:
        """The fate of the ``attempt``-th call (from 1) for ``order``."""
        if attempt > self.patience:
            return Fault.NONE
        digest = hashlib.sha256(f"{self.seed}:{order}:{attempt}".encode()).digest()
        roll = int.from_bytes(digest[:8], "big") / 2**64
        for fault, rate in ((Fault.REFUSE, self.refuse), (Fault.DROP, self.drop), (Fault.SLOW, self.slow)):
            if roll < rate:
                return fault
            roll -= rate
        return Fault.NONE


NO_FAULTS = Faults(refuse=0, drop=0, slow=0)
