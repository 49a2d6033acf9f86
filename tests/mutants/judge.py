"""The plugin of pytest that tries mutants: `pytest -p tests.mutants.judge`.

Tests are collected once. Each mutant is then made in a fork of this process, which gives the live
functions the changed code, so that a mutant costs what its tests cost. A mutant of SQL replaces its
function in a database of its own. What a fork cannot change (code of modules and classes, defaults of
parameters) is made in a process of its own, which compiles the changed text where it imports the file
(`INHERITED`); so do the processes that tests start.

A test that fails has noticed if it passes without the mutant, right after. If it does not, the others
go on without it. A mutant that never stops computing uses up its seconds of the processor, and is
noticed: so is every test that hangs, by the guard of the suite. Where tests only wait, their group of
processes is ended after many times what they took when recorded, and the mutant counts as hung, which
is not noticed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tools.colours import of_the_other_colour, twin_of

from .sql_operators import statement_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .places import Mutant

REPOSITORY = Path(__file__).parents[2]
ORDERS = "PGFLOW_MUTANT_ORDERS"
"""Variable that names the folder of the orders."""

HANGS_AFTER_SECONDS = 30.0
"""Seconds after which a test hangs, and `PATIENCE` times what it took."""
PATIENCE = 20.0
CPU_SECONDS = 60
SPINS = "the guard against hangs"
BEAT_SECONDS = 0.02
MOST_ROWS = 4
"""Number of rows that are tried of a table of which nothing is recorded."""
MOST_FRESH = 30
"""Number of tests tried in a process of its own."""

NOTICED, SURVIVED, INVALID, HUNG = "noticed", "survived", "invalid", "hung"

ARGUMENTS = (
    *("-q", "-n", "0", "-m", "", "--capture=no", "-p", "no:cacheprovider", "-p", "no:anyio"),
    *("-p", "no:hypothesispytest", "--timeout", str(int(HANGS_AFTER_SECONDS))),
)
INHERITED = """import importlib.machinery as m, json, os
texts = json.load(open(os.environ["PGFLOW_MUTANT"]))
sound = m.SourceFileLoader.get_code
def get_code(self, name):
    path = self.path
    return compile(texts[path], path, "exec", dont_inherit=True) if path in texts else sound(self, name)
