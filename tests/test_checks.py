"""``manage.py check``: what is found, under which id, and that sound code passes."""

from __future__ import annotations

import importlib.util
import sqlite3
import textwrap
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.test import override_settings

from rivet_workflows.actors import Actor, Queue, action
from rivet_workflows.checks import check_database
from rivet_workflows.registry import registry


def ids(**given: Any) -> list[str]:
    found = run_checks(tags=["rivet_workflows"], **given)
    return [str(message.id).removeprefix("rivet_workflows.") for message in found]


def messages() -> dict[str, str]:
    return {
        str(m.id).removeprefix("rivet_workflows."): f"{m.msg} {m.hint}"
        for m in run_checks(tags=["rivet_workflows"])
    }


pytestmark = pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")


@pytest.fixture(autouse=True)
def _no_other_actors(actors_of_the_test_alone: None) -> None:
    registry.restore({})


def test_the_test_project_itself_passes() -> None:
    assert ids() == []


# -- settings


@override_settings(RIVET_WORKFLOWS={"CONCURENCY": 5, "GRACE": "x", "GROUP_SIZE": 0, "PERMISSION": "no.where"})
def test_each_problem_of_the_settings_is_one_message() -> None:
    assert ids() == ["E001", "E002", "E003", "E004"]
    assert "Did you mean 'CONCURRENCY'?" in messages()["E001"]


@override_settings(RIVET_WORKFLOWS={"DATABASE": "nowhere"})
def test_an_unknown_database_is_one_message() -> None:
    assert ids() == ["E005"]


@override_settings(
    RIVET_WORKFLOWS={"SQLITE_SYNCHRONOUS": "NORMAL"},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3"}},
)
def test_weaker_durability_is_named_as_what_it_is() -> None:
    assert "W006" in ids()


# -- databases


def database_ids(config: dict[str, Any], **rivet: Any) -> list[str]:
    with override_settings(DATABASES={"default": config}, RIVET_WORKFLOWS=rivet):
        return [str(m.id).removeprefix("rivet_workflows.") for m in check_database()]


SQLITE = {"ENGINE": "django.db.backends.sqlite3"}
IMMEDIATE = {"transaction_mode": "IMMEDIATE"}


def test_sqlite_as_django_sets_it_up_gets_advice(tmp_path: Path) -> None:
    config = SQLITE | {"NAME": tmp_path / "db.sqlite3", "ATOMIC_REQUESTS": True}
    assert database_ids(config) == ["W001", "W002", "W003"]


def test_sqlite_as_advised_passes(tmp_path: Path) -> None:
    options = IMMEDIATE | {"init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous=NORMAL"}
    assert database_ids(SQLITE | {"NAME": tmp_path / "db.sqlite3", "OPTIONS": options}) == []


