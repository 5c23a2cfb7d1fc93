"""Values to text and back, losslessly: what a step returns is what replay sees, the first time too.

This room knows neither Django nor any other room but the errors; it reads no clock, no setting and
no database, and imports no module on the word of a row. Others hand it values and get text.

The text is ASCII JSON on every database (a JSON column loses -0.0 and key order and refuses NUL).
What comes back equal and of the same type:

- str (NUL and lone surrogates too), int of any size, float (NaN, infinities, -0.0), bool, None;
- list, dict (any keys, in order), tuple, set, frozenset, OrderedDict, deque;
- datetime and time (UTC, fixed offsets, zoneinfo keys, fold), date, timedelta, timezone, ZoneInfo;
- Decimal, Fraction, complex, UUID, bytes, bytearray, range, ipaddress, pathlib paths;
- Enum, Flag, NamedTuple, dataclass and pydantic model (generic ones, private attributes and extras
  too, pydantic's URLs), when their class can be found by name; anything given to `register`.

Stored as something else, by rule: `SafeString` as str, the results of DRF serializers as dict and
list, freezegun's fake dates as real ones. Everything else is refused with the path to it and what
to pass instead: model instances, querysets, lazy text, QueryDict, defaultdict, subclasses of str, int,
list, …; secrets of pydantic, since they would be stored readable.

An object that is met twice in a value comes back as two; one that holds itself is refused.
"""

from __future__ import annotations

from rivet_workflows.codec.decode import loads, roundtrip, roundtrip_call
from rivet_workflows.codec.encode import dumps, fingerprint
from rivet_workflows.codec.extras import register_extras
from rivet_workflows.codec.names import configure, current_name, register, stable_name
from rivet_workflows.codec.plain import plain_text, to_plain

__all__ = [
    "configure",
    "current_name",
    "dumps",
    "fingerprint",
    "loads",
    "plain_text",
    "register",
    "roundtrip",
    "roundtrip_call",
    "stable_name",
    "to_plain",
]

register_extras()
