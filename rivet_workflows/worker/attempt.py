"""One attempt of one step, from its start to its report: call, encode, collect, whatever the user's code does.

Runs on the step's side (a step thread or the loop), never on the core's. A report is made of everything that can be
raised, ``SystemExit``, ``KeyboardInterrupt`` and exceptions whose own code is broken included: user code must not be
able to take a thread of the worker down.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from rivet_workflows import codec
from rivet_workflows.conf import settings
from rivet_workflows.exceptions import ErrorInfo, PayloadTooLarge, dotted_name
from rivet_workflows.worker.context import StepContext, StepEnvironment
from rivet_workflows.worker.orders import Effects, StepReport, StepStart


class Attempt:
    """What the runner knows of a step that it was told to start."""

    __slots__ = ("context", "settled", "start", "timeout")

    def __init__(self, start: StepStart, env: StepEnvironment) -> None:
        self.start = start
        self.context = StepContext(start, env)
        #: Seconds from the moment its code begins to run.
        self.timeout = start.options.timeout
        #: How it ended is decided (by its end, a timeout, a cancellation).
        self.settled = False

    def call(self) -> Any:
        """Call the step's function. An ``async def`` gives its coroutine."""
        start = self.start
        if start.options.context or start.is_rollback:
            return start.function(self.context, *start.args, **start.kwargs)
        return start.function(*start.args, **start.kwargs)

    def succeeded(self, value: Any) -> StepReport:
        """The report of an attempt that returned ``value``; a failure when that, or the state, cannot be kept."""
        try:
            what = f'result of step "{self.start.name}"'
            value, text = codec.roundtrip(value, what=what)
            if len(text) > settings.MAX_PAYLOAD:
                raise PayloadTooLarge(
                    f"the {what} has {len(text):,} bytes encoded; MAX_PAYLOAD allows {settings.MAX_PAYLOAD:,}. "
                    "Store it where it belongs and return its key"
                )
            effects = self.context.effects(ok=True)
        except BaseException as error:
            return self.failed(error)
        self.context.end("has ended")
        return StepReport(ok=True, output=text, value=value, effects=effects)

    def failed(self, error: BaseException) -> StepReport:
        """The report of an attempt that raised. Its state changes and broadcasts stay (D-12)."""
        report = StepReport(ok=False, error=describe(error), effects=self._effects_of_failure())
        self.context.end("has ended")
        return report

    def timed_out(self) -> StepReport:
        """The report of an attempt that ran too long. Its code may still run: nothing of it is looked at."""
        self.context.end("has timed out", cancelled=True)
        message = f'step "{self.start.name}" ran longer than its timeout of {self.timeout:g} s'
        info = ErrorInfo(
            "TimeoutError", message, bases=("TimeoutError", "OSError", "Exception", "BaseException")
        )
        return StepReport(ok=False, timed_out=True, error=info)

    def abandoned(self) -> StepReport:
        """The report of an attempt that the worker could not let run to its end."""
        self.context.end("was interrupted, as its worker stops", cancelled=True)
        return StepReport(ok=False, abandoned=True)

    def _effects_of_failure(self) -> Effects | None:
        try:
            return self.context.effects(ok=False)
        except BaseException as problem:
            with suppress(Exception):
                self.context.log.warning(
                    "The state that the failed step left is dropped: it cannot be stored (%s)",
                    describe(problem),
                )
            return self.context.effects_without_state()


def describe(error: BaseException) -> ErrorInfo:
    """The record of ``error``, without the frames of this module, which say nothing to whoever wrote the step."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(__package__ or "-"):
        trace = trace.tb_next
    try:
        if trace is not None:
            error.__traceback__ = trace
        return ErrorInfo.from_exception(error)
    except BaseException as broken:  # its __str__ or an attribute raises what is no Exception
        kind = type(error)
        return ErrorInfo(
            type=dotted_name(kind),
            message=f"<its text cannot be shown: {dotted_name(type(broken))}>",
            bases=tuple(dotted_name(base) for base in kind.__mro__ if base is not object),
        )


async def drive(attempt: Attempt, awaitable: Awaitable[Any] | None) -> StepReport:
    """Run an ``async def`` step to its report. Nothing but the end of the task itself can get out of here."""
    try:
        value = await (attempt.call() if awaitable is None else awaitable)
    except BaseException as error:
        return attempt.failed(error)
    return attempt.succeeded(value)
