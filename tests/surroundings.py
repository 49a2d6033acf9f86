"""Programs and crashes once more, by workers whose role has settings of its own, or who come
through a pooler.

Whatever a role's time-outs, levels, styles and encodings are, random programs (`tests.programs`)
under kills come to what a plain interpreter says, and jobs killed at named points (`tests.crashes`)
are done once: nothing is stuck, nothing has failed. Those who look on and judge come as themselves.

`python -m tests.surroundings DSN [--seed S] [--only NAME]... [--programs N] [--kills N]` plays each
once; DSN is a superuser's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent))

from collections.abc import Iterator

import crashes
import programs
import servers
from evidence import Evidence, Findings
from poolers import bouncer

POOLER = "PgBouncer in transaction mode"

SETTINGS: dict[str, dict[str, str]] = {
    "statement_timeout": {"statement_timeout": "250"},
    "lock_timeout": {"lock_timeout": "20"},
    "idle_in_transaction_session_timeout": {"idle_in_transaction_session_timeout": "150"},
    "idle_session_timeout": {"idle_session_timeout": "300"},
    "transaction_timeout": {"transaction_timeout": "1000"},
    "all time-outs": {"statement_timeout": "400", "lock_timeout": "50",
        "idle_in_transaction_session_timeout": "300", "idle_session_timeout": "500"},
    "serializable": {"default_transaction_isolation": "serializable",
        "default_transaction_deferrable": "on"},
    "repeatable read": {"default_transaction_isolation": "repeatable read"},
    "read only": {"default_transaction_read_only": "on"},
    "row_security": {"row_security": "off"},
    "search_path": {"search_path": "nowhere"},
    "jit": {"jit": "on", "jit_above_cost": "0", "jit_inline_above_cost": "0",
        "jit_optimize_above_cost": "0"},
    "times": {"timezone": "Pacific/Apia", "datestyle": "SQL, DMY", "intervalstyle": "sql_standard",
        "extra_float_digits": "-10"},
    "strings": {"standard_conforming_strings": "off", "backslash_quote": "off",
        "array_nulls": "off", "bytea_output": "escape"},
    "client_encoding": {"client_encoding": "LATIN1"},
    "plans": {"enable_indexscan": "off", "enable_nestloop": "off",
        "enable_partition_pruning": "off", "constraint_exclusion": "off"},
}  # fmt: skip
"""Settings of the role that the workers are."""

SURROUNDINGS = (POOLER, *SETTINGS)
HARMS = {"kill": 2, "freeze": 1, "cut": 1}
"""Harm that is done to the workers of the programs."""
SINCE = {"transaction_timeout": 17}
"""Settings that older servers do not have."""

ROLE = """
create role {role} login password {password};
grant pgflow_worker, pgflow_client to {role};
alter default privileges grant usage on schemas to {role};
alter default privileges grant all on tables to {role};
"""


@dataclass
class Played:
    """Result of one: programs and jobs, transactional steps lost and doubled, kills, and
    complaints.
    """

    programs: int = 0
    jobs: int = 0
    lost: int = 0
    doubled: int = 0
    kills: int = 0
    wrong: tuple[str, ...] = ()


@contextlib.contextmanager
def surrounded(server_dsn: str, name: str) -> Iterator[tuple[str, str]]:
    """A database with the schema: the DSN of those who look on, and that of the workers."""
    role, password = f"pgflow_test_{secrets.token_hex(5)}", secrets.token_urlsafe()
    database = servers.create_database(server_dsn)
    dsn = servers.dsn_of(server_dsn, database)
    try:
        servers.install_schema(dsn)
        with psycopg.connect(dsn, autocommit=True) as admin:
            for statement in ROLE.strip().split(";\n"):
                text = statement.removesuffix(";")
                admin.execute(
                    sql.SQL(text).format(role=sql.Identifier(role), password=sql.Literal(password))
                )  # type: ignore[arg-type]
            for setting, value in SETTINGS.get(name, {}).items():
                admin.execute(
                    sql.SQL("alter role {} set {} = {}").format(
                        sql.Identifier(role), sql.Identifier(setting), _value(value)
                    )
                )
        theirs = servers.dsn_of(make_conninfo(server_dsn, user=role, password=password), database)
        with (
            bouncer(theirs, "transaction")
            if name == POOLER
            else contextlib.nullcontext(theirs) as workers_dsn
        ):
            yield dsn, workers_dsn
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (role,)
            )
            admin.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)))
        servers.drop_database(server_dsn, database)


def _value(text: str) -> sql.Composable:
    """A list of names is a list, not a name with a comma in it."""
    return sql.SQL(", ").join(sql.Literal(part.strip()) for part in text.split(","))


def play(server_dsn: str, name: str, seed: int, count: int, kills: int) -> Played:
    """So many programs, then jobs with so many kills at each point, in one surrounding."""
    played = Played(programs=count)
    with surrounded(server_dsn, name) as (dsn, workers_dsn):
        seeds = list(range(seed * 1000, seed * 1000 + count))
        wrong = programs.run_under_harm(dsn, seeds, HARMS, workers_dsn)
        played.kills = HARMS["kill"]
        played.wrong += tuple(wrong)
    with surrounded(server_dsn, name) as (dsn, workers_dsn):
        os.environ["CRASH_DSN"] = dsn
        figures = crashes.Driver(dsn, kills, seed, workers_dsn=workers_dsn).run()
        with psycopg.connect(dsn, autocommit=True) as conn:
            query = "select format('%s is %s: %s', key, status, coalesce(reason, error->>'message')) from pgflow.runs where status <> 'completed' limit 3"
            played.wrong += tuple(line for (line,) in conn.execute(query))
        played.jobs, played.lost, played.doubled = (
            figures["runs"],
            figures["lost"],
            figures["doubled"],
        )
        played.kills += sum(figures["kills"].values())
        played.wrong += tuple(
            line for line in crashes.verdict(figures) if not line.startswith(("lost", "doubled"))
        )
    played.wrong = tuple(f"{name}: {line}" for line in played.wrong)
    return played


def playable(server_dsn: str) -> list[str]:
    """The surroundings that this server and this machine have."""
    with psycopg.connect(server_dsn) as conn:
        major = conn.info.server_version // 10_000
    has_pooler = (
        shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
    )
    return [
        name
        for name in SURROUNDINGS
        if SINCE.get(name, 0) <= major and (has_pooler or name != POOLER)
    ]


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """The pooler and settings in an order of the seed's own, so many in all; then the same with
    other programs.
    """
    names = playable(server_dsn)
    rest = [name for name in names if name != POOLER]
    random.Random(seed).shuffle(rest)
    order = [*(n for n in names if n == POOLER), *rest]
    done = [
        play(server_dsn, order[number % len(order)], seed + number, count=12, kills=1)
        for number in range(amount)
    ]
    fault = "a pooler in transaction mode, and roles with time-outs, levels, styles and encodings of their own, under kills"
    wrong = tuple(line for played in done for line in played.wrong)
    return Findings(
        "surroundings",
        seed,
        [
            Evidence(
                "G10",
                fault,
                sum(p.programs + p.jobs for p in done),
                sum(p.lost for p in done),
                sum(p.doubled for p in done),
                wrong,
                "nothing stuck, nothing failed",
            )
        ],
        {"surroundings": (len(done), amount), "kill": (sum(p.kills for p in done), len(done))},
    )


def main() -> int:
    """Plays and prints a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="a superuser's; databases and roles are made there and dropped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only",
        action="append",
        choices=SURROUNDINGS,
        help="only this one; may be given several times",
    )
    parser.add_argument("--programs", type=int, default=60, help="programs in each")
    parser.add_argument(
        "--kills", type=int, default=5, help="times that each point of a crash must fire in each"
    )
    options = parser.parse_args()
    names = [name for name in playable(options.dsn) if not options.only or name in options.only]
    broken = 0
    for name in names:
        played = play(options.dsn, name, options.seed, options.programs, options.kills)
        is_broken = bool(played.wrong or played.lost or played.doubled)
        broken += is_broken
        print(
            f"{'NO' if is_broken else 'ok'} {name}: {played.programs} programs, {played.jobs} "
            f"jobs, {played.kills} kills, {played.lost} lost, {played.doubled} doubled",
            flush=True,
        )
        for line in played.wrong:
            print(f"     {line}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