def test_a_file_that_has_a_write_ahead_log_needs_no_option(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE x (y)")
    config = SQLITE | {"NAME": path, "OPTIONS": IMMEDIATE}
    assert database_ids(config) == ["W002"]
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    assert database_ids(config) == []


def test_an_engine_without_support_is_refused() -> None:
    assert database_ids({"ENGINE": "django.db.backends.oracle"}) == ["E007"]


def test_a_pooler_needs_a_direct_connection_for_bells() -> None:
    config = {"ENGINE": "django.db.backends.postgresql", "DISABLE_SERVER_SIDE_CURSORS": True}
    assert database_ids(config) == ["W007"]
    assert database_ids(config, LISTEN_DSN="postgres://…") == []
    assert database_ids({"ENGINE": "django.db.backends.postgresql"}) == []


# -- channel layers


def test_an_in_memory_layer_is_a_deploy_warning() -> None:
    assert "W004" not in ids()
    assert "W004" in ids(include_deployment_checks=True)


def test_redis_eight_with_its_timeout_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": ["redis://localhost"]}}
    monkeypatch.setattr("rivet_workflows.checks._major", lambda package: 8)
    with override_settings(CHANNEL_LAYERS={"default": layer}):
        assert "W005" in ids()
    layer["CONFIG"] = {"hosts": [{"address": "redis://localhost", "socket_timeout": None}]}
    with override_settings(CHANNEL_LAYERS={"default": layer}):
        assert "W005" not in ids()


# -- transactions and permission


def test_another_database_needs_transactions_on_its_alias() -> None:
    databases = {"default": {"ENGINE": "django.db.backends.postgresql"}}
    databases["actors"] = databases["default"]
    with override_settings(DATABASES=databases, RIVET_WORKFLOWS={"DATABASE": "actors"}):
        assert ids() == ["W008"]
        assert "transaction.atomic(using='actors')" in messages()["W008"]
    with override_settings(DATABASES=databases, RIVET_WORKFLOWS={"DATABASE": "default"}):
        assert ids() == []


def allow_all(actor: Actor, request: Any, operation: str, name: str | None) -> bool:
    return True


def test_actors_that_all_users_may_use_are_a_deploy_warning() -> None:
    assert "W009" not in ids(include_deployment_checks=True)  # there is no actor

    class Open(Actor):
        async def run(self, ctx): ...

    assert "W009" not in ids()
    assert "W009" in ids(include_deployment_checks=True)
    with override_settings(RIVET_WORKFLOWS={"PERMISSION": f"{__name__}.allow_all"}):
        assert "W009" not in ids(include_deployment_checks=True)

    class Guarded(Actor):
        def has_permission(self, request, operation, name):
            return False

    assert "W009" not in ids(include_deployment_checks=True)


# -- workflows


def test_a_loop_carried_local_is_an_error_that_names_local_line_and_mend() -> None:
    class Job(Actor):
        async def run(self, ctx):
            total = 0
            async for it in ctx.loop("worker"):
                message = await it.queue.next("work")
                total += message.body
            return total

    assert ids() == ["E010"]
    text = messages()["E010"]
    assert "'total'" in text
    assert f"line {Job.run.__code__.co_firstlineno + 4}" in text
    assert "it.loop_state" in text


def test_a_sound_worker_loop_passes() -> None:
    async def charge(step, body): ...

    class Job(Actor):
        async def run(self, ctx):
            limit = 3
            last = None
            async for it in ctx.loop("worker", state={"done": 0}):
                message = await it.queue.next("work", names=["work", "control"])
                last = message
                if message.name == "control":
                    break
                await it.step("charge", charge, message.body)
                it.loop_state["done"] += 1
                if it.loop_state["done"] > limit:
                    break
            return last

    assert ids() == []


def test_containers_and_leftovers_of_loops_are_warnings() -> None:
    class Job(Actor):
        async def run(self, ctx):
            seen = []
            best = None
            async for it in ctx.loop("worker"):
                message = await it.queue.next("work")
                seen.append(message)
                if message.last:
                    break
                if message.big:
                    best = message
            return seen, best

    assert ids() == ["W013", "W014"]


def test_a_local_that_a_loop_function_changes_is_an_error_too() -> None:
    class Job(Actor):
        async def run(self, ctx):
            total = 0

            async def body(it, state):
                nonlocal total
                total += 1

            await ctx.loop("pages", body)
            return total

    assert ids() == ["E010"]


HEADER = """
import asyncio, datetime as dt, functools, hmac, random, secrets, subprocess, time, urllib.parse, uuid
from datetime import datetime
from time import time as current
from urllib import request as web
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.utils import timezone
from rivet_workflows import Actor, action, step
"""


def load(tmp_path: Path, body: str, more: str = "", methods: str = "") -> Any:
    """Define an actor whose ``run`` has that body, in a module of its own."""
    source = (
        f"{HEADER}\n{textwrap.dedent(more)}\nclass Job(Actor):\n"
        f"    async def run(self, ctx):\n{textwrap.indent(textwrap.dedent(body), ' ' * 8)}\n"
        f"{textwrap.indent(textwrap.dedent(methods), ' ' * 4)}\n"
    )
    path = tmp_path / "some_actors.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("some_actors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("call", "mend"),
    [
        ("time.time()", "ctx.now()"),
        ("time.monotonic()", "ctx.now()"),
        ("current()", "ctx.now()"),
        ("datetime.now(dt.UTC)", "ctx.now()"),
        ("dt.datetime.now()", "ctx.now()"),
        ("dt.date.today()", "ctx.now()"),
        ("timezone.now()", "ctx.now()"),
        ("random.random()", "ctx.random"),
        ("random.choice([1])", "ctx.random"),
        ("uuid.uuid4()", "ctx.uuid4()"),
        ("secrets.token_hex()", "ctx.uuid4()"),
        ("web.urlopen('http://x')", "ctx.step"),
        ("subprocess.run(['x'])", "ctx.step"),
        ("open('x')", "ctx.step"),
        ("User.objects.get(pk=1)", "ctx.step"),
        ("User.objects.filter(pk=1).first()", "ctx.step"),
        ("User._default_manager.all()", "ctx.step"),
    ],
)
def test_clock_chance_and_io_in_a_workflow_are_warnings(tmp_path: Path, call: str, mend: str) -> None:
    load(tmp_path, f"x = {call}\nawait ctx.step('s', print, x)")
    assert ids() == ["W010"]
    assert mend in messages()["W010"]
    assert "line " in messages()["W010"]


