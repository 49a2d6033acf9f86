"""Cuts the wire at every message of every path through the API: `python -m tests.wirecut DSN
[--percent N] [--seed S] [--path NAME]`.

A path (`tests/kits/wirepaths.py`) is gone once with nothing cut, which shows its messages. Then it is
gone again for each of them and for either side - before the server saw it, after the server ran it
- and the line cut there, gracefully or with a reset; a COMMIT also while it runs. Afterwards
  everything passes. The work of each key must then be done, once, and nothing of the cut may be in a
journal. Further trials cut a second time while the first cut is being recovered from. A path on
which too few cuts were made proves nothing, and makes the whole void.

Whether a message is cut, and how, is drawn from the seed and from its place alone: a message more in
the clean run, as of a poll on a slow machine, changes nothing for the others.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

import pgflow._worker.upkeep
from pgflow.app._sync import Portal
from tests.kits import servers
from tests.kits.evidence import Evidence, Findings
from tests.kits.wire import ROUND_TRIPS, Cut, Side
from tests.kits.wirepaths import HEART, PATHS, SCHEMA, Path, Stage, judge, single

HANG_SECONDS = 900.0
"""Seconds after which whoever goes a path hangs."""
EVERY_CUT = 100
"""Percent of the messages: all. What is above that are pairs of cuts."""
AT_ONCE = 8
MOST_MESSAGES = 12
"""Most messages of one statement of one role: two of it, each in all its messages."""
COMMITTING = (
    "commit", "commit_unit", "commit_units", "commit_and_claim", "start_run", "start_runs",
    "send_signal", "post_signal", "deliver_signal", "claim_runs", "reap_worker",
)  # fmt: skip
"""Cut *during* too."""
OPENING = ("connect", "listen")
"""Statements that are said only when a connection is opened."""
BY_THE_CLOCK = (
    "keep_schedules", "release_outdated", "release_strays", "seal_units", "add_unit_partitions",
    "add_event_partitions", "sweep_keys", "shrink_journal",
)  # fmt: skip
"""Statements that a worker says by its clock, whatever the path does."""
BEATS_TO_WAIT = 100
"""Beats of the worker's heart within which it has said what it says by its clock."""
GOES = 8
"""Most times that a path is gone for one cut."""

FAULTS = {
    "G1": "cut at each message around a transactional step, both sides", "G2": "the same: rows whose step is not recorded",
    "G3": "answer to COMMIT lost: after it, during it, before it with the server's session left "
          "open",
    "G4": "cut at each message of a start, said again under its key", "G5": "cut at each message of a caller's transaction",
    "G10": "connections lost at every message", "G39": "connections lost at every message: each "
                                                       "path goes on",
}  # fmt: skip


@dataclass
class Tally:
    """Tally of one path."""

    path: str
    promises: tuple[str, ...]
    planned: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    commits: int = 0
    """Cuts that left the outcome of a COMMIT open."""
    in_progress: int = 0
    trials: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    said_again: int = 0


def plan(
    path: Path, seen: dict[tuple[str, str], list[str]], seed: int, percent: int = EVERY_CUT
) -> list[Cut]:
    """Return the cuts of a path that the seed draws, from the messages of a clean run."""
    return [
        cut
        for (role, what), kinds in sorted(seen.items())
        if role in path.cuts
        and (not path.cuts[role] or what in path.cuts[role])
        and what != "terminate"
        for nth, kind in enumerate(_surely(path, what, kinds, percent), 1)
        for time in range(path.times)
        for side in _sides(what, kind)
        if (cut := _at(path, (role, what, nth, side), f"{seed} {time}", percent)) is not None
    ]


def _surely(path: Path, what: str, kinds: list[str], percent: int) -> list[str]:
    """Return the messages of a statement that may be cut. Where only a share is, those that every
    machine meets: a slow one has said more when the path is gone.
    """
    if percent >= EVERY_CUT:
        return kinds[:MOST_MESSAGES]
    if not path.has_worker and what in BY_THE_CLOCK:
        return []
    first = next((n for n, kind in enumerate(kinds) if kind in ROUND_TRIPS), len(kinds))
    return kinds[: first + 1]


