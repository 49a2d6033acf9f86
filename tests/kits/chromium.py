"""Chromium without a screen, driven through a pipe of its own: no driver and no package between.

A walk opens pages, fills in fields, presses buttons and takes pictures, as a person would. What the
browser complains of on the way is kept.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import HANG_SECONDS, find_program, wait_until

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
LAUNCHER = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for pipe, number in zip(pipes, (3, 4)):
    os.dup2(pipe, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads at 3 and writes at 4."""


class Chromium:
    """One page of a browser.

    Attributes:
        complaints: Errors of the page, and what its policy has blocked.
    """

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = 0
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Ask the browser for something."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            said = self._read()
            if said.get("id") == self._number:
                assert "error" not in said, (method, said["error"])
                return said["result"]

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + HANG_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._back], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._back, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        said: dict[str, Any] = json.loads(text)
        params = said.get("params", {})
        if said.get("method") == "Page.loadEventFired":
            self._loaded += 1
        elif said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif said.get("method") == "Log.entryAdded" and params["entry"]["level"] in (
            "error",
            "warning",
        ):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return said

    def _until_loaded(self, before: int) -> None:
        while self._loaded == before:
            self._read()

    def open(self, url: str) -> None:
        """Open a page, and wait until it is there."""
        before = self._loaded
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, (url, answer["errorText"])
        self._until_loaded(before)

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, (expression, answer)
        return answer["result"].get("value")

    def press(self, words: str) -> None:
        """Press the link or button with these words, and wait for the page that comes."""
        before = self._loaded
        self.ask(
            "[...document.querySelectorAll('a, button, summary')]"
            f".find(e => e.textContent.trim() === {json.dumps(words)}).click()"
        )
        self._until_loaded(before)

    def unfold(self, words: str) -> None:
        """Open what is folded under these words."""
        self.ask(
            "[...document.querySelectorAll('summary')]"
            f".find(e => e.textContent.trim() === {json.dumps(words)}).parentElement.open = true"
        )

    def fill(self, selector: str, text: str) -> None:
        """Write into a field."""
        self.ask(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    @property
    def words(self) -> str:
        """The text of the page that can be seen, on one line."""
        return " ".join(str(self.ask("document.querySelector('main').innerText")).split())

    def until(self, words: str) -> None:
        """Wait until the page has these words, which come without loading it anew."""
        wait_until(lambda: words in self.words, f"the page shows {words!r}")

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Be a screen of this size, light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run_scripts(self, *, of_pages: bool) -> None:
        """Let pages run their scripts, or not."""
        self.call("Emulation.setScriptExecutionDisabled", value=not of_pages)

    def find_barriers(self, axe: str, part: str = "html") -> list[str]:
        """Return what axe finds serious on the page, or critical.

        Args:
            axe: Its program.
            part: Selector of the part of the page that is looked at.
        """
        self.call("Runtime.evaluate", expression=axe)
        answer = self.call(
            "Runtime.evaluate",
            expression=f"axe.run({json.dumps(part)}).then(found => found.violations"
            ".filter(one => ['serious', 'critical'].includes(one.impact))"
            ".map(one => `${one.id}: ${one.nodes[0].html} ${one.nodes[0].failureSummary}`))",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer
        return list(answer["result"]["value"])

    def picture(self, path: Path, *, whole: bool = True, **options: Any) -> None:
        """Take a picture of the whole page, or of what the screen shows."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **options)
        path.write_bytes(base64.b64decode(found["data"]))


def find_axe() -> str:
    """Return the program of axe: that of ``PGFLOW_TEST_AXE``, or the one of axe-core-python; else
    the test is skipped, or fails if PGFLOW_TEST_NEEDS names axe.
    """
    if path := os.environ.get("PGFLOW_TEST_AXE"):
        return Path(path).read_text()
    found = importlib.util.find_spec("axe_core_python")
    if found is not None and found.origin is not None:
        return (Path(found.origin).parent / "axe.min.js").read_text()
    judge = pytest.fail if "axe" in os.environ.get("PGFLOW_TEST_NEEDS", "") else pytest.skip
    judge("needs axe: pip install axe-core-python")


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser; the test is skipped where there is none, see `find_program`."""
    program = find_program("chromium", "chromium")
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    with tempfile.TemporaryDirectory(
        prefix="pgflow-chromium-", ignore_cleanup_errors=True
    ) as folder:
        command = [program, *FLAGS, f"--user-data-dir={folder}"]
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(to_read), str(back_write), *command],
            pass_fds=(to_read, back_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(back_write)
        try:
            yield Chromium(to_write, back_read)
        finally:
            os.close(to_write)
            os.close(back_read)
            process.terminate()
            process.wait(HANG_SECONDS)
