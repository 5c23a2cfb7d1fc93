"""The replay engine: pure Python, no Django, no I/O, no clock, no threads, no asyncio.

One :class:`Machine` holds one actor's coroutines and history. It is fed happenings and gives back a :class:`Turn`
of orders; who carries them out, and when, is not its concern. Values beyond the codec it is handed are opaque text.
"""

from .context import Context, LoopContext
from .machine import Machine
from .program import Codec, Limits, Program
from .results import BlockFailure, Loop, Message, RaceOutcome, StepFailure, TryResult
from .turn import Turn

__all__ = [
    "BlockFailure",
    "Codec",
    "Context",
    "Limits",
    "Loop",
    "LoopContext",
    "Machine",
    "Message",
    "Program",
    "RaceOutcome",
    "StepFailure",
    "TryResult",
    "Turn",
]
