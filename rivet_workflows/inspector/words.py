"""An actor's status in words: what it does or waits for, since when, and what will happen next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from rivet_workflows.client import ActorState, ActorStatus
from rivet_workflows.inspector.moments import Moment, shown
from rivet_workflows.inspector.reading import Line
from rivet_workflows.records import Kind

__all__ = ["STATES", "Fact", "Holder", "Situation", "situation"]

#: Names of the states, as lists and badges show them. ``unknown``: the rows cannot be read.
STATES: dict[str, Promise] = {
    "idle": gettext_lazy("idle"),
    "pending": gettext_lazy("pending"),
    "running": gettext_lazy("running"),
    "sleeping": gettext_lazy("sleeping"),
    "completed": gettext_lazy("completed"),
    "failed": gettext_lazy("failed"),
    "cancelled": gettext_lazy("cancelled"),
    "rolling_back": gettext_lazy("rolling back"),
    "paused": gettext_lazy("paused"),
    "set_aside": gettext_lazy("set aside"),
    "unknown": gettext_lazy("unreadable"),
}
#: Where a sentence has its point in time.
WHEN = "{when}"


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence, with a point in time in it (or none), and the entry it speaks of (or none)."""

    before: str
    at: Moment | None = None
    after: str = ""
    seq: int | None = None
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """The worker that holds an actor, as far as it matters here."""

    id: int
    name: str
    heartbeat_at: Moment | None
    alive: bool


@dataclass(slots=True)
class Situation:
    """What an operator wants to know first."""

    state: str
    headline: str
    facts: list[Fact] = field(default_factory=list)
    #: What will happen by itself, or what to do so that something does.
    next: list[Fact] = field(default_factory=list)
    reason: str = ""

    @property
    def label(self) -> str:
        return str(STATES[self.state])


def fact(text: str, at: Moment | None = None, *, seq: int | None = None, warning: bool = False) -> Fact:
    """A sentence; ``{when}`` in it stands for ``at``."""
    if at is None:
        return Fact(text.replace(WHEN, "?"), seq=seq, warning=warning)
    before, _when, after = text.partition(WHEN)
    return Fact(before, at, after, seq, warning)


def situation(
    status: ActorStatus | None,
    opened: Sequence[Line],
    *,
    name: str,
    known: bool,
    runnable: bool,
    holder: Holder | None,
    wake_at: Moment | None = None,
) -> Situation:
    """The status in words.

    ``opened``: open entries; ``known``: this process has the actor's class; ``runnable``: a live worker has code for
    it; ``wake_at``: the next wake that is stored.
    """
    if status is None:
        return Situation(
            "unknown",
            _("Its rows cannot be read by this version."),
            next=[
                fact(_("A newer version may have written them, or they were damaged. Nothing is changed."))
            ],
        )
    leaves = [line for line in opened if line.kind in _LEAVES]
    said = Situation(status.state.value, "", reason=status.reason or "")
    _TELL[status.state](said, status, leaves)
    if not known:
        text = _("No class named “%(name)s” is known here: its values are shown as they are stored.")
        said.facts.append(fact(text % {"name": name}, warning=True))
    if status.state in _NEEDS_WORKER:
        _tell_of_worker(said, status, name, runnable, holder, wake_at)
    return said


_LEAVES = (Kind.STEP, Kind.SLEEP, Kind.MESSAGE, Kind.CHILD)
_NEEDS_WORKER = (ActorState.PENDING, ActorState.RUNNING, ActorState.SLEEPING, ActorState.ROLLING_BACK)


def _tell_of_worker(
    said: Situation,
    status: ActorStatus,
    name: str,
    runnable: bool,
    holder: Holder | None,
    wake_at: Moment | None,
) -> None:
    if holder is not None:
        # When it was last heard of matters once it is not: while it lives that changes every second.
        text = _("Held by worker %(worker)s.")
        if not holder.alive:
            text = _(
                "Held by worker %(worker)s, which is taken for dead: last heard of {when}. Another takes it over."
            )
        said.facts.append(
            fact(
                text % {"worker": holder.name},
                None if holder.alive else holder.heartbeat_at,
                warning=not holder.alive,
            )
        )
    if not runnable and status.reason is None:
        text = _("No running worker has code for “%(name)s”: nothing goes on until one is started.")
        said.next.append(fact(text % {"name": name}, warning=True))
    elif status.state == ActorState.PENDING and holder is None:
        said.next.append(fact(_("The next free worker takes it up.")))
    elif status.state == ActorState.SLEEPING and status.wake_at is None and wake_at is not None:
        said.next.append(fact(_("It is next looked at {when}."), wake_at))


# -- one function per state


