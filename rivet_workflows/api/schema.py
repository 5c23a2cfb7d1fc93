"""The OpenAPI document of the REST routes; needs the extra ``openapi``.

The views say themselves which serializer reads their requests (``requests``); nothing is asked of the project's own
schema settings, and its own document is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from rest_framework import renderers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from rivet_workflows.api.base import RivetView
from rivet_workflows.client.remote import NotSignedIn, signed_in

__all__ = ["SchemaView"]


class _Schema(AutoSchema):
    """One operation."""

    def get_request_serializer(self) -> Any:
        return self.view.request_serializer(self.method) if isinstance(self.view, RivetView) else None

    def get_response_serializers(self) -> Any:
        return OpenApiTypes.OBJECT if self.method != "DELETE" else None

    def get_operation_id(self) -> str:
        words = [
            part for part in self.path.strip("/").replace("-", "_").split("/") if not part.startswith("{")
        ]
        return "_".join(
            ["rivet", *words, *(["one"] if self.path.endswith("{actor_id}/") else []), self.method.lower()]
        )

    def get_tags(self) -> list[str]:
        return ["rivet"]

    def get_serializer_name(self, serializer: Serializer[Any], direction: Any) -> str:
        return f"Rivet{super().get_serializer_name(serializer, direction)}"

    def get_filter_backends(self) -> list[Any]:
        return []


class _Generator(SchemaGenerator):
    def create_view(self, callback: Any, method: str, request: Any = None) -> Any:
        view = super().create_view(callback, method, request)  # type: ignore[no-untyped-call]
        if isinstance(view, RivetView):
            view.schema = _Schema()
        return view


class SchemaView(RivetView):
    """The document, for signed-in users. It says nothing of a project's own actors."""

    renderer_classes = (renderers.JSONOpenAPIRenderer,)
    #: What it documents; given by ``urls``.
    routes: Sequence[Any] = ()

    def get(self, request: Request) -> Response:
        if not signed_in(request):
            raise NotSignedIn("this takes a signed-in user")
        generator: Any = _Generator(patterns=list(self.routes))  # type: ignore[no-untyped-call]
        document = generator.get_schema(request=None, public=True)
        mounted_at = request.path.removesuffix("/schema/")
        document["paths"] = {
            f"{mounted_at}{path}": operations for path, operations in document["paths"].items()
        }
        return Response(document)
