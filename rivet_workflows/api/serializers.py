"""The shapes of requests and answers. Unknown keys are refused: a misspelt one would otherwise do nothing, silently."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from rest_framework import serializers

from rivet_workflows.client import ActorStatus, Handle, HistoryEntry, Sent
from rivet_workflows.client.looking import StoredEvent, StoredMessage
from rivet_workflows.client.remote import checked_seconds
from rivet_workflows.codec import plain_text, to_plain
from rivet_workflows.exceptions import ErrorInfo, ValidationFailed

__all__ = [
    "ActionRequest",
    "ActorRequest",
    "CallRequest",
    "EmptyRequest",
    "ReplayRequest",
    "SendOneRequest",
    "SendRequest",
    "SkipRequest",
    "StateRequest",
    "actor_body",
    "entry_body",
    "event_body",
    "message_body",
    "sent_body",
]

#: Seconds that a request may wait at most (A-LIM: HTTP request timeout).
MAX_WAIT = 60
DEFAULT_WAIT = 5.0


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses keys that it does not have, naming the one that was meant."""

    #: Keys that are looked for here and belong elsewhere, and where.
    elsewhere: ClassVar[Mapping[str, str]] = {}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = [key for key in data if key not in self.fields]
            if unknown:
                close = difflib.get_close_matches(str(unknown[0]), self.fields, 1)
                hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(self.fields)}"
                hint = self.elsewhere.get(str(unknown[0]), hint)
                raise serializers.ValidationError({str(unknown[0]): f"unknown key; {hint}"})
        return super().to_internal_value(data)


class AnyField(serializers.Field[Any, Any, Any, Any]):
    """Any JSON value, as it came."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_null=True, **kwargs)

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class KeyField(serializers.Field[Any, Any, Any, Any]):
    """An actor's key: a text, or a list of texts."""

    default_error_messages = {"key": "a key is a string or a list of strings"}

    def to_internal_value(self, data: Any) -> Any:
        parts = data if isinstance(data, list) else [data]
        if not all(isinstance(part, str) for part in parts):
            self.fail("key")
        return tuple(parts) if isinstance(data, list) else data

    def to_representation(self, value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value


class SecondsField(serializers.FloatField):
    """A duration that a clock can keep: no NaN, no infinity, nothing that lies beyond all dates."""

    def to_internal_value(self, data: Any) -> float:
        try:
            number = super().to_internal_value(data)
        except OverflowError:
            number = math.inf
        try:
            checked_seconds(number, self.field_name or "this")
        except ValidationFailed as error:
            raise serializers.ValidationError(error.message) from None
        return number


class ActorRequest(StrictSerializer):
    name = serializers.CharField(max_length=64)
    key = KeyField(default=())
    input = AnyField(default=None)


class ActionRequest(StrictSerializer):
    args = serializers.ListField(child=AnyField(), default=list)
    kwargs = serializers.DictField(child=AnyField(), default=dict)


class CallRequest(ActionRequest):
    key = KeyField(default=())
    input = AnyField(default=None)


class SendRequest(StrictSerializer):
    elsewhere = dict.fromkeys(
        ("dedupe_key", "idempotency_key"), "a dedupe key is sent in the Idempotency-Key header"
    )

    body = AnyField(default=None)
    wait = serializers.BooleanField(default=False)
    timeout = SecondsField(default=DEFAULT_WAIT, max_value=MAX_WAIT)
    delay = SecondsField(default=None, allow_null=True)


class SendOneRequest(SendRequest):
    key = KeyField(default=())
    input = AnyField(default=None)


class ReplayRequest(StrictSerializer):
    #: ``seq`` or location; none is the beginning.
    entry = AnyField(default=None)


class SkipRequest(StrictSerializer):
    entry = AnyField()
    result = AnyField(default=None)


class EmptyRequest(StrictSerializer):
    pass


class StateRequest(StrictSerializer):
    state = AnyField()


# -- answers


def _time(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat()


def _key(key: str | tuple[str, ...]) -> Any:
    return list(key) if isinstance(key, tuple) else key


def _error(error: ErrorInfo | None) -> Any:
    """Without traceback: it is for the log and the admin."""
    if error is None:
        return None
    return to_plain({"type": error.type, "message": error.message, "metadata": dict(error.metadata)})


def _input(text: str | None) -> Any:
    """One that was cut when it was recorded is not JSON any more: then as it is."""
    if text is None:
        return None
    try:
        json.loads(text)
    except ValueError:
        return text
    return plain_text(text)


def actor_body(handle: Handle, status: ActorStatus) -> dict[str, Any]:
    return {
        "id": str(handle.actor_id),
        "name": handle.name,
        "key": _key(handle.key),
        "status": str(status),
        "reason": status.reason,
        "waiting_for": None if status.waiting_for is None else list(status.waiting_for),
        "since": _time(status.since),
        "wake_at": _time(status.wake_at),
        "error": _error(status.error),
    }


def sent_body(sent: Sent[Any]) -> dict[str, Any]:
    return {
        "id": sent.id,
        "status": sent.status,
        "response": to_plain(sent.response),
        "duplicate": sent.duplicate,
    }


def event_body(event: StoredEvent) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "name": event.name,
        "payload": event.payload,
        "created_at": _time(event.created_at),
    }


def message_body(message: StoredMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "queue": message.queue,
        "body": message.body,
        "sent_at": _time(message.sent_at),
    }


def entry_body(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "done_seq": entry.done_seq,
        "location": entry.location,
        "name": entry.name,
        "kind": entry.kind,
        "status": entry.status,
        "attempts": [
            {
                "started_at": _time(a.started_at),
                "done_at": _time(a.done_at),
                "error": _error(a.error),
            }
            | ({"reruns": a.reruns} if a.reruns else {})
            for a in entry.attempts
        ],
        "input": _input(entry.input_text),
        "output": plain_text(entry.output_text),
        "error": _error(entry.error),
        "started_at": _time(entry.started_at),
        "done_at": _time(entry.done_at),
    }
