"""How errors look over REST: the status of D-22 and ``{"code", "detail", "metadata"}``, DRF's own errors included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import RequestDataTooBig
from django.http import Http404
from rest_framework import exceptions as drf
from rest_framework.response import Response
from rest_framework.views import set_rollback

from rivet_workflows.client.remote import NotSignedIn, Problem, problem_of
from rivet_workflows.exceptions import PayloadTooLarge, PermissionDenied, ValidationFailed

__all__ = ["exception_handler"]

#: Seconds after which to try again what was busy.
RETRY_AFTER = 1


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """The answer to a request whose view raised; in the place of DRF's own handler, for our views alone."""
    problem = _problem(error)
    set_rollback()
    headers: dict[str, str] = {}
    if problem.status == 503:
        headers["Retry-After"] = str(RETRY_AFTER)
    wait = getattr(error, "wait", None)
    if wait is not None:
        headers["Retry-After"] = str(int(wait))
    challenge = getattr(error, "auth_header", None)
    if challenge is not None:
        headers["WWW-Authenticate"] = challenge
    return Response(problem.body(), status=problem.status, headers=headers)


def _problem(error: Exception) -> Problem:
    if isinstance(error, drf.NotAuthenticated | drf.AuthenticationFailed):
        # DRF answers 403 where the first authentication class cannot challenge, as with sessions.
        return Problem(401, NotSignedIn.code, str(error.detail))
    if isinstance(error, drf.ValidationError):
        issues = list(_issues(error.detail))
        first = issues[0]
        where = ".".join(map(str, first["path"]))
        text = f"{where}: {first['message']}" if where else str(first["message"])
        return Problem(422, ValidationFailed.code, text, {"issues": issues})
    if isinstance(error, drf.APIException):
        code = getattr(error.detail, "code", error.default_code)
        return Problem(error.status_code, str(code), str(error.detail))
    if isinstance(error, RequestDataTooBig):
        return Problem(413, PayloadTooLarge.code, str(error))
    if isinstance(error, Http404):
        return Problem(404, "not_found", str(error) or "not found")
    if isinstance(error, DjangoPermissionDenied):
        return Problem(403, PermissionDenied.code, str(error) or "permission denied")
    return problem_of(error)


def _issues(detail: Any, path: tuple[Any, ...] = ()) -> Iterator[dict[str, Any]]:
    """DRF's nested details in the form of our own validation: ``{"path", "message", "type"}``."""
    if isinstance(detail, dict):
        for key, inner in detail.items():
            yield from _issues(inner, path if key == "non_field_errors" else (*path, key))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _issues(inner, path)
    else:
        yield {"path": list(path), "message": str(detail), "type": str(getattr(detail, "code", "invalid"))}
