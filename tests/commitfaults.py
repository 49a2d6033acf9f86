"""Has COMMIT itself fail on every path through the API: `python -m tests.commitfaults DSN
[--refusals N] [--seed S] [--path NAME]`.

The server says that a statement is complete and commits only then. What it raises at that moment
comes behind the answer, and an engine that stops reading there takes a failed commit for a commit.
A deferred constraint trigger on every table of the engine raises it: each SQLSTATE below, or the
end of the session, in the n-th transaction of a role that writes; the path is gone until that one
has come. The paths are those of `tests/kits/wirepaths.py`, and so are the judges: the work of each
key must be done, once, and nothing of the fault may be in a journal.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import psycopg

import pgflow._worker.upkeep
from pgflow.app._sync import Portal
from tests.kits import servers
from tests.kits.evidence import Evidence, Findings
from tests.kits.wirepaths import HEART, PATHS, SCHEMA, Path, Stage, judge
from tests.wirecut import AT_ONCE, GOES, HANG_SECONDS

ENDS_SESSION = "ends"
REFUSALS = ("40001", "40P01", "53100", "53200", "55P03", "57P01", "08006", ENDS_SESSION)
"""Raised by COMMIT: the conflicts of isolation levels and deferred constraints, a server without
room, one that stops.
"""
LATEST = 4
"""The last commit of a role that is refused: by then each has done what it does on a path."""
MOST_ACTS = 100
"""Acts at most until a worker that lives for one of them has beaten."""

REFUSING = """
create sequence app.commits;
create sequence app.refusals;
create table app.refusal (role text primary key, nth bigint not null, sqlstate text not null);
create table app.committed (role text not null);
grant usage on schema app to public;  -- since Postgres 18 a deferred trigger runs as whoever queued it: the engine's owner
create function app.refuse() returns trigger language plpgsql security definer as $$
declare
  here text := current_setting('application_name');
  refusal app.refusal;
begin
  if current_setting('app.asked', true) = pg_current_xact_id()::text then
    return null;  -- once a transaction
  end if;
  perform set_config('app.asked', pg_current_xact_id()::text, true);
  if exists (select from app.refusal r where r.sqlstate = 'count') then
    insert into app.committed values (here);
    return null;
  end if;
  select * into refusal from app.refusal r where r.role = here;
  if not found or nextval('app.commits') <> refusal.nth then
    return null;
  end if;
  perform nextval('app.refusals');
  if refusal.sqlstate = 'ends' then
    perform pg_terminate_backend(pg_backend_pid());
    return null;
  end if;
  raise exception using errcode = refusal.sqlstate, message = 'refused at COMMIT';
end $$;
do $$
declare
  t regclass;