m.SourceFileLoader.get_code = get_code
"""
"""The `sitecustomize` of processes that import the changed files."""


@dataclass(frozen=True)
class Order:
    """A mutant, and the tests that are tried on it, in this order."""

    mutant: Mutant
    tests: dict[str, float]
    """The seconds that each took when recorded."""
    reaching: int
    """Number of tests that they were taken from."""


@dataclass
class Answer:
    """What became of an order."""

    verdict: str
    by: str = ""
    said: str = ""
    tried: int = 0
    unsound: list[str] = field(default_factory=list)
    """Tests that failed without the mutant, too."""


class Judge:
    """The loop over the orders, in place of that over the tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._imported = watch_imports()
        self._tables: dict[str, list[str]] = {}
        self._failed = ""
        self._said = ""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try each mutant, so many at once."""
        stop_watching()
        at_once, orders = pickle.loads((self._folder / "orders").read_bytes())  # noqa: S301
        self._items = {item.nodeid: item for item in session.items}
        for item in session.items:
            if item.get_closest_marker("full") is None:
                self._tables.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
        running: set[int] = set()
        for number, order in enumerate(orders):
            while len(running) >= at_once:
                running.discard(os.wait()[0])
            pid = os.fork()
            if not pid:
                _in_child(lambda n=number, o=order: self._answer(n, o))
            running.add(pid)
        while running:
            running.discard(os.wait()[0])
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first test that fails."""
        if report.failed and not self._failed:
            self._failed, self._said = report.nodeid, str(report.longreprtext)[-600:]

    # ---------------------------------------------------------------- in forks

    def _answer(self, number: int, order: Order) -> None:
        answer = self._judge(number, order)
        path = self._folder / f"{number}.answer"
        path.with_suffix(".new").write_bytes(pickle.dumps(answer))
        path.with_suffix(".new").rename(path)

    def _judge(self, number: int, order: Order) -> Answer:
        seconds = self._rows_of(order)
        tests = [*seconds]
        unsound: list[str] = []
        for name in tests:
            self._items[name].add_marker(pytest.mark.timeout(patience_of(seconds[name])))
        patience = 2 * patience_of(sum(seconds.values()))  # that of a test ends first
        with self._made(number, order.mutant) as error:
            if error:
                return Answer(INVALID, said=error)
            while True:
                answer = self._play(number, order.mutant, tests, patience)
                if answer.verdict == NOTICED and answer.by != SPINS:
                    sound = self._play(number, None, [answer.by], patience)
                    if sound.verdict != SURVIVED:
                        unsound.append(answer.by)
                        tests.remove(answer.by)
                        continue
                answer.unsound = unsound
                return answer

    def _rows_of(self, order: Order) -> dict[str, float]:
        """Return the collected tests of an order, and some rows of a table that it names as a whole."""
        found: dict[str, float] = {}
        for name, seconds in order.tests.items():
            rows = [name] if name in self._items else self._tables.get(name, [])[:MOST_ROWS]
            found |= dict.fromkeys(rows, seconds)
        return found

    @contextmanager
    def _made(self, number: int, mutant: Mutant) -> Iterator[str]:
        """Make what processes of their own need of a mutant; an error if it cannot be made."""
        if mutant.path.endswith(".sql"):
            text = mutant.apply((REPOSITORY / mutant.path).read_text())
            with _database(statement_of(text, mutant.function)) as (name, error):
                self._template = name
                yield error
            return
        folder = self._folder / f"{number}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(INHERITED)
        texts = {str(REPOSITORY / path): text for path, text in texts_of(mutant).items()}
        (folder / "mutant.json").write_text(json.dumps(texts))
        yield ""

    def _play(
        self, number: int, mutant: Mutant | None, tests: Sequence[str], patience: float
    ) -> Answer:
        if not tests:
            return Answer(SURVIVED)
        if mutant is None or mutant.path.endswith(".sql"):
            template = "" if mutant is None else self._template
            return self._forked(number, tests, patience, lambda: _use_template(template))
        answer = self._forked(number, tests, patience, lambda: self._change(number, mutant))
        # Its value was made when a module was imported, or may have been.
        if answer.verdict == INVALID or answer.verdict == SURVIVED and self._is_imported(mutant):
            fresh = self._fresh(number, tests[:MOST_FRESH], patience)
            fresh.tried = max(fresh.tried, answer.tried)
            return fresh
        return answer

    def _is_imported(self, mutant: Mutant) -> bool:
        places = (
            (mutant.path, mutant.function),
            (mutant.twin, of_the_other_colour(mutant.function)),
        )
        return self._imported is None or any(
            (str(REPOSITORY / path), function) in self._imported for path, function in places
        )

    def _change(self, number: int, mutant: Mutant) -> None:
        os.environ.update(self._environment(number))
        change(mutant)

    def _environment(self, number: int) -> dict[str, str]:
        folder = str(self._folder / f"{number}")
        given = filter(None, [folder, os.environ.get("PYTHONPATH")])
        return {
            "PYTHONPATH": os.pathsep.join(given),
            "PGFLOW_MUTANT": str(Path(folder) / "mutant.json"),
        }

    def _forked(
        self, number: int, tests: Sequence[str], patience: float, prepare: Callable[[], None]
    ) -> Answer:
        path = self._folder / f"{number}.played"
        path.unlink(missing_ok=True)
        pid = os.fork()
        if not pid:
            _in_child(lambda: self._run(path, tests, prepare))
        status = _status_of(pid, patience)
        if status is None:
            return Answer(HUNG, tried=len(tests))
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return Answer(NOTICED, SPINS, tried=len(tests))
        if not path.exists():
            return Answer(INVALID, said="the process ended before its tests")
        found: Answer = pickle.loads(path.read_bytes())  # noqa: S301
        return found

    def _run(self, path: Path, tests: Sequence[str], prepare: Callable[[], None]) -> None:
        _limit_processor()
        try:
            prepare()
        except NotInForkError as error:
            path.write_bytes(pickle.dumps(Answer(INVALID, said=str(error))))
            return
        items = [self._items[name] for name in tests]
        tried = 0
        for item, following in zip(items, [*items[1:], None], strict=True):
            tried += 1
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                break
        verdict = NOTICED if self._failed else SURVIVED
        path.write_bytes(pickle.dumps(Answer(verdict, self._failed, self._said, tried)))
        items[0].session._setupstate.teardown_exact(None)

    def _fresh(self, number: int, tests: Sequence[str], patience: float) -> Answer:
        # Plain, since pytest would compile pgflow, which has a plugin of it, by itself.
        command = [sys.executable, "-m", "pytest", "-x", "-rfE", "--tb=line", "--assert=plain"]
        command += ARGUMENTS
        process = subprocess.Popen(
            [*command, *tests],
            cwd=REPOSITORY,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") and k != ORDERS}
            | self._environment(number),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_limit_processor,  # noqa: PLW1509  this process has one thread
        )
        try:
            output, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Answer(HUNG, tried=len(tests))
        if process.returncode == -signal.SIGXCPU:
            return Answer(NOTICED, SPINS, tried=len(tests))
        lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        names = (line.partition(" ")[2].partition(" - ")[0] for line in lines)
        by = next((name for name in names if name in self._items), "")
        if process.returncode == 0:
            return Answer(SURVIVED, tried=len(tests))
        if by:
            return Answer(NOTICED, by, output[-600:], len(tests))
        # It breaks the import of all tests: the first of them has noticed.
        return Answer(NOTICED, tests[0], output[-600:], len(tests))


