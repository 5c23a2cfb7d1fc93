"""What queues and events may be called. A leaf.

As much as a column holds, and what can stand in a path, in a log line and in UTF-8 (which has no bytes for surrogates).
"""

from __future__ import annotations

import re

RULE = "1 to 128 characters and no '/' or control characters"
_NAME = re.compile(r"[^/\x00-\x1f\x7f\ud800-\udfff]{1,128}\Z")


def is_name(name: str) -> bool:
    """May a queue or an event be called so?"""
    return _NAME.match(name) is not None
