"""The running shop, as a signed-in person sees it: pages with a session cookie, REST with its CSRF token."""

from __future__ import annotations

import http.cookiejar
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from runner.processes import DemoFailed


def get_json(url: str) -> Any:
    """One GET without any session, as for the payment service's ledger."""
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


class Site:
    """A browser's worth of HTTP. Not thread-safe, and need not be."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def cookie_header(self) -> str:
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.cookies)

    def up(self) -> bool:
        try:
            return self.page("/login/")[0] == 200
        except OSError:
            return False

    def page(self, path: str) -> tuple[int, str]:
        """Status and text of a page; redirects are followed."""
        return self._open(urllib.request.Request(self.url + path))

    def sign_in(self, username: str, password: str) -> None:
        _, html = self.page("/login/")
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', html)
        fields = {
            "username": username,
            "password": password,
            "csrfmiddlewaretoken": found[1] if found else "",
        }
        data = urllib.parse.urlencode(fields).encode()
        request = urllib.request.Request(f"{self.url}/login/", data, {"Referer": f"{self.url}/login/"})
        status, html = self._open(request)
        if status != 200 or "csrftoken" not in self.cookie_header() or 'name="password"' in html:
            raise DemoFailed(f"could not sign in to the shop (status {status})")

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """A REST call that must succeed; its decoded answer."""
        token = next((c.value for c in self.cookies if c.name == "csrftoken"), "") or ""
        headers = {"Content-Type": "application/json", "X-CSRFToken": token, "Accept": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", data, headers, method=method)
        status, text = self._open(request)
        if status >= 400:
            raise DemoFailed(f"{method} /api/{path} answered {status}: {text[:500]}")
        return json.loads(text) if text else None

    def rest_list(self, path: str) -> list[dict[str, Any]]:
        """All pages of a paginated list."""
        results: list[dict[str, Any]] = []
        while path:
            answer = self.rest("GET", path)
            results += answer["results"]
            path = (answer.get("next") or "").partition("/api/")[2]
        return results

    def _open(self, request: urllib.request.Request) -> tuple[int, str]:
        try:
            with self._opener.open(request, timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(errors="replace")
