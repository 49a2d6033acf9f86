"""Interleavings: every pair of API calls that can meet, in every order, under Postgres' own
`isolationtester`.

The specs are made from the table in `isolation/situations.py` and play on the stage of
`isolation/world.sql`. `isolation/expected.txt` has a line for each spec: its name, and a digest of
what each of its orders prints. An order that prints something else is shown in full. Rules judge
what is printed besides, see `faults`: the digests notice what changed, the rules what is wrong.

`python -m tests.isolation DSN [--write] [NAME ...]` plays them and shows what differs; `--write`
keeps what they print as what is expected, and `--show` prints the specs themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import queue
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import servers
from evidence import Evidence, Findings
from isolation.situations import Spec, all_specs, spec_text
from ownserver import OwnServer
from psycopg.conninfo import make_conninfo

from pgflow.embedded._binaries import PACKAGE, find_programs

HERE = Path(__file__).parents[1] / "isolation"
EXPECTED = HERE / "expected.txt"
TESTER = "isolationtester"
STEP_TIMEOUT_SECONDS = 15
STAGES = 4
"""Number of specs that play at once, each in a database of its own: they mostly wait for the tester
to look again.
"""
READING_EVENTS = ("published", "relayed", "listening", "expecting")
"""Places of specs that read events: an event is seen once no older transaction of the whole server
is open, whatever its database.
"""
SECONDS_OF_ALL = 120
"""Time of the proof from which on all specs are played, however long they take."""
FEW = 48
"""Number of specs of a shorter proof."""
OPTIONS = "-c jit=off -c deadlock_timeout=50ms"


def find_tester() -> Path:
    """Postgres' own tester: it comes with the embedded server's programs, and with those that the
    tests can fetch.
    """
    programs = []
    if importlib.util.find_spec(PACKAGE) is not None:
        programs.append(find_programs())
    if wanted := os.environ.get("PGFLOW_TEST_POSTGRES"):
        programs.append(servers.find_test_programs())
        if wanted.isdecimal():
            programs.append(servers.CACHE / f"postgres-{wanted}" / "bin")
    for folder in programs:
        for tester in (
            folder.parent / "lib/pgxs/src/test/isolation" / TESTER,
            folder.parent / "lib/postgresql/pgxs/src/test/isolation" / TESTER,
        ):
            if tester.exists():
                if not os.access(
                    tester, os.X_OK
                ):  # some installers unpack wheels without the permissions in them
                    tester.chmod(tester.stat().st_mode | 0o111)
                return tester
    return Path(servers.find_program(TESTER, "postgresql-15"))


@contextmanager
def stages(server_dsn: str, count: int = STAGES) -> Iterator[Callable[[Spec], str]]:
    """Databases with the stage set; the answer plays a spec in the next that is free."""
    template = servers.create_database(server_dsn)
    free: queue.Queue[str] = queue.Queue()
    names = [template]
    try:
        dsn = servers.dsn_of(server_dsn, template)
        servers.install_schema(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute((HERE / "world.sql").read_text())
        for _ in range(count):
            names.append(servers.create_database(server_dsn, template))
            free.put(servers.dsn_of(server_dsn, names[-1]))

        def play_next(spec: Spec) -> str:
            stage = free.get()
            try:
                return play(spec, stage)
            finally:
                free.put(stage)

        yield play_next
    finally:
        for name in names:
            servers.drop_database(server_dsn, name)


def play(spec: Spec, dsn: str) -> str:
    """Play a spec and return the tester's output."""
    done = subprocess.run(
        [find_tester(), make_conninfo(dsn, options=OPTIONS)],
        input=spec_text(spec),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "PG_TEST_TIMEOUT_DEFAULT": str(STEP_TIMEOUT_SECONDS)},
    )
    return (
        done.stdout
        if done.returncode == 0
        else f"{done.stdout}\nthe tester ended with {done.returncode}\n"
    )


def play_all(server_dsn: str, specs: Iterable[Spec]) -> dict[str, str]:
    """Play specs, the longest first, and return what each prints, by its name."""
    by_length = sorted(specs, key=lambda spec: (-len(spec.permutations()), spec.name))
    crowd = [spec for spec in by_length if spec.place not in READING_EVENTS]
    apart = [spec for spec in by_length if spec.place in READING_EVENTS]
    with stages(server_dsn) as play_next, ThreadPoolExecutor(STAGES + 1) as pool:
        quiet = pool.submit(play_apart, server_dsn, apart)
        played = dict(zip((spec.name for spec in crowd), pool.map(play_next, crowd), strict=True))
        return played | quiet.result()