def _sides(what: str, kind: str) -> list[Side]:
    if kind not in ROUND_TRIPS:
        return ["before"]
    return ["before", "after", "during"] if what in COMMITTING else ["before", "after"]


def _at(path: Path, at: tuple[str, str, int, Side], seed: str, percent: int) -> Cut | None:
    rng = random.Random(f"{seed} {path.name} {at}")
    is_life = not path.has_worker  # each of its many messages takes a worker's life
    share = percent / 3 if is_life and percent < EVERY_CUT else percent
    if rng.random() * EVERY_CUT >= share:
        return None
    role, what, nth, side = at
    patience = 4 if path.times > 1 else 1
    return Cut(role, what, nth, side, rng.random() < 0.5, patience * _linger(side, what, rng))


def _linger(side: Side, what: str, rng: random.Random) -> float:
    """Return the seconds that the server takes to notice: half of the time, where it holds a
    transaction open meanwhile, a moment.
    """
    return (
        rng.uniform(0.01, 0.1)
        if side == "before" and what in (*COMMITTING, "fence_step") and rng.random() < 0.5
        else 0.0
    )


class Enumeration:
    """Cuts of one path."""

    def __init__(self, stage: Stage, seed: int, percent: int) -> None:
        self.stage = stage
        self.seed = seed
        self.percent = percent
        self.rng = random.Random(f"{seed} {stage.path.name}")
        self.tally = Tally(stage.path.name, stage.path.promises)
        self.keys: dict[str, str] = {}

    async def run(self) -> Tally:
        """Single cuts, then cuts twice in a row."""
        path = self.stage.path
        seen = await self._clean_run()
        cuts = plan(path, seen, self.seed, self.percent) or plan(path, seen, self.seed, 99)[:1]
        self.tally.messages = len({(cut.role, cut.what, cut.nth) for cut in cuts})
        self.tally.planned.update(cut.side for cut in cuts)
        self.tally.missed = [str(cut) for cut in cuts if not await self._trial(cut)]
        # A message may not come again in the same way. Of a share, some other of the path is cut.
        for cut in plan(path, seen, self.seed) if self.percent < EVERY_CUT else ():
            if self.tally.fired:
                break
            await self._trial(cut)
        pairs = len(cuts) * max(0, self.percent - EVERY_CUT) // EVERY_CUT
        for _ in range(pairs if path.may_be_cut_twice else 0):
            await self._trial(cut := self.rng.choice(cuts), self._another(cut))
        await self._is_whole()
        verdict = await judge(self.stage, self.keys)
        self.tally.lost, self.tally.doubled = verdict.lost, verdict.doubled
        self.tally.wrong += verdict.wrong
        self.tally.in_progress = self.stage.proxy.in_progress
        self.tally.said_again = self.stage.errors
        return self.tally

    def _another(self, cut: Cut) -> Cut:
        return Cut(
            cut.role,
            None,
            self.rng.randint(1, 12),
            self.rng.choice(("before", "after")),
            self.rng.random() < 0.5,
        )

    async def _clean_run(self) -> dict[tuple[str, str], list[str]]:
        """Every role's connections are new, so that what opens one is among the messages; what
        libraries ask only once is not.
        """
        await self._act("nothing")
        self._drop_all()
        self.stage.proxy.arm()
        await self._act("nothing")
        if any(what == "beat" for _, whats in self.stage.path.cuts.items() for what in whats):
            await self._act("nothing")
        for _ in range(GOES):  # some messages come when they can, and not at every go
            if plan(self.stage.path, dict(self.stage.proxy.messages), self.seed):
                break
            await self._act("nothing")
        return dict(self.stage.proxy.messages)

    def _drop_all(self) -> None:
        for role in self.stage.path.cuts:
            self.stage.proxy.drop(role)

    async def _trial(self, *cuts: Cut) -> bool:
        """Goes the path with these cuts ahead; if they were not reached, again over new lines: what
        is prepared already is not sent again. Returns whether the first was reached.
        """
        proxy, tally = self.stage.proxy, self.tally
        tally.trials += 1
        proxy.arm(*cuts)
        if cuts[0].what in OPENING:
            proxy.drop(cuts[0].role or "", reset=cuts[0].reset)
        for _ in range(GOES):
            await self._act(" and ".join(map(str, cuts)))
            if cuts[0].what in (*OPENING, *BY_THE_CLOCK) or cuts[0].role == HEART:
                await self._wait_for_fire()
            if proxy.fired:
                break
            proxy.drop(cuts[0].role or "")
        proxy.disarm()
        for cut, _, what in proxy.fired:
            tally.fired[cut.side] += 1
            tally.commits += what == "commit"
        return bool(proxy.fired)

    async def _wait_for_fire(self) -> None:
        """Wait for a cut for some beats: after a lost connection the next takes a moment, and
        hearts and upkeep speak by their rhythm, whatever the path does.
        """
        proxy = self.stage.proxy

        def beats() -> int:
            return sum(kind in ROUND_TRIPS for kind in list(proxy.messages[HEART, "beat"]))

        last = beats() + BEATS_TO_WAIT

        async def has_come() -> bool:
            return bool(proxy.fired) or beats() >= last

        if self.stage.path.has_worker:
            await self.stage.until(has_come)

    async def _act(self, cut: str) -> None:
        key = f"{self.stage.path.name}/{len(self.keys)}"
        self.keys[key] = cut
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await self.stage.path.act(self.stage, key)
        except TimeoutError:
            self.tally.wrong.append(f"{key} hangs: {cut}: {await self._where(key)}")
        except Exception as error:
            logging.getLogger("wirecut").debug("%s", key, exc_info=error)
            self.tally.wrong.append(f"{key}: {type(error).__qualname__}: {error}: {cut}")

    async def _where(self, key: str) -> str:
        return str(
            await self.stage.rows(
                "select key, status, reason from pgflow.runs where starts_with(key, %s)", key
            )
        )

    async def _is_whole(self) -> None:
        """Afterwards every connection of the pools works, and the worker still serves."""
        stage = self.stage
        if stage.app._on_loops:
            await stage.settled()
            keys = await stage.rows("select key from pgflow.run_key limit 1")
            answers = await asyncio.gather(
                *(stage.app.get(key, single).status() for (key,) in keys * 8),
                return_exceptions=True,
            )
            self.tally.wrong += [
                f"a connection of the pool is broken: {a}"
                for a in answers
                if isinstance(a, BaseException)
            ]
        if stage.path.has_worker and stage.worker.failed.is_set():
            self.tally.wrong.append("the worker has failed")


