"""Reading request bodies: JSON alone, of bounded size, and no surprises from what is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings as django_settings
from rest_framework import parsers
from rest_framework.exceptions import ParseError

from rivet_workflows.conf import settings
from rivet_workflows.exceptions import PayloadTooLarge

__all__ = ["JSONParser", "body_limit"]

#: Room for the names around the one large value that a body may hold.
_FRAME = 64 * 1024


def body_limit() -> int:
    """Bytes that a request body may have."""
    largest = max(
        settings.MAX_INPUT_SIZE, settings.MAX_STATE, settings.MAX_PAYLOAD, settings.MAX_MESSAGE_SIZE
    )
    return largest + _FRAME


class JSONParser(parsers.JSONParser):
    """DRF's reads the stream without any bound, and a body of 100,000 brackets ends in a server error."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        limit = body_limit()
        text = self._read(stream, limit, parser_context)
        try:
            return json.loads(text, parse_constant=_refuse)
        except RecursionError:
            raise ParseError("JSON parse error: nested too deeply") from None
        except ValueError as error:
            raise ParseError(f"JSON parse error: {error}") from None

    @staticmethod
    def _read(stream: IO[Any], limit: int, context: Mapping[str, Any] | None) -> str:
        request = (context or {}).get("request")
        stated = str(request.META.get("CONTENT_LENGTH") or "") if request is not None else ""
        too_large = stated.isdigit() and int(stated) > limit
        data = b"" if too_large else stream.read(limit + 1)
        if too_large or len(data) > limit:
            raise PayloadTooLarge(f"a request body may have {limit:,} bytes", metadata={"limit": limit})
        encoding = (context or {}).get("encoding") or django_settings.DEFAULT_CHARSET
        try:
            return bytes(data).decode(encoding)
        except (UnicodeDecodeError, LookupError) as error:
            raise ParseError(f"JSON parse error: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON; send it as text")
