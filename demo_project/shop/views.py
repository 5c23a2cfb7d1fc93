"""The shop's page, placing an order from Python, and (in the demo alone) the button that kills the worker."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.contrib.admin.views.decorators import staff_member_required
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from rivet_workflows import UserError, client
from shop.actors import Order
from shop.models import Product

#: Shown in the form; the second is declined by the payment service.
CARDS = [("4242-4242", "4242-4242"), ("4000-0002", "4000-0002 (will be declined)")]


@login_required
def shop(request: HttpRequest) -> HttpResponse:
    """The page. The table fills itself over the WebSocket: see ``static/shop/shop.js``."""
    context = {"products": Product.objects.all(), "cards": CARDS, "demo": _demo_pid_file() is not None}
    return render(request, "shop/shop.html", context)


@login_required
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Creating the actor is placing the order: one row, in this request's transaction if it has one."""
    order = f"web-{uuid4().hex[:8]}"
    wanted = {name: request.POST.get(name) for name in ("sku", "quantity", "card")}
    try:
        client.create(Order, order, input=wanted)
    except UserError as error:
        return JsonResponse({"detail": str(error)}, status=400)
    return JsonResponse({"order": order}, status=201)


@login_required
def worker(request: HttpRequest) -> JsonResponse:
    """Is the demo's worker alive? Real projects ask their process manager."""
    pid = _worker_pid()
    return JsonResponse({"pid": pid, "alive": pid is not None and _alive(pid)})


@staff_member_required
@require_POST
def kill_worker(request: HttpRequest) -> JsonResponse:
    """``kill -9`` for the demo's worker, at the worst moment you can find. ``demo.py`` starts another."""
    pid = _worker_pid()
    if pid is None:
        return JsonResponse({"detail": "no worker to kill"}, status=409)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return JsonResponse({"killed": pid})


def _demo_pid_file() -> Path | None:
    """Only ``demo.py`` sets it, and it counts in DEBUG alone: no deployed site has a button like this."""
    return Path(settings.DEMO_WORKER_PID_FILE) if settings.DEBUG and settings.DEMO_WORKER_PID_FILE else None


def _worker_pid() -> int | None:
    path = _demo_pid_file()
    if path is None:
        raise Http404
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
