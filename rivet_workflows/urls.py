"""The REST routes; a project includes them under a prefix of its choice:

path("api/", include("rivet_workflows.urls"))
"""

from __future__ import annotations

from importlib.util import find_spec

from django.urls import path

from rivet_workflows.api import actors, inspector
from rivet_workflows.api.base import route, waiting_route
from rivet_workflows.api.streaming import EventStreamView, stream_route

app_name = "rivet_workflows"

_actor = "actors/<uuid:actor_id>/"
_inspector = f"{_actor}inspector/"

urlpatterns = [
    path("actors/", route(actors.ActorsView), name="actors"),
    path(_actor, route(actors.ActorView), name="actor"),
    path(f"{_actor}actions/<str:action>/", route(actors.ActionView), name="action"),
    path(f"{_actor}queues/<str:queue>/", waiting_route(actors.SendView), name="queue"),
    path(f"{_actor}events/", route(inspector.EventsView), name="events"),
    path(f"{_actor}events/stream", stream_route(EventStreamView), name="event-stream"),
    path("call/<str:name>/<str:action>/", route(actors.CallView), name="call"),
    path("send/<str:name>/<str:queue>/", waiting_route(actors.SendOneView), name="send"),
    path(f"{_inspector}workflow-history", route(inspector.HistoryView), name="workflow-history"),
    path(f"{_inspector}summary", route(inspector.SummaryView), name="summary"),
    path(f"{_inspector}state", route(inspector.StateView), name="state"),
    path(f"{_inspector}queue", route(inspector.QueueView), name="messages"),
    path(f"{_inspector}events", route(inspector.InspectorEventsView), name="inspector-events"),
    *(
        path(f"{_inspector}{control}", route(inspector.ControlView, control=control), name=control)
        for control in inspector.ControlView.operations
    ),
]

if find_spec("drf_spectacular") is not None:
    from rivet_workflows.api.schema import SchemaView

    urlpatterns.append(path("schema/", route(SchemaView, routes=tuple(urlpatterns)), name="schema"))
