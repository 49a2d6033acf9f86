"""`--watch`: what is wrong with a file, and what a run of it would do, told again at each change."""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from clikit import pgflow, process
from runkit import write
from servers import HANG_SECONDS


class Watcher:
    """A command that watches, and the lines that it says on both streams."""

    def __init__(self, started: subprocess.Popen[str]) -> None:
        self.started = started
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.readers = [
            threading.Thread(target=self._read, args=(stream,))
            for stream in (started.stdout, started.stderr)
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.put(line)

    def hears(self, word: str) -> str:
        """Wait for a line with this word."""
        heard = []
        while True:
            try:
                heard.append(self._lines.get(timeout=HANG_SECONDS))
            except queue.Empty:
                raise AssertionError(f"no {word!r} in {heard}") from None
            if word in heard[-1]:
                return heard[-1]


@contextmanager
def watching(*arguments: str) -> Iterator[Watcher]:
    """A command that watches until Ctrl-C."""
    started = process(None, *arguments, "--watch", "--table")
    watcher = Watcher(started)
    try:
        yield watcher
        started.send_signal(signal.SIGINT)
        assert started.wait(HANG_SECONDS) == 130
    finally:
        started.kill()
        started.wait()
        for reader in watcher.readers:
            reader.join()


@pytest.mark.full
def test_a_file_is_validated_again_when_it_changes(tmp_path: Path) -> None:
    path = write(tmp_path, "- {id: a, bash: echo}")
    with watching("validate", str(path)) as watcher:
        watcher.hears("1 file ok")
        path.write_text(path.read_text().replace("bash", "bahs"))
        watcher.hears("--- changed")
        watcher.hears("cannot be used")
        path.unlink()
        watcher.hears("cannot be used")
        write(tmp_path, "- {id: a, bash: echo}")
        watcher.hears("1 file ok")


@pytest.mark.full
def test_a_dry_run_is_played_again_when_the_file_or_its_stubs_change(tmp_path: Path) -> None:
    path = write(tmp_path, "- {id: a, bash: echo}\n- {id: b, bash: echo, depends_on: [a]}")
    stubs = tmp_path / "elsewhere" / "stubs.json"
    stubs.parent.mkdir()
    stubs.write_text('{"a": "one", "b": "two"}')
    with watching("dry-run", str(path), "--stubs", str(stubs)) as watcher:
        watcher.hears("completed")
        stubs.write_text("{")
        watcher.hears("pgflow: ")
        stubs.write_text('{"a": "other", "b": "two"}')
        watcher.hears("other")
        path.write_text(path.read_text().replace("id: b", "id: new"))
        watcher.hears("new")


def test_stubs_of_standard_input_cannot_be_watched(tmp_path: Path) -> None:
    path = write(tmp_path, "- {id: a, bash: echo}")
    refused = pgflow(None, "dry-run", str(path), "--stubs", "-", "--watch")
    assert (refused.code, "--watch" in refused.err) == (2, True)
    refused = pgflow(None, "dry-run", str(path), "--stubs-init", "x.json", "--watch")
    assert refused.code == 2


@pytest.mark.full
def test_a_run_says_which_event_it_waits_for_and_goes_on_once_that_comes(
    dsn: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "- {id: w, wait: {event: go, deadline_ms: 3600000}}")
    started = process(dsn, "run", str(path), "--cwd", str(tmp_path), "--key", "g", "--table")
    watcher = Watcher(started)
    try:
        watcher.hears("go is waited for:  pgflow signal g go JSON")
        assert pgflow(dsn, "signal", "g", "go", "null").code == 0
        watcher.hears("g completed")
        assert started.wait(HANG_SECONDS) == 0
    finally:
        started.kill()
        started.wait()
        for reader in watcher.readers:
            reader.join()
