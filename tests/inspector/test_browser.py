"""The pages in a real browser, under a Content-Security-Policy that allows nothing inline.

Skipped where there is no chromium. ``RIVET_SCREENSHOTS=folder`` keeps pictures of the pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rivet_workflows.records import Finish, Kind, Lifecycle, child_scope
from rivet_workflows.store import get_store
from tests import servers
from tests.inspector.conftest import commit, failed_step, order, page_of, step

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = servers.program("requires_chromium")
pytestmark = [
    pytest.mark.requires_chromium,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
]

POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


class Visitor:
    """A signed-in superuser's browser; what the browser complains of is in ``complaints``."""

    def __init__(self, browser: Any, server: Any, **options: Any) -> None:
        self.server = server
        self.complaints: list[str] = []
        self.page = browser.new_context(**options).new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)
        self.page.route("**/*", self._with_policy)
        self.open("/admin/login/")
        self.page.fill("#id_username", "root")
        self.page.fill("#id_password", "x")
        self.page.click("[type=submit]")

    def _heard(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    @staticmethod
    def _with_policy(route: Any) -> None:
        response = route.fetch(max_redirects=0)
        route.fulfill(response=response, headers={**response.headers, "content-security-policy": POLICY})

    def open(self, path: str) -> None:
        self.page.goto(f"{self.server.url}{path}")

    def picture(self, name: str) -> None:
        folder = os.environ.get("RIVET_SCREENSHOTS")
        if folder:
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.fixture
def visit(live_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes visitors. A browser for each test: while it runs, its loop is in this thread, where Django would refuse to
    clean up the database."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    User.objects.create_superuser("root", "", "x")
    with playwright.sync_playwright() as runner:
        browser = runner.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield lambda **options: Visitor(browser, live_server, **options)
        browser.close()


def test_the_page_follows_the_actor_and_keeps_what_is_unfolded(visit: Any) -> None:
    handle = order()
    wait = {"s": 2, "p": "", "n": "wait-approval", "k": int(Kind.MESSAGE), "t": 1, "q": ["approval"]}
    commit(handle, [step(1, "reserve", output={"reservation": 4711})], opened=[wait])
    visitor = visit()
    visitor.open(page_of(handle))
    page = visitor.page
    page.click("#d1 > summary .rv-name")
    assert page.is_visible("#d1 .rv-details")
    assert page.locator(".rv-situation time[data-relative]").count()
    handle.send("approval", {"by": "somebody"})
    page.wait_for_selector(".rv-side >> text=somebody")
    assert page.is_visible("#d1 .rv-details")
    handle.cancel()
    page.wait_for_selector("text=The workflow was cancelled.")
    page.click("text=Recover")
    page.wait_for_selector(".messagelist >> text=Recovered.")
    assert not visitor.complaints


def test_a_link_to_an_entry_unfolds_what_hides_it(visit: Any) -> None:
    handle = order()
    loop = {"s": 1, "p": "", "n": "pages", "k": int(Kind.LOOP), "t": 1, "i": 7, "v": "null"}
    commit(handle, [step(s, scope=child_scope("", 1, s - 2)) for s in range(2, 10)], opened=[loop])
    visitor = visit()
    visitor.open(page_of(handle))
    assert not visitor.page.is_visible("#e3")
    visitor.open(page_of(handle) + "#e3")
    visitor.page.wait_for_selector("#e3", state="visible")
    assert not visitor.complaints


def test_it_works_without_scripts(visit: Any) -> None:
    handle = order()
    commit(handle, [step(1, "reserve")], opened=[{"s": 2, "p": "", "n": "w", "k": 4, "t": 1, "q": None}])
    visitor = visit(java_script_enabled=False)
    visitor.open(page_of(handle))
    assert not visitor.page.is_visible("#rv-follow")
    visitor.page.click("text=Cancel…")
    visitor.page.click("button:has-text('Cancel')")
    assert "The workflow was cancelled." in visitor.page.content()
    assert str(handle.status()) == "cancelled"


def test_nothing_runs_out_of_the_page(visit: Any) -> None:
    handle = order("k" * 100)
    row = failed_step(2, name="charge-" + "x" * 120)
    long = [step(1, "reserve", output={"text": "word" * 300}), row]
    commit(handle, long, finish=Finish(Lifecycle.FAILED, get_store().clock.now(), error=row.error))
    for scheme, width in (("light", 390), ("dark", 1360)):
        visitor = visit(color_scheme=scheme, viewport={"width": width, "height": 800})
        visitor.open(page_of(handle))
        visitor.picture(f"actor-{scheme}-{width}")
        beyond = visitor.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert beyond <= 0, f"{beyond} pixels too wide in {width}"
        assert not visitor.complaints
