"""The record of what a process runs of the product, told by the interpreter: functions, and lines.

From Python 3.12 on `sys.monitoring` tells it and is silent about a line once it was told, so that
nothing is slower; 3.11 has `sys.setprofile`, which is told of every call and of no line. A line is
counted from the head of its function, so that no other function moves it. A process that a test
starts, or forks, records for itself: its `sitecustomize` calls `inherit`, and the test is the one
that pytest names in the environment. It writes each function when it first enters it, since it may
be killed. This file imports nothing outside the standard library, as those processes load it first.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

REPOSITORY = Path(__file__).parents[2]
FOLDER = "PGFLOW_TRACE"
"""Variable that names the folder of the record."""

PREFIXES = (f"{REPOSITORY}/pgflow/", f"{REPOSITORY}/cli/pgflow_cli/")
INHERITED = """import importlib.util as i
s = i.spec_from_file_location("pgflow_recorder", {path!r})
m = i.module_from_spec(s)
s.loader.exec_module(m)
m.inherit()
"""


class Recorder:
    """Writes the record of one process into a file of its own."""

    def __init__(self, folder: str, *, is_direct: bool = False) -> None:
        self._folder, self._is_direct = folder, is_direct
        self._seen: dict[tuple[int, int], CodeType] = {}
        self._numbers: dict[str, int] = {}
        self._file: int | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Listen to every thread from now on."""
        os.register_at_fork(after_in_child=self._be_a_child)
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "pgflow mutants")
            tool, events = monitoring.COVERAGE_ID, monitoring.events
            monitoring.register_callback(tool, events.PY_START, self._enter_once)
            monitoring.register_callback(tool, events.LINE, self._pass_once)
            monitoring.set_events(tool, events.PY_START)
        else:
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)

    def begin(self) -> None:
        """Forget what was entered, for the next test."""
        self._seen.clear()
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()

    def entered(self) -> list[str]:
        """Return the names of the functions and lines entered since `begin`."""
        seen = list(self._seen.items())
        return [name for (_, line), code in seen if (name := name_of(code, line))]

    def write(self, test: str, names: Iterable[str], **more: Any) -> None:
        """Add a line on a test. A number is the place of its name among all new ones, so the lines
        of threads must not overtake each other.
        """
        with self._lock:
            if self._file is None:
                # Numbers of processes come again, and numbers of names are those of one process.
                path = Path(self._folder) / f"{os.getpid()}-{time.time_ns()}.jsonl"
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
            new = [name for name in dict.fromkeys(names) if name not in self._numbers]
            self._numbers |= {name: len(self._numbers) + n for n, name in enumerate(new)}
            called = [self._numbers[name] for name in dict.fromkeys(names)]
            line = json.dumps({"test": test, "new": new, "called": called, **more}) + "\n"
            os.write(self._file, line.encode())

    def _be_a_child(self) -> None:
        self._is_direct, self._file, self._lock = True, None, threading.Lock()
        self._numbers.clear()
        self.begin()

    def _profile(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and (id(frame.f_code), 0) not in self._seen:
            self._enter(frame.f_code)

    def _enter_once(self, code: CodeType, _: int) -> Any:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        if code.co_filename.startswith(PREFIXES):
            self._enter(code)
            monitoring.set_local_events(monitoring.COVERAGE_ID, code, monitoring.events.LINE)
        return monitoring.DISABLE

    def _pass_once(self, code: CodeType, line: int) -> Any:
        self._enter(code, line)
        return sys.monitoring.DISABLE  # type: ignore[attr-defined, unused-ignore]

    def _enter(self, code: CodeType, line: int = 0) -> None:
        self._seen[id(code), line] = code
        if self._is_direct and (name := name_of(code, line)) and (test := current_test()):
            self.write(test, [name])


def name_of(code: CodeType, line: int = 0) -> str | None:
    """Return `path::qualified name` of a function of the product, with `@line` of one of its lines,
    which is counted from its head; None of any other function.
    """
    if code.co_filename.startswith(PREFIXES):
        name = f"{code.co_filename[len(str(REPOSITORY)) + 1 :]}::{code.co_qualname}"
        return f"{name}@{line - code.co_firstlineno}" if line else name
    return None


def current_test() -> str:
    """Return the id of the test that pytest says is running; empty outside of one."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def inherit() -> None:
    """Record this process, which a test has started."""
    if (folder := os.environ.get(FOLDER)) and current_test():
        Recorder(folder, is_direct=True).start()
