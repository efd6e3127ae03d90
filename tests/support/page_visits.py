"""Visits to the chat page with Debian's chromium, and what the page logged or requested."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from support.served import ServerProcess

CHROMIUM = shutil.which("chromium") or ""
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
QUESTION = "the cat, the dog, the cat, the dog, the cat, the dog"

BROWSER_MARKS = [
    pytest.mark.slow,  # the browser alone takes half a gigabyte
    pytest.mark.skipif(
        not CHROMIUM, reason="the page is tested in Debian's chromium: apt-get install chromium"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # chromium's own sandbox refuses root
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield running
        running.close()


class Visit:
    """Owns one visit to the page, the errors that the browser logged, and the requests."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.bodies: list[Any] = []  # of the requests for answers
        self.page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on(
            "request",
            lambda request: request.post_data and self.bodies.append(request.post_data_json),
        )
        self.page.goto(url)
        expect(self.page.locator("#model")).to_have_text("tiny")

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def settle(self, **values: str) -> None:
        for name, value in values.items():
            self.page.fill(f"#{name.replace('_', '-')}", value)

    def ask(self, question: str) -> None:
        self.page.fill("#prompt", question)
        self.page.press("#prompt", "Enter")

    def wait(self) -> None:
        """Until nothing is being answered any more."""
        expect(self.page.locator(".turn:last-child .foot span").first).to_be_visible(timeout=30_000)
        expect(self.page.locator("#send")).to_be_visible(timeout=30_000)


OpenPage = Callable[..., Visit]


@pytest.fixture
def open_page(browser: Browser, server: ServerProcess) -> Iterator[OpenPage]:
    """Opens the page; at the end, the browser must have logged no error."""
    visits: list[Visit] = []

    def open_(viewport: dict[str, int] = DESKTOP, **context: Any) -> Visit:
        visits.append(Visit(browser, server.url, viewport=viewport, **context))
        return visits[-1]

    yield open_
    for visit in visits:
        visit.page.context.close()
        assert visit.complaints == []
        assert [url for url in visit.asked if not url.startswith(server.url)] == []