def _idle(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    said.headline = _("A plain actor: it has no workflow to run.")
    said.next.append(fact(_("Its actions and schedules work; messages stay queued.")))


def _pending(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    said.headline = _("Waits for a worker to take it up.")
    if status.since is not None:
        said.facts.append(fact(_("Since {when}."), shown(status.since)))


def _running(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    steps = [line for line in leaves if line.kind == Kind.STEP and line.status == "running"]
    if not steps:
        said.headline = _("A worker is running the workflow.")
    elif len(steps) == 1:
        said.headline = _("Runs the step “%(step)s”.") % {"step": steps[0].label}
    else:
        names = ", ".join(f"“{line.label}”" for line in steps[:4]) + (", …" if len(steps) > 4 else "")
        said.headline = ngettext(
            "Runs %(n)d step: %(names)s.", "Runs %(n)d steps: %(names)s.", len(steps)
        ) % {
            "n": len(steps),
            "names": names,
        }
    _tell_of_leaves(said, leaves)


def _sleeping(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    retrying = [line for line in leaves if line.status == "retrying"]
    messages = [line for line in leaves if line.kind == Kind.MESSAGE]
    if status.waiting_for is not None and messages:
        said.headline = _waits_for_messages(status.waiting_for)
    elif retrying:
        said.headline = _("Waits to try the step “%(step)s” again.") % {"step": retrying[0].label}
    elif any(line.kind == Kind.CHILD for line in leaves):
        said.headline = _("Waits for the workflow of another actor to end.")
    else:
        said.headline = _("Sleeps.")
    _tell_of_leaves(said, leaves)


def _waits_for_messages(queues: tuple[str, ...]) -> str:
    if not queues:
        return _("Waits for a message in any queue.")
    names = " / ".join(f"“{name}”" for name in queues)
    return _("Waits for a message in %(queues)s.") % {"queues": names}


def _tell_of_leaves(said: Situation, leaves: Sequence[Line]) -> None:
    """Each open call: since when, and when it ends by itself."""
    for line in leaves[:8]:
        named = {"name": line.label, "n": line.attempt}
        if line.status == "retrying":
            tried = _("“%(name)s” failed: %(error)s") % {
                "name": line.label,
                "error": line.error.line if line.error else "",
            }
            said.facts.append(fact(tried, warning=True, seq=line.seq))
            said.next.append(
                fact(_("Attempt %(n)d of “%(name)s” at {when}.") % named, line.due_at, seq=line.seq)
            )
        elif line.kind == Kind.STEP:
            text = (
                _("“%(name)s”: attempt %(n)d, since {when}.")
                if line.attempts
                else _("“%(name)s”: since {when}.")
            )
            said.facts.append(fact(text % named, line.started_at, seq=line.seq))
        elif line.kind == Kind.MESSAGE:
            said.facts.append(
                fact(_("“%(name)s” waits since {when}.") % named, line.started_at, seq=line.seq)
            )
            text = _("A message ends the wait “%(name)s”.") % named
            if line.due_at is not None:
                text = _("A message ends the wait “%(name)s”; without one it gives up at {when}.") % named
            said.next.append(fact(text, line.due_at, seq=line.seq))
        elif line.kind == Kind.SLEEP:
            said.facts.append(fact(_("“%(name)s” since {when}.") % named, line.started_at, seq=line.seq))
            said.next.append(fact(_("“%(name)s” ends at {when}.") % named, line.due_at, seq=line.seq))
        else:
            said.facts.append(fact(_("“%(name)s” since {when}.") % named, line.started_at, seq=line.seq))
    if len(leaves) > 8:
        said.facts.append(fact(_("… and %(n)d more calls that are open.") % {"n": len(leaves) - 8}))


def _completed(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    said.headline = _("The workflow ran to its end.")
    if status.since is not None:
        said.facts.append(fact(_("It ended at {when}."), shown(status.since)))
    said.next.append(fact(_("Nothing more: a completed workflow never runs again by itself.")))


def _failed(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    said.headline = _("The workflow failed.")
    if status.since is not None:
        said.facts.append(fact(_("It ended at {when}."), shown(status.since)))
    text = _(
        "Nothing by itself. Recover tries the failed steps again; replay runs anew from an entry you choose."
    )
    said.next.append(fact(text))


def _cancelled(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    said.headline = _("The workflow was cancelled.")
    if status.since is not None:
        said.facts.append(fact(_("It ended at {when}."), shown(status.since)))
    said.next.append(fact(_("Nothing by itself. Recover goes on where it was stopped.")))


def _rolling_back(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    if status.reason is None:
        said.headline = _("Failed, and undoes its completed steps, the last one first.")
        said.next.append(fact(_("When all handlers have run, it ends as failed.")))
        return
    said.headline = _("Its rollback is stuck: a handler keeps failing.")
    said.next.append(
        fact(_("Nothing by itself. Mend the handler, then Recover tries it again."), warning=True)
    )


def _paused(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    said.headline = _("Paused: no worker runs it.")
    said.next.append(fact(_("Messages and actions are still taken; Resume lets the workflow go on.")))
    for line in leaves[:8]:
        said.facts.append(fact(_("“%(name)s” is open.") % {"name": line.label}, seq=line.seq))


def _set_aside(said: Situation, status: ActorStatus, leaves: Sequence[Line]) -> None:
    headline, advice = {
        "diverged": (
            _("Set aside: the code no longer fits the history. Nothing was run."),
            _(
                "A worker with other code for it takes it up by itself. Otherwise restore the code or bridge the "
                "change (ctx.get_version, ctx.removed); Wake tries again."
            ),
        ),
        "poisoned": (
            _(
                "Set aside: a step took its worker process down again and again, or run computed without an end."
            ),
            _(
                "Nothing by itself. Mend what the error names, deploy that, then Recover counts anew and runs it."
            ),
        ),
        "unreadable": (
            _("Set aside: its stored rows could not be decoded."),
            _("Nothing by itself. Bring back the class that is missing, or mend the row; then Recover."),
        ),
    }.get(status.reason or "", (_("Set aside."), _("Recover tries again.")))
    said.headline = headline
    said.next.append(fact(advice, warning=True))
    for line in leaves[:4]:
        said.facts.append(fact(_("“%(name)s” is open.") % {"name": line.label}, seq=line.seq))


_TELL = {
    ActorState.IDLE: _idle,
    ActorState.PENDING: _pending,
    ActorState.RUNNING: _running,
    ActorState.SLEEPING: _sleeping,
    ActorState.COMPLETED: _completed,
    ActorState.FAILED: _failed,
    ActorState.CANCELLED: _cancelled,
    ActorState.ROLLING_BACK: _rolling_back,
    ActorState.PAUSED: _paused,
    ActorState.SET_ASIDE: _set_aside,
}