async def enumerate_paths(
    server_dsn: str, percent: int, seed: int, names: Sequence[str] | None = None
) -> list[Tally]:
    """Goes these paths, some at a time.

    Args:
        percent: Share of the cuts that is made, drawn by the seed. Above a hundred so many pairs of
            cuts are made too.
    """
    loop_thread = Portal()
    template = servers.create_database(server_dsn)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(path: Path) -> Tally:
        async with turns:
            rng = random.Random(f"{seed} {path.name} prepared")
            stage = Stage(path, server_dsn, template, loop_thread, rng.choice((None, 3)))
            await stage.open()
            try:
                return await Enumeration(stage, seed, percent).run()
            finally:
                await stage.close()

    upkeep = pgflow._worker.upkeep
    clock = upkeep.STRAYS_EVERY_SECONDS, upkeep.PARTITIONS_EVERY_SECONDS, upkeep.SEALING_OFF_SECONDS
    upkeep.STRAYS_EVERY_SECONDS = upkeep.SEALING_OFF_SECONDS = 0.2
    upkeep.PARTITIONS_EVERY_SECONDS = 0.5
    try:
        dsn = servers.dsn_of(server_dsn, template)
        servers.install_schema(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(SCHEMA)
        longest_first = [PATHS[name] for name in names or PATHS][::-1]
        tallies = await asyncio.gather(*(one(path) for path in longest_first))
        return tallies[::-1]
    finally:
        upkeep.STRAYS_EVERY_SECONDS, upkeep.PARTITIONS_EVERY_SECONDS, upkeep.SEALING_OFF_SECONDS = (
            clock
        )
        servers.drop_database(server_dsn, template)
        loop_thread.close()


def findings_of(tallies: list[Tally], seed: int, *, is_all: bool = True) -> Findings:
    """Return the paths' evidence for each promise.

    Args:
        is_all: True if all messages were to be cut, so that most must have been. Of a share, one
            on every path must.
    """
    findings = Findings("wire cuts", seed)
    counted: set[str] = set()
    for guarantee, fault in FAULTS.items():
        of = [t for t in tallies if guarantee in t.promises]
        cuts = {t.path: t.commits if guarantee == "G3" else t.fired.total() for t in of}
        own = sum(n for name, n in cuts.items() if name not in counted)
        shared = sum(cuts.values()) - own
        counted |= cuts.keys()
        figure = (
            f"{sum(t.in_progress for t in of)} times in progress, and waited out"
            if guarantee == "G3"
            else f"{len(of)} paths"
        )
        wrong = tuple(f"{t.path}: {w}" for t in of for w in t.wrong)
        findings.evidence.append(
            Evidence(
                guarantee,
                fault,
                own,
                sum(t.lost for t in of),
                sum(t.doubled for t in of),
                wrong,
                figure,
                shared,
            )
        )
    for t in tallies:
        for side in t.planned:
            least = t.planned[side] * 9 // 10 if is_all else 0
            findings.fired[f"{t.path}, {side}"] = (t.fired[side], least)
        findings.fired[t.path] = (t.fired.total(), 1)
    slow = [t.in_progress for t in tallies if t.path.startswith("commit in progress")]
    findings.fired["commits found in progress"] = (sum(slow), int(is_all))
    return findings


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """Cuts at so many percent of the messages of every path."""
    tallies = asyncio.run(enumerate_paths(server_dsn, amount, seed))
    return findings_of(tallies, seed, is_all=amount >= EVERY_CUT)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="a superuser's; databases are made beside its own")
    parser.add_argument(
        "--percent", type=int, default=EVERY_CUT, help="of the cuts; above a hundred, pairs of them"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--path", action="append", help="only the paths whose names contain this")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("pgflow").setLevel(logging.DEBUG if options.verbose else logging.CRITICAL)
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.ERROR,
        format="%(asctime)s %(name)s %(message)s",
    )
    names = [
        name for name in PATHS if not options.path or any(part in name for part in options.path)
    ]
    tallies = asyncio.run(enumerate_paths(options.dsn, options.percent, options.seed, names))
    findings = findings_of(tallies, options.seed, is_all=options.percent >= EVERY_CUT)
    for t in tallies:
        cuts = ", ".join(f"{n} {side}" for side, n in sorted(t.fired.items()))
        print(
            f"{t.path:50} {t.messages:4} messages  {cuts:40} again {t.said_again:4}  lost {t.lost} "
            f"doubled {t.doubled}"
        )
    for e in findings.evidence:
        print(
            f"{e.guarantee:4} {e.fault}: {e.runs} cuts, lost {e.lost}, doubled {e.doubled}, "
            f"{e.figure}"
        )
    print(
        f"{len(tallies)} paths, {sum(t.messages for t in tallies)} messages, "
        f"{sum(t.fired.total() for t in tallies)} cuts"
    )
    wrong = [f"{t.path}: {w}" for t in tallies for w in t.wrong]
    for line in wrong[:100]:
        print(f"FAILED {line}")
    for line in findings.void:
        print(f"VOID {line}")
    for t in tallies:
        for line in t.missed:
            print(f"not reached: {t.path}: {line}")
    return 1 if wrong or findings.void else 0


if __name__ == "__main__":
    sys.exit(main())