def patience_of(seconds: float) -> float:
    """Return the seconds after which a test that took so many hangs."""
    return HANGS_AFTER_SECONDS + PATIENCE * seconds


def watch_imports() -> set[tuple[str, str]] | None:
    """Return the functions of the product that run while tests are collected, which a fork cannot
    run again; None before Python 3.12, which tells of them.
    """
    if sys.version_info < (3, 12):
        return None
    entered: set[tuple[str, str]] = set()
    tool, events = sys.monitoring.COVERAGE_ID, sys.monitoring.events

    def enter(code: CodeType, _: int) -> Any:
        entered.add((code.co_filename, code.co_qualname))
        return sys.monitoring.DISABLE

    sys.monitoring.use_tool_id(tool, "pgflow mutants")
    sys.monitoring.register_callback(tool, events.PY_START, enter)
    sys.monitoring.set_events(tool, events.PY_START)
    return entered


def stop_watching() -> None:
    """End what `watch_imports` has begun."""
    if sys.version_info >= (3, 12):
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)
        sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)


class NotInForkError(Exception):
    """The changed code is not that of live functions."""


def change(mutant: Mutant) -> None:
    """Give the live functions the code of a mutant.

    Raises:
        NotInForkError: It changes none of them, or cannot.
    """
    changed = [_change(path, text) for path, text in texts_of(mutant).items()]
    if not any(changed):
        raise NotInForkError("no function has this code")


def texts_of(mutant: Mutant) -> dict[str, str]:
    """Return the changed texts by their paths: of its file, and of the sync twin that is made of it."""
    text = mutant.apply((REPOSITORY / mutant.path).read_text())
    found = {mutant.path: text}
    if mutant.twin:
        with suppress(SyntaxError):  # the twin would not compile
            found[mutant.twin] = twin_of(text, mutant.path)
    return found


def _change(place: str, changed: str) -> bool:
    path = str(REPOSITORY / place)
    importlib.import_module(_module_of(place))
    before, after = (_codes(compile(t, path, "exec")) for t in (Path(path).read_text(), changed))
    gc.unfreeze()
    has_changed = False
    for function in [one for one in gc.get_objects() if isinstance(one, FunctionType)]:
        code = function.__code__
        key = code.co_qualname, code.co_firstlineno
        if code.co_filename != path or key not in before:
            continue
        if key not in after or after[key] == before[key]:
            continue
        try:
            function.__code__ = after[key]
        except ValueError as error:
            raise NotInForkError(str(error)) from error
        has_changed = True
    return has_changed


def _codes(module: CodeType) -> dict[tuple[str, int], CodeType]:
    found: dict[tuple[str, int], CodeType] = {}
    left = [module]
    while left:
        code = left.pop()
        found.setdefault((code.co_qualname, code.co_firstlineno), code)
        left += [one for one in code.co_consts if isinstance(one, CodeType)]
    return found


def _module_of(path: str) -> str:
    parts = path.removeprefix("cli/").removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@contextmanager
def _database(statement: str) -> Iterator[tuple[str, str]]:
    servers: Any = importlib.import_module("servers")
    server = os.environ["PGFLOW_TEST_DSN"]
    name = servers.create_database(server, os.environ["PGFLOW_TEST_TEMPLATE"])
    error = ""
    try:
        with psycopg.connect(servers.dsn_of(server, name), autocommit=True) as conn:
            conn.execute(statement.encode())
    except psycopg.Error as refused:
        error = str(refused)
    try:
        yield name, error
    finally:
        servers.drop_database(server, name)


def _use_template(name: str) -> None:
    if name:
        os.environ["PGFLOW_TEST_TEMPLATE"] = name


def _in_child(play: Callable[[], None]) -> None:
    """Play in a fork, which ends with it."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        play()
    finally:
        os._exit(0)


def _limit_processor() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))


def _status_of(pid: int, patience: float) -> int | None:
    """Return the status of a child that has ended; None if it had to be ended."""
    deadline = time.monotonic() + patience
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(BEAT_SECONDS)


def pytest_configure(config: pytest.Config) -> None:
    """Try mutants, if the environment names a folder of orders."""
    if folder := os.environ.get(ORDERS):
        config.pluginmanager.register(Judge(Path(folder)), "pgflow mutants")