begin
  for t in
    select c.oid from pg_class c where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'r'
    and c.relname not in ('migration', 'source')
  loop
    execute format('create constraint trigger refused after insert or update or delete on %s
      deferrable initially deferred for each row execute function app.refuse()', t);
  end loop;
end $$;
"""

FAULTS = {
    "G1": "COMMIT itself refused around a step", "G2": "COMMIT itself refused: rows whose step is "
                                                       "not recorded",
    "G3": "COMMIT itself refused: a failed commit is not taken for one", "G4": "COMMIT of a start refused, said again under its key",
    "G5": "COMMIT of a caller's transaction refused", "G10": "each SQLSTATE raised by COMMIT itself",
}  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """The n-th commit of a role that raises this."""

    role: str
    nth: int
    sqlstate: str

    def __str__(self) -> str:
        return f"{self.sqlstate} at commit {self.nth} of {self.role}"


@dataclass
class Tally:
    """Tally of one path."""

    path: str
    promises: tuple[str, ...]
    planned: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)


class Refusing:
    """One path, with commits of its roles refused."""

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self.stage = stage
        self.tally = Tally(stage.path.name, stage.path.promises)
        self._rng = rng
        self._keys: dict[str, str] = {}

    async def run(self, refusals: int) -> Tally:
        """Make so many refusals: of each role and of each SQLSTATE about as many."""
        await self._act("nothing")
        roles = await self._writers()
        self.tally.planned = refusals
        for number in range(refusals):
            if number % len(REFUSALS) == 0:
                states = self._rng.sample(REFUSALS, len(REFUSALS))
            await self._trial(
                Refusal(
                    roles[number % len(roles)],
                    self._rng.randint(1, LATEST),
                    states[number % len(REFUSALS)],
                )
            )
        verdict = await judge(self.stage, self._keys)
        self.tally.lost, self.tally.doubled = verdict.lost, verdict.doubled
        self.tally.wrong += verdict.wrong
        return self.tally

    async def _writers(self) -> list[str]:
        """Return the roles that the path is about and that commit on it, as the trigger sees."""
        await self.stage.direct.execute("insert into app.refusal values ('', 0, 'count')")
        await self._act("nothing, counted")
        if HEART in self.stage.path.cuts:
            await self._beaten("nothing, counted", self._heart_has_written)
        await self.stage.direct.execute("delete from app.refusal")
        rows = await self.stage.rows("select distinct role from app.committed order by role")
        return [role for (role,) in rows if role and role in self.stage.path.cuts]

    async def _beaten(self, what: str, is_done: Callable[[], Awaitable[bool]]) -> None:
        """Wait for what heartbeats do. Where workers live for one act only, act again: one may be
        over before its first beat.
        """
        if self.stage.path.has_worker:
            await self.stage.until(is_done)
        for _ in range(MOST_ACTS):
            if await is_done():
                return
            await self._act(what)

    async def _heart_has_written(self) -> bool:
        return bool(await self.stage.rows("select from app.committed where role = %s", HEART))

    async def _count_refusals(self) -> int:
        sql = "select last_value + is_called::int from app.refusals"
        return int((await self.stage.rows(sql))[0][0])

    async def _trial(self, refusal: Refusal) -> None:
        rows = self.stage.rows
        before = await self._count_refusals()

        async def is_refused() -> bool:
            return await self._count_refusals() > before

        await rows(
            "with reset as (select setval('app.commits', 1, false)) insert into app.refusal "
            "select %s, %s, %s from reset returning 1",
            refusal.role,
            refusal.nth,
            refusal.sqlstate,
        )
        for _ in range(GOES):
            await self._act(str(refusal))
            if refusal.role == HEART:
                await self._beaten(str(refusal), is_refused)
            if await is_refused():
                self.tally.refused[refusal.sqlstate] += 1
                break
        await rows("delete from app.refusal returning 1")

    async def _act(self, what: str) -> None:
        key = f"{self.stage.path.name}/{len(self._keys)}"
        self._keys[key] = what
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await self.stage.path.act(self.stage, key)
        except TimeoutError:
            where = await self.stage.rows(
                "select key, status, reason from pgflow.runs where starts_with(key, %s)", key
            )
            self.tally.wrong.append(f"{key} hangs: {what}: {where}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.tally.wrong.append(f"{key}: {type(error).__qualname__}: {error}: {what}")


async def refuse_on_paths(
    server_dsn: str, refusals: int, seed: int, names: Sequence[str] | None = None
) -> list[Tally]:
    """Goes these paths, some at a time, with so many refusals each."""
    portal = Portal()
    template = servers.create_database(server_dsn)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(path: Path) -> Tally:
        async with turns:
            rng = random.Random(f"{seed} {path.name}")
            stage = Stage(path, server_dsn, template, portal, rng.choice((None, 3)))
            await stage.open()
            try:
                return await Refusing(stage, rng).run(refusals)
            finally:
                await stage.close()

    strays = pgflow._worker.upkeep.STRAYS_EVERY_SECONDS
    pgflow._worker.upkeep.STRAYS_EVERY_SECONDS = 0.2
    try:
        dsn = servers.dsn_of(server_dsn, template)
        servers.install_schema(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(SCHEMA)
            conn.execute(REFUSING)
        paths = [
            path
            for name, path in PATHS.items()
            if (names is None or name in names) and name not in UNWRITTEN
        ]
        return list(await asyncio.gather(*(one(path) for path in paths)))
    finally:
        pgflow._worker.upkeep.STRAYS_EVERY_SECONDS = strays
        servers.drop_database(server_dsn, template)
        portal.close()


UNWRITTEN = ("result",)
"""Paths that are about connections which only read."""


def findings_of(tallies: list[Tally], seed: int) -> Findings:
    """Return the paths' evidence for each promise."""
    findings = Findings("commit faults", seed)
    counted: set[str] = set()
    for guarantee, fault in FAULTS.items():
        of = [t for t in tallies if guarantee in t.promises]
        wrong = tuple(f"{t.path}: {w}" for t in of for w in t.wrong)
        own = sum(t.refused.total() for t in of if t.path not in counted)
        shared = sum(t.refused.total() for t in of) - own
        counted |= {t.path for t in of}
        lost, doubled = sum(t.lost for t in of), sum(t.doubled for t in of)
        findings.evidence.append(
            Evidence(guarantee, fault, own, lost, doubled, wrong, f"{len(of)} paths", shared)
        )
    for t in tallies:
        findings.fired[f"commits refused: {t.path}"] = (t.refused.total(), t.planned)
    refused = sum((t.refused for t in tallies), Counter[str]())
    for sqlstate in REFUSALS:
        findings.fired[f"commits refused with {sqlstate}"] = (refused[sqlstate], 1)
    return findings


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """Refuses so many commits on every path."""
    return findings_of(asyncio.run(refuse_on_paths(server_dsn, amount, seed)), seed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="a superuser's; databases are made beside its own")
    parser.add_argument("--refusals", type=int, default=64, help="on each path")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--path", action="append", help="only the paths whose names contain this")
    options = parser.parse_args()
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("pgflow").setLevel(logging.CRITICAL)
    names = [
        name for name in PATHS if not options.path or any(part in name for part in options.path)
    ]
    tallies = asyncio.run(refuse_on_paths(options.dsn, options.refusals, options.seed, names))
    findings = findings_of(tallies, options.seed)
    for t in tallies:
        print(
            f"{t.path:50} {t.planned:4} planned  {t.refused.total():4} refused  lost {t.lost} "
            f"doubled {t.doubled}"
        )
    wrong = [f"{t.path}: {w}" for t in tallies for w in t.wrong]
    for line in wrong[:100]:
        print(f"FAILED {line}")
    for line in findings.void:
        print(f"VOID {line}")
    print(f"{len(tallies)} paths, {sum(t.refused.total() for t in tallies)} commits refused")
    return 1 if wrong or findings.void else 0


if __name__ == "__main__":
    sys.exit(main())
