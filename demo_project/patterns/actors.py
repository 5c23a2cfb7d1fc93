"""The gallery. Django finds this module; the actors are in the modules beside it, by topic.

Each docstring says when to use the pattern. To try one::

    python manage.py shell
    >>> from rivet_workflows import client
    >>> client.get_or_create("welcome", "ada").status()
"""

from __future__ import annotations

from patterns import basics, clock, failures, messages, timers, together, versions

__all__ = ["basics", "clock", "failures", "messages", "timers", "together", "versions"]
