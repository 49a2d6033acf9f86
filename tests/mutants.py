"""Breaks pgflow on purpose, one defect at a time, and shows which test notices: `python -m
tests.mutants [DSN] [NAME ...]`.

A test that no defect fails proves little. Each of :data:`tests.defects.DEFECTS` is made in a copy
of the repository, of which there are two, so that two can be tried at a time; the test named beside
it must fail there. First all those tests must pass in copies without a defect. Prints a line for
each and `mutants caught k/k`. Without a DSN the tests find a server as they always do.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from tests.defects import DEFECTS, Defect
from tests.kits.evidence import Evidence, Findings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPOSITORY = Path(__file__).parents[1]
COPIED = (
    "pgflow",
    "cli",
    "sql",
    "migrations",
    "tests",
    "docs",
    "examples",
    "pyproject.toml",
    "README.md",
)
COPIES = 2
SAMPLE = 16
"""Number of defects, drawn by the seed, that are made where there is no time for all: in the quick
proof.
"""

MANY_SECONDS = 600
"""Seconds for the layer from which on as many are drawn as they allow."""
SECONDS_OF_ONE = 6.0
"""Seconds that one takes where two are tried at a time and other layers are at work, with its share
of the tests that must pass first.
"""

HANGS_AFTER_SECONDS = 100
"""Less than the limit of a single test. Who hangs has not noticed."""
LATE = "at the second try"
TRIES = 2
"""A test that was to meet a moment may miss it on a busy machine, or hang. So a defect is tried once
more, and whoever was noticed only then is counted by itself.
"""

SHOW_ALL_OF_A_DIFFERENCE = ("CI", "BUILD_NUMBER")
"""Variables by which pytest knows CI's machines. There it shows all of a difference, which takes
longer than a test may where two long lists differ, and nobody reads it here.
"""

PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-x",
    "-q",
    "-rfE",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:hypothesispytest",
    "-p",
    "no:anyio",
)


class Trial(NamedTuple):
    """Result of one defect."""

    defect: Defect
    caught: bool
    seconds: float
    tries: int
    how: str = ""

    @property
    def is_late(self) -> bool:
        """True if it was caught, and not at the first try."""
        return self.caught and self.tries > 1

    def __str__(self) -> str:
        verdict = "caught" if self.caught else "ALIVE "
        how = f"  ({LATE})" if self.is_late else self.how
        return f"{verdict} {self.seconds:5.1f} s  {self.defect.name:<58} {self.defect.file:<30} {self.defect.test}{how}"


MAKE_TEMPLATE = "name = servers.create_database(dsn); servers.install_schema(servers.dsn_of(dsn, name)); print(name)"
DROP_TEMPLATE = "servers.drop_database(dsn, sys.argv[2])"


class Copy:
    """A copy of the repository, in which one defect is made, tried and taken back at a time."""

    def __init__(self, folder: Path, source: Path, server_dsn: str | None) -> None:
        self.folder = folder
        for name in COPIED:
            if (source / name).is_dir():
                shutil.copytree(
                    source / name,
                    folder / name,
                    ignore=shutil.ignore_patterns("__pycache__", ".*", "*.so"),
                )
            else:
                shutil.copy2(source / name, folder / name)
        path = os.pathsep.join([str(folder), str(folder / "cli")])
        self._environment = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("PYTEST_") and k not in SHOW_ALL_OF_A_DIFFERENCE
        } | {"PYTHONPATH": path, "PGFLOW_TEST_LONG": "1"}
        if server_dsn is not None:
            self._environment["PGFLOW_TEST_DSN"] = server_dsn
        self._check_that_it_is_what_runs()

    def _run(self, code: str, *args: str) -> str:
        command = [sys.executable, "-c", code, *args]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def _check_that_it_is_what_runs(self) -> None:
        found = self._run("import pgflow, pgflow_cli; print(pgflow.__file__, pgflow_cli.__file__)")
        assert found.count(str(self.folder)) == 2, (
            f"the tests would run {found} and not the copy in {self.folder}"
        )

    @contextmanager
    def shared_template(self) -> Iterator[str]:
        """A database with the schema as it is without a defect, for all whose defect is not in the
        schema.
        """
        prologue = (
            "import sys; sys.path.insert(0, 'tests/kits'); import servers; dsn = sys.argv[1]; "
        )
        dsn = self._environment["PGFLOW_TEST_DSN"]
        name = self._run(prologue + MAKE_TEMPLATE, dsn).strip()
        try:
            yield name
        finally:
            self._run(prologue + DROP_TEMPLATE, dsn, name)

    def test(
        self, tests: Sequence[str], patience_seconds: float, template: str | None
    ) -> tuple[int | None, str]:
        """Runs these tests; the answer is the exit code of pytest, None if it hung, and what it
        printed.
        """
        command = [*PYTEST, *(f"tests/{test}" for test in tests)]
        environment = self._environment | (
            {"PGFLOW_TEST_TEMPLATE": template} if template is not None else {}
        )
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and the workers that the test has started
            return None, process.communicate()[0]
        return process.returncode, output

    def attempt(self, number: int, defect: Defect, template: str | None) -> Trial:
        """Makes the defect, runs the test that must notice, and takes it back."""
        file = self.folder / defect.file
        sound, sound_stat = file.read_text(), file.stat()
        began = time.monotonic()
        file.write_text(defect.break_text(sound))
        # Compiled code is recognised by size and whole seconds: two defects of a file must not have
        # the same time.
        os.utime(file, (sound_stat.st_atime, sound_stat.st_mtime - 100 - number))
        try:
            used = template if defect.file.endswith(".py") else None
            code, tries = None, 0
            while code in (0, None) and tries < TRIES:
                code, output = self.test([defect.test], HANGS_AFTER_SECONDS, used)
                tries += 1
        finally:
            file.write_text(sound)
            os.utime(file, (sound_stat.st_atime, sound_stat.st_mtime))
        seconds = time.monotonic() - began
        if code is None:
            return Trial(defect, caught=False, seconds=seconds, tries=tries, how="  (hung)")
        if code not in (0, 1):
            return Trial(
                defect,
                caught=False,
                seconds=seconds,
                tries=tries,
                how=f"  (the test did not run: {output[-1000:]})",
            )
        assert "ERROR at setup" not in output, (
            f"{defect.name}: nothing can run with it, which any test notices:\n{output[-3000:]}"
        )
        return Trial(defect, caught=code == 1, seconds=seconds, tries=tries)


class Unfounded(Exception):
    """The tests fail where nothing is broken: that they fail for a defect would say nothing."""


def try_all(defects: Sequence[Defect], server_dsn: str | None) -> Iterator[Trial]:
    """Tries these defects, each in the first copy that is free."""
    server_dsn = server_dsn or os.environ.get("PGFLOW_TEST_DSN")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgflow-mutants-")))
        first = Copy(root / "0", REPOSITORY, server_dsn)
        for defect in defects:
            defect.break_text(
                (first.folder / defect.file).read_text()
            )  # before anything takes long
        copies = [first, *(Copy(root / str(n), first.folder, server_dsn) for n in range(1, COPIES))]
        template = stack.enter_context(first.shared_template()) if server_dsn is not None else None
        pool = stack.enter_context(ThreadPoolExecutor(COPIES))
        _check_that_all_pass(pool, copies, sorted({defect.test for defect in defects}), template)
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def attempt(number: int, defect: Defect) -> Trial:
            copy = free.get()
            try:
                return copy.attempt(number, defect, template)
            finally:
                free.put(copy)

        yield from pool.map(attempt, range(len(defects)), defects)


def _check_that_all_pass(
    pool: ThreadPoolExecutor, copies: Sequence[Copy], tests: Sequence[str], template: str | None
) -> None:
    shares = [tests[n :: len(copies)] for n in range(len(copies))]
    patience_seconds = HANGS_AFTER_SECONDS + 10.0 * len(tests)
    for code, output in pool.map(
        lambda copy, share: copy.test(share, patience_seconds, template) if share else (0, ""),
        copies,
        shares,
    ):
        if code != 0:
            raise Unfounded(
                "tests fail where nothing is broken, so their failures for a defect would say "
                f"nothing:\n{output[-4000:]}"
            )


def prove(server_dsn: str, seconds: float, seed: int) -> Findings:
    """The findings of this layer of the proof: as many defects are made, drawn by the seed, as there
    is time for; in the quick proof a sample.
    """
    began = time.monotonic()
    count = int(seconds / SECONDS_OF_ONE) if seconds >= MANY_SECONDS else SAMPLE
    chosen = random.Random(seed).sample(DEFECTS, min(count, len(DEFECTS)))  # noqa: S311
    trials: list[Trial] = []
    wrong: tuple[str, ...] = ()
    try:
        trials += try_all(chosen, server_dsn)
    except Unfounded as error:
        wrong = (str(error),)
    alive = tuple(
        f"{t.defect.name} in {t.defect.file}: not noticed by {t.defect.test}{t.how}"
        for t in trials
        if not t.caught
    )
    caught = len(trials) - len(alive)
    late = sum(trial.is_late for trial in trials)
    figure = f"{caught}/{len(chosen)}, drawn from {len(DEFECTS)}"
    evidence = Evidence(
        "mutants",
        "a defect made on purpose, which a test must notice",
        len(trials),
        wrong=wrong + alive,
        figure=f"{figure}, {late} of them {LATE}" if late else figure,
    )
    return Findings(
        "mutants",
        seed,
        [evidence],
        {"defects made": (len(trials), len(chosen))},
        time.monotonic() - began,
    )


def _is_dsn(word: str) -> bool:
    return re.match(r"postgres(ql)?://|\w+=", word) is not None


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Breaks pgflow on purpose and shows which test notices.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="DSN | NAME",
        help="a superuser's DSN; names of defects, all if none is given",
    )
    words = parser.parse_args().words
    server_dsn = next(filter(_is_dsn, words), None)
    names = {word for word in words if not _is_dsn(word)}
    if unknown := names - {defect.name for defect in DEFECTS}:
        parser.error(f"there is no defect {unknown.pop()!r}")
    wanted = [defect for defect in DEFECTS if not names or defect.name in names]
    began, caught = time.monotonic(), 0
    try:
        for trial in try_all(wanted, server_dsn):
            caught += trial.caught
            print(trial, flush=True)
    except Unfounded as error:
        print(error)
        return 1
    print(f"mutants caught {caught}/{len(wanted)} in {time.monotonic() - began:.0f} s")
    return 0 if caught == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
