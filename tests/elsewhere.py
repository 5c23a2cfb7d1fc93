"""A round through the product in a project without a default database; see ``tests/elsewheresettings.py``.

RIVET_ELSEWHERE=folder DJANGO_SETTINGS_MODULE=tests.elsewheresettings python -m tests.elsewhere
"""

from __future__ import annotations

import json

import django


def round_trip() -> dict[str, object]:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from rivet_workflows import client

    for alias in ("actors", "replica", "web"):
        call_command("migrate", database=alias, verbosity=0)
    call_command("check", fail_level="ERROR")
    handle = client.create("ledgered", "one")
    call_command("rivet_worker", until_idle=True, verbosity=0)
    result = handle.result(timeout=0)
    call_command("rivet_actors", "show", "ledgered/one")
    User.objects.create_superuser("ada", password="secret")
    web = Client(headers={"host": "localhost"})
    assert web.login(username="ada", password="secret")
    found = web.put("/rivet/actors/", {"name": "ledgered", "key": "one"}, content_type="application/json")
    history = web.get(f"/rivet/actors/{handle.actor_id}/inspector/workflow-history")
    pages = [
        web.get("/admin/rivet_workflows/actor/").status_code,
        web.get(f"/admin/rivet_workflows/actor/{handle.actor_id}/change/").status_code,
        web.get("/admin/rivet_workflows/worker/").status_code,
    ]
    entries = len(history.json()["history"]["entries"])
    return {"result": result, "put": found.status_code, "entries": entries, "pages": pages}


if __name__ == "__main__":
    django.setup()
    print(json.dumps(round_trip()))