def play_apart(like: str, specs: list[Spec]) -> dict[str, str]:
    """Play specs one after the other on a server of their own, of the version of another."""
    if not specs:
        return {}
    with psycopg.connect(like) as conn:
        wanted = servers.programs_of(conn.info.server_version // 10000)
    with OwnServer(wanted, autovacuum="off") as server, stages(server.dsn, 1) as play_next:
        return {spec.name: play_next(spec) for spec in specs}


STARTING = "starting permutation: "


def orders(printed: str) -> list[tuple[str, str]]:
    """Return the steps of each order that a spec plays, and what they print."""
    _, *parts = re.split(rf"^{STARTING}(.*)\n", printed, flags=re.MULTILINE)
    return [*zip(parts[::2], parts[1::2], strict=True)]


def digests(printed: str) -> list[str]:
    """Return a digest of what each order prints, in the order of the spec."""
    return [hashlib.sha256(text.encode()).hexdigest()[:8] for _, text in orders(printed)]


def read_expected() -> dict[str, list[str]]:
    """Return the digests that are expected, by the name of the spec."""
    lines = EXPECTED.read_text().splitlines() if EXPECTED.exists() else []
    return {name: kept for name, *kept in map(str.split, lines)}


def write_expected(printed: dict[str, str]) -> None:
    """Keep what specs print as what is expected, and drop what the table does not have any more."""
    kept = read_expected() | {name: digests(text) for name, text in printed.items()}
    names = sorted(kept.keys() & {spec.name for spec in all_specs()})
    EXPECTED.write_text("".join(f"{' '.join([name, *kept[name]])}\n" for name in names))


def difference(name: str, printed: str) -> str:
    """Return each order that prints something else than expected, in full; empty if there is none."""
    wanted, got = read_expected().get(name, []), digests(printed)
    told = [
        f"{name}, {steps}: prints this, which is not expected\n{text}"
        for (steps, text), digest, known in zip(orders(printed), got, [*wanted, *got], strict=False)
        if digest != known
    ]
    if len(wanted) != len(got):
        told.append(f"{name}: {len(got)} orders are played, {len(wanted)} are expected")
    return "\n".join(told)


# What a caller may be told, by the step that may be told so. Nothing else is an error that a call
# may raise.
ALLOWED = (
    ("a step of which another try has committed", r"fence\w*",
        r'duplicate key value violates unique constraint "unit_\d+_pkey"'),
    ("a caller with an old snapshot tries again", r"\w+_(rr|ser)(_2)?",
        r"could not serialize access due to .*|run \d+ was written into meanwhile: try again"),
    ("a step whose run was taken or handed back", r"\w*fence\w*",
        r"run \d+ is no longer held by this worker"),
    ("a claim of a worker that was declared dead", r"claim\w*",
        r"worker \d+ is not registered, or was declared dead"),
    ("a message to a run that is not there yet", r"signal|deliver|cancel|force|pause|resume|retry",
        r"no run has the key 'k'"),
    ("a retry of a run that has ended", r"retry",
        r"run 'k' is \w+: only a stuck or failed run can be retried"),
    ("a key that names another run", r"start\w*", r"key '\w+' already names a run of .*"),
    ("what follows an error", r"\w+",
        r"current transaction is aborted, commands ignored until end of transaction block"),
)  # fmt: skip


@dataclass
class Play:
    """One permutation, as it was printed."""

    spec: str
    steps: list[str]
    waits: int
    errors: list[tuple[str, str]]
    lost: int
    doubled: int
    unsound: str
    seen: str
    complete: bool = True

    @property
    def wrong(self) -> list[str]:
        """Complaints on things that must never be, whatever is expected."""
        found = [f"{step}: {error}" for step, error in self.errors if not is_allowed(step, error)]
        if not self.complete:
            found.append("it did not come to its end")
        if self.unsound:
            found.append(self.unsound)
        return [f"{self.spec}, {' '.join(self.steps)}: {what}" for what in found]


def is_allowed(step: str, error: str) -> bool:
    return any(
        re.fullmatch(steps, step) and re.fullmatch(text, error) for _, steps, text in ALLOWED
    )


def read_plays(spec: str, printed: str) -> list[Play]:
    """The permutations of a spec's output."""
    plays = []
    for part in printed.split(f"\n{STARTING}")[1:]:
        lines = part.splitlines()
        play = Play(
            spec, lines[0].split(), part.count("<waiting ...>"), [], 0, 0, "", "", complete=False
        )
        step = ""
        for n, line in enumerate(lines):
            if found := re.match(r"step (\w+): ", line):
                step = found[1]
            if found := re.match(r"ERROR:  (.*)", line):
                play.errors.append((step, found[1]))
            if re.match(r"place *\|", line) and lines[n + 1].startswith("---"):
                columns = [column.strip() for column in lines[n + 2].split("|")]
                play.seen, play.lost, play.doubled, play.unsound = (
                    columns[0],
                    int(columns[4]),
                    int(columns[5]),
                    columns[6],
                )
                play.complete = True
        plays.append(play)
    if "the tester ended with" in printed and plays:
        plays[-1].complete = False
    return plays


def faults(spec: str, printed: str) -> list[str]:
    """Return complaints on the engine from a spec's output, expected or not."""
    plays = read_plays(spec, printed)
    found = [line for play in plays for line in play.wrong]
    found += [
        f"{spec}, {' '.join(p.steps)}: {p.lost} lost, {p.doubled} doubled"
        for p in plays
        if p.lost or p.doubled
    ]
    return found if plays else [f"{spec}: nothing was played: {printed[-500:]}"]


# guarantee -> fault, and the steps that make a permutation speak of it
PROMISES = (
    ("G29", "two calls in every order of their steps and commits", r".*"),
    ("G31", "signals that meet whatever changes the run's place", r"(signal|deliver)\w*"),
    ("G36", "a cancel that meets whatever changes the run's place", r"(cancel|force)\w*"),
    ("G6", "an end that meets any other call", r"complete\w*"),
    ("G7", "a worker that was declared dead goes on", r"late_\w+"),
    ("G4", "starts with one key at the same time", r"start\w*"),
)


def prove(server_dsn: str, seconds: float, seed: int) -> Findings:
    """Plays every spec if there is the time, else a number of them, drawn by the seed."""
    began = time.monotonic()
    plays_all = seconds >= SECONDS_OF_ALL
    specs = list(all_specs())
    if not plays_all:
        specs = random.Random(seed).sample(specs, FEW)
    printed = play_all(server_dsn, specs)
    plays = [play for name, text in printed.items() for play in read_plays(name, text)]
    findings = Findings("L1 interleavings", seed, seconds=time.monotonic() - began)
    counted: set[int] = set()
    for guarantee, fault, steps in PROMISES:
        told = [play for play in plays if any(re.fullmatch(steps, step) for step in play.steps)]
        if not told and not plays_all:
            continue
        wrong = [line for play in told for line in play.wrong]
        if guarantee == "G29":
            wrong += [
                f"{name}: prints something else than expected"
                for name, text in printed.items()
                if difference(name, text)
            ]
        deadlocks = sum("deadlock" in error for play in told for _, error in play.errors)
        own = {id(play) for play in told} - counted
        counted |= own
        findings.evidence.append(
            Evidence(
                guarantee,
                fault,
                len(own),
                sum(p.lost for p in told),
                sum(p.doubled for p in told),
                tuple(wrong),
                f"{deadlocks} deadlocks",
                shared=len(told) - len(own),
            )
        )
    findings.fired = {
        "permutations": (len(plays), 2000 if plays_all else 300),
        "steps that waited": (sum(play.waits for play in plays), 200 if plays_all else 20),
        "calls refused or told to try again": (
            sum(len(play.errors) for play in plays),
            50 if plays_all else 5,
        ),
    }
    return findings


def main() -> int:
    """Plays specs and shows what differs and what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="a superuser's")
    parser.add_argument("names", nargs="*", help="specs; all, if none is named")
    parser.add_argument("--show", action="store_true", help="print the specs before they play")
    parser.add_argument("--write", action="store_true", help="keep what they print as expected")
    options = parser.parse_args()
    began = time.monotonic()
    specs = [spec for spec in all_specs() if not options.names or spec.name in options.names]
    if options.show:
        print("\n".join(map(spec_text, specs)))
    printed = play_all(options.dsn, specs)
    if options.write:
        write_expected(printed)
    wrong = [line for name, text in printed.items() for line in faults(name, text)]
    differ = [told for name, text in printed.items() if (told := difference(name, text))]
    plays = [play for name, text in printed.items() for play in read_plays(name, text)]
    for line in (*differ, *(f"FAILED {line}" for line in wrong)):
        print(line)
    print(
        f"{len(specs)} specs, {len(plays)} permutations, {len(differ)} differ, {len(wrong)} wrong, "
        f"{time.monotonic() - began:.0f} seconds"
    )
    return 1 if wrong or differ else 0
