"""Trying mutants: each is made in a copy of the repository, and tests are run there until one fails.

A mutant of SQL gets a database of its own, the sound one with the changed file installed; all others
share the sound one. A test that fails has noticed, if it passes in a copy without a mutant: each
test that has noticed anything is tried there at the end. No time is a verdict. Where tests hang, the
group of their processes is ended after many times what they took when recorded, and the mutant
counts as hung, which is not noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from .traces import MOST_TESTS, TIERS, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .places import Mutant
    from .traces import Heard

REPOSITORY = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".*", "*.so", "build", "dist", "node_modules", "*.egg-info", "site"
)
HANGS_AFTER_SECONDS = 900.0
"""Seconds after which tests hang, and `PATIENCE` times what they took."""
PATIENCE = 20.0

CI = ("CI", "BUILD_NUMBER")
"""Variables by which pytest shows all of a difference, which nobody reads here."""

PYTEST = (
    *(sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=line", "-n", "0", "-m", ""),
    *("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio"),
    *("--timeout", str(int(HANGS_AFTER_SECONDS))),
)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::[^\n]*?)?)(?: - |$)", re.MULTILINE)

INSTALL = """import sys; sys.path.insert(0, "tests/kits"); import servers
dsn, template = sys.argv[1:]
name = servers.create_database(dsn, template or None)
servers.install_schema(servers.dsn_of(dsn, name))
if not template: servers.shrink_catalog(servers.dsn_of(dsn, name))
print(name)"""
DROP = """import sys; sys.path.insert(0, "tests/kits"); import servers
servers.drop_database(*sys.argv[1:])"""

NOTICED, SURVIVED, UNREACHED = "noticed", "survived", "not reached"
HUNG, INVALID, UNFOUNDED = "hung", "invalid", "unfounded"


@dataclass(frozen=True)
class Trial:
    """Result of one mutant."""

    mutant: Mutant
    verdict: str
    tier: str = ""
    by: str = ""
    """The test that has noticed."""
    tried: int = 0
    reaching: int = 0
    """Number of tests that enter the function, of which so many were tried."""
    said: str = ""

    def __str__(self) -> str:
        how = f"{self.tier}: {self.by}" if self.by else f"{self.tried} of {self.reaching} tests"
        return f"{self.verdict:<11} {self.mutant.id}  ({how})"


class Copy:
    """A copy of the repository, in which one mutant is made at a time."""

    def __init__(self, folder: Path, source: Path, server_dsn: str) -> None:
        self.folder = folder
        self.server_dsn = server_dsn
        shutil.copytree(source, folder, ignore=LEFT_OUT, symlinks=True)
        path = os.pathsep.join([str(folder), str(folder / "cli")])
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PYTEST_") and name not in CI
        } | {"PYTHONPATH": path, "PGFLOW_TEST_DSN": server_dsn}
        found = self._run("import pgflow, pgflow_cli; print(pgflow.__file__, pgflow_cli.__file__)")
        assert found.count(str(folder)) == 2, f"the tests would run {found} and not {folder}"

    def _run(self, code: str, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(done.stderr.strip().splitlines()[-1])
        return done.stdout.strip()

    @contextmanager
    def installed(self, template: str = "") -> Iterator[str]:
        """Install the schema of this copy over a database with the sound one, if one is given."""
        name = self._run(INSTALL, self.server_dsn, template)
        try:
            yield name
        finally:
            self._run(DROP, self.server_dsn, name)

    def run_tests(self, tests: Sequence[Heard], template: str) -> tuple[int | None, str]:
        """Return the exit code of pytest, None if it hung, and what it printed."""
        process = subprocess.Popen(
            [*PYTEST, *(test.name for test in tests)],
            cwd=self.folder,
            env=self._environment | {"PGFLOW_TEST_TEMPLATE": template},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        patience = HANGS_AFTER_SECONDS + PATIENCE * sum(test.seconds for test in tests)
        try:
            output, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and the workers that the test has started
            return None, process.communicate()[0]
        return process.returncode, output

    @contextmanager
    def broken(self, mutant: Mutant, number: int) -> Iterator[None]:
        """Make the mutant, and take it back."""
        file = self.folder / mutant.path
        sound, stat = file.read_text(), file.stat()
        file.write_text(mutant.apply(sound))
        # Compiled code is recognised by size and whole seconds: no two mutants have the same time.
        os.utime(file, (stat.st_atime, stat.st_mtime - 100 - number))
        try:
            yield
        finally:
            file.write_text(sound)
            os.utime(file, (stat.st_atime, stat.st_mtime))

    def attempt(self, mutant: Mutant, number: int, trace: Trace, template: str) -> Trial:
        """Try one mutant in the tiers, one after the other, until it is noticed."""
        reaching = {tier: trace.reaching(mutant, tier) for tier in TIERS}
        chosen = {tier: tests[:MOST_TESTS] for tier, tests in reaching.items() if tests}
        trial = Trial(mutant, UNREACHED, reaching=sum(map(len, reaching.values())))
        if not chosen:
            return trial
        with ExitStack() as stack:
            stack.enter_context(self.broken(mutant, number))
            if mutant.path.endswith(".sql"):
                try:
                    template = stack.enter_context(self.installed(template))
                except ValueError as error:
                    return replace(trial, verdict=INVALID, said=str(error))
            for tier, tests in chosen.items():
                code, output = self.run_tests(tests, template)
                trial = _judge(
                    replace(trial, tier=tier, tried=trial.tried + len(tests)), code, output
                )
                if trial.verdict != SURVIVED:
                    break
        return trial


def _judge(trial: Trial, code: int | None, output: str) -> Trial:
    failed = FAILED.search(output)
    if code == 0:
        return replace(trial, verdict=SURVIVED)
    if code is None:
        return replace(trial, verdict=HUNG, said=output[-1000:])
    if code in {1, 2} and failed:
        return replace(trial, verdict=NOTICED, by=failed[1], said=output[failed.start() :][:300])
    if code == 4 and "while loading conftest" in output:
        return replace(trial, verdict=NOTICED, by="tests/conftest.py", said=output[-300:])
    return replace(trial, verdict=UNFOUNDED, said=output[-1000:])


def try_all(
    mutants: Sequence[Mutant], trace: Trace, server_dsn: str, at_once: int = 2
) -> Iterator[Trial]:
    """Try these mutants, each in the first copy that is free; the last trials are those that have to
    be taken back, as the test that failed does so without the mutant.
    """
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgflow-mutants-")))
        first = Copy(root / "0", REPOSITORY, server_dsn)
        copies = [
            first,
            *(Copy(root / str(n), first.folder, server_dsn) for n in range(1, at_once)),
        ]
        template = stack.enter_context(first.installed())
        pool = stack.enter_context(ThreadPoolExecutor(at_once))
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def attempt(mutant: Mutant, number: int) -> Trial:
            copy = free.get()
            try:
                return copy.attempt(mutant, number, trace, template)
            finally:
                free.put(copy)

        trials = []
        try:
            for done in as_completed([pool.submit(attempt, m, n) for n, m in enumerate(mutants)]):
                trials.append(done.result())
                yield trials[-1]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        yield from _unfounded(trials, trace, first, template)


def _unfounded(trials: Sequence[Trial], trace: Trace, copy: Copy, template: str) -> Iterator[Trial]:
    """Those whose test fails without a mutant, too."""
    for name in sorted({trial.by for trial in trials if trial.by in trace.tests}):
        code, output = copy.run_tests([trace.tests[name]], template)
        if code != 0:
            for trial in trials:
                if trial.by == name:
                    yield replace(trial, verdict=UNFOUNDED, said=output[-1000:])