@pytest.mark.parametrize(
    ("call", "mend"),
    [
        ("await asyncio.sleep(1)", "ctx.sleep"),
        ("await asyncio.gather(a(), b())", "ctx.join"),
        ("asyncio.create_task(a())", "ctx.join"),
        ("await sync_to_async(a)()", "ctx.step"),
        ("time.sleep(1)", "ctx.sleep"),
    ],
)
def test_what_belongs_to_an_event_loop_is_an_error(tmp_path: Path, call: str, mend: str) -> None:
    load(tmp_path, call, more="async def a(): ...\nasync def b(): ...")
    assert ids() == ["E011"]
    assert mend in messages()["E011"]


@pytest.mark.parametrize(
    "body",
    [
        "await ctx.step('s', lambda step: time.time())",
        "await ctx.step('s', charge)",
        "await ctx.step(charge, 5)",
        "await ctx.step('s', self.charge_me, 5)",
        "await ctx.step(self.charge_me, 5)",
        "await ctx.step('s', functools.partial(charge, 5))",
        "label = 's'\nawait ctx.step(label, charge)",
        "await ctx.step('s', marked)\nawait ctx.try_step('t', charge)",
        "def inner(step):\n    return time.time()\nawait ctx.step('s', inner)",
        "await ctx.step('s', harmless, rollback=charge)",
        "time = ctx.now()\nawait ctx.step('s', harmless, time.time())",
        "x = ctx.now(), ctx.uuid4(), ctx.random.random(), random.Random(5)",
        "x = urllib.parse.quote('x'), dt.timedelta(1), datetime(2026, 1, 1), uuid.UUID(int=1), User(pk=1)",
        "for x in sorted({1, 2}):\n    await ctx.step('s', charge, x)",
        "x = 3 in {1, 2}",
    ],
)
def test_what_steps_do_and_what_is_pure_passes(tmp_path: Path, body: str) -> None:
    more = """
        def charge(step, *args): return time.time(), User.objects.all()
        def harmless(step, *args): ...
        @step(timeout=5)
        def marked(step): return random.random()
    """
    load(tmp_path, body, more, methods="def charge_me(self, step, x): return uuid.uuid4()")
    assert ids() == []


@pytest.mark.parametrize(
    "body",
    [
        "await self.helper(ctx)",
        "await helper(ctx)",
        "x = plain()",
        "await ctx.join('j', a=helper)",
        "await ctx.map('m', helper, [1])",
        "async def branch(b):\n    time.time()\nawait ctx.join('j', a=branch)",
        "await ctx.step('s', print, time.time())",
        "import time as clock\nclock.time()",
        "from time import time\ntime()",
    ],
)
def test_helpers_branches_and_arguments_are_workflow_code_too(tmp_path: Path, body: str) -> None:
    more = """
        async def helper(ctx): time.time()
        def plain(): return time.time()
    """
    load(tmp_path, body, more, methods="async def helper(self, ctx): time.time()")
    assert ids() == ["W010"]


@pytest.mark.parametrize(
    "body",
    [
        "for x in {1, 2}: await ctx.step('s', print, x)",
        "for x in set(ctx.input): await ctx.step('s', print, x)",
        "x = [await ctx.step('s', print, y) for y in {1, 2}]",
        "for x in {y for y in ctx.input}: await ctx.step('s', print, x)",
    ],
)
def test_iterating_a_set_is_a_warning(tmp_path: Path, body: str) -> None:
    load(tmp_path, body)
    assert ids() == ["W011"]


def test_without_source_nothing_is_said() -> None:
    scope: dict[str, Any] = {"__name__": "nowhere"}
    exec(f"{HEADER}\nclass Job(Actor):\n    async def run(self, ctx): time.time()", scope)
    assert registry.get("job").run is not None
    assert ids() == []


def test_source_that_is_newer_than_the_loaded_code_is_not_taken_for_it(tmp_path: Path) -> None:
    module = load(tmp_path, "time.time()")
    Path(module.__file__).write_text("# all new\n")
    assert ids() == []


# -- declared types and names


def test_a_type_that_cannot_be_checked_is_an_error() -> None:
    type("Job", (Actor,), {"work": Queue("Nowhere")})
    assert ids() == ["E012"]
    assert "queue work" in messages()["E012"]


def test_a_method_called_almost_like_a_hook_is_a_warning() -> None:
    class Job(Actor):
        def on_awake(self, c): ...

        def on_errors(self, c, event): ...

        def on_the_other_hand(self): ...

        @action
        def on_waked(self, c): ...

    assert ids() == ["W012", "W012"]
    assert "Did you mean on_error?" in messages()["W012"]


def test_an_app_can_be_checked_by_itself() -> None:
    type("Job", (Actor,), {"work": Queue("Nowhere")})
    assert ids(app_configs=[apps.get_app_config("auth")]) == []
