"""Installing and upgrading the schema: what `migrate` promises to whoever runs it, however it ends.

Tests about roles need a cluster that has never seen pgflow, since roles are cluster-wide:
`bare_dsn`.
"""

from __future__ import annotations

import re
import secrets
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
import servers
from catalog import dump_catalog, touched
from ownserver import OwnServer
from psycopg import IsolationLevel, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from pytest_postgresql import factories

from pgflow import errors, schema
from pgflow.doctor.finding import Patient, findings_of
from pgflow.doctor.schema import check_privileges
from pgflow.errors import (
    SchemaForeign,
    SchemaMissing,
    SchemaNewer,
    SchemaOutdated,
    ServerUnsupported,
    SetupError,
)
from pgflow.schema import _install
from pgflow.schema._shapes import headers, names_gone
from tools import generate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANSWERERS = ("pgflow_approver", "pgflow_speaker")
"""They see what an auditor sees."""
READERS = (
    "pgflow_client", "pgflow_worker", "pgflow_operator", "pgflow_auditor", "pgflow_declarer",
    *ANSWERERS, "pgflow_tenant",
)  # fmt: skip
ROLES = ("pgflow_owner", *READERS)


def connect(dsn: str, **parts: str) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(dsn, **parts), autocommit=True)


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[psycopg.Connection]:
    with connect(empty_dsn) as conn:
        yield conn


@pytest.fixture
def installed(server_dsn: str, template: str, empty_dsn: str) -> Iterator[psycopg.Connection]:
    """The database as `migrate` leaves it: a copy, which costs a tenth of another installation."""
    name = str(conninfo_to_dict(empty_dsn)["dbname"])
    servers.drop_database(server_dsn, name)
    servers.create_database(server_dsn, template, name)
    with connect(empty_dsn) as conn:
        yield conn


bare_proc = factories.postgresql_proc(
    password=secrets.token_urlsafe(), postgres_options=servers.POSTGRES_OPTIONS
)


@pytest.fixture(scope="session")
def private_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """A server of our own, even if the other tests share one."""
    request.config.option.postgresql_exec = str(
        servers.write_pg_ctl(tmp_path_factory.mktemp("bin"))
    )
    request.config.option.postgresql_unixsocketdir = str(tmp_path_factory.mktemp("run"))
    process = request.getfixturevalue("bare_proc")
    return make_conninfo(
        host=process.host,
        port=process.port,
        user=process.user,
        password=process.password,
        dbname="postgres",
    )


@pytest.fixture
def bare_dsn(private_cluster: str) -> Iterator[str]:
    """Database `app` of a cluster that has only its superuser `postgres`, as that superuser."""
    with connect(private_cluster) as admin:
        admin.execute("create database app")
        yield make_conninfo(private_cluster, dbname="app")
        for (name,) in admin.execute(
            "select datname from pg_database where not datistemplate and datname <> 'postgres'"
        ).fetchall():
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
        for (name,) in admin.execute(
            "select rolname from pg_roles where rolname !~ '^pg_' and rolname <> 'postgres'"
        ).fetchall():
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@pytest.fixture
def login(bare_dsn: str) -> Callable[..., str]:
    """Makes a login role in the bare cluster; answers its DSN for the database `app`."""

    def make(name: str, attributes: str = "", *, may_create: bool = True) -> str:
        with connect(bare_dsn) as admin:
            admin.execute(f"create role {name} login password '{admin.info.password}' {attributes}")
            if may_create:
                admin.execute(f"grant create on database app to {name}")
        return make_conninfo(bare_dsn, user=name)

    return make


def changed_assets(**texts: str) -> schema.Assets:
    """Our own files, with these texts added to some, which are named without their room (of views:
    `runs_view`): another version's.
    """
    ours = schema.own_assets()
    names = {"runs_view": "views/runs"} | {
        file.name.rpartition("/")[2]: file.name
        for file in ours.sources
        if not file.name.startswith("views/")
    }
    added = {names[name]: text for name, text in texts.items()}
    return ours._replace(
        sources=tuple(
            file._replace(text=file.text + added.get(file.name, "")) for file in ours.sources
        )
    )


def with_migration(text: str) -> schema.Assets:
    ours = schema.own_assets()
    return ours._replace(migrations=(*ours.migrations, schema.SqlFile("9999_next", text)))


def older_assets() -> schema.Assets:
    """An imagined first version: fewer files and in other places, functions with other bodies and
    arguments, other grants.
    """
    ours = schema.own_assets()
    texts = {file.name: file.text for file in ours.sources}
    del texts["ops/check"], texts["runs/wake"]
    texts["core/clock"] = texts["core/clock"].replace("select", "select /* older */")
    texts["runs/result"] = """
        create function pgflow.result(key text, verbose boolean) returns text language sql set search_path = pg_catalog, pg_temp
        as 'select key';
    """
    texts["views/runs"] = re.sub(r"comment on view .*;", "", texts["views/runs"])
    before_the_rooms = (
        schema.SqlFile(name.rpartition("/")[2] if name.startswith("core/") else name, text)
        for name, text in texts.items()
    )
    return schema.Assets("0.0.1", ours.migrations, tuple(before_the_rooms))


def schema_exists(conn: psycopg.Connection) -> bool:
    return conn.execute(
        "select exists (select from pg_namespace where nspname = 'pgflow')"
    ).fetchone()[0]


def owners(conn: psycopg.Connection) -> set[str]:
    """Return the owners of the schema and of everything in it."""
    query = """
        select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'pgflow'
        union select pg_get_userbyid(relowner) from pg_class where relnamespace = 'pgflow'::regnamespace
        union select pg_get_userbyid(proowner) from pg_proc where pronamespace = 'pgflow'::regnamespace
    """
    return {name for (name,) in conn.execute(query)}


def fresh_dump(conn: psycopg.Connection) -> str:
    """The dump of a fresh install, made in place of what is installed."""
    conn.execute("drop schema pgflow cascade")
    schema.migrate(conn)
    return dump_catalog(conn, with_server_details=True)


def versions_of_rows(conn: psycopg.Connection) -> set[tuple]:
    """Return rows that change if any object of the schema is touched."""
    query = """
        select 'pg_namespace'::regclass, oid, xmin::text from pg_namespace where nspname = 'pgflow'
        union all select 'pg_class'::regclass, oid, xmin::text from pg_class where relnamespace = 'pgflow'::regnamespace
        union all select 'pg_proc'::regclass, oid, xmin::text from pg_proc where pronamespace = 'pgflow'::regnamespace
        union all select 'pgflow.source'::regclass, 0, xmin::text from pgflow.source
    """
    return set(conn.execute(query))


def oids(conn: psycopg.Connection) -> dict[str, int]:
    """Return the oid of each function."""
    query = "select oid::regprocedure::text, oid from pg_proc where pronamespace = 'pgflow'::regnamespace"
    return dict(conn.execute(query).fetchall())


@pytest.mark.full
def test_a_fresh_install_fits_this_version_and_its_books_balance(empty):
    report = schema.migrate(empty)
    assert report.migrations == tuple(file.name for file in schema.own_assets().migrations)
    assert report.sources[-1] == "privileges"
    assert not report.already_current
    assert report.advice == ()
    schema.require_schema(empty)
    assert empty.execute("select * from pgflow.check()").fetchall() == []


def test_a_second_run_changes_nothing(installed):
    before = versions_of_rows(installed)
    report = schema.migrate(installed)
    assert report.already_current
    assert (report.migrations, report.sources, report.roles_created) == ((), (), ())
    assert versions_of_rows(installed) == before


@pytest.mark.full
def test_a_connection_that_does_not_autocommit_is_committed(empty_dsn, empty):
    with psycopg.connect(empty_dsn) as conn:
        schema.migrate(conn)
        assert conn.info.transaction_status == TransactionStatus.IDLE
        schema.require_schema(empty)


@pytest.mark.full
def test_migrate_dsn_connects_by_itself(empty_dsn, empty):
    assert not schema.migrate_dsn(empty_dsn).already_current
    schema.require_schema(empty)


def test_a_connection_inside_a_transaction_is_refused(empty):
    with empty.transaction():
        with pytest.raises(SetupError, match="without an open transaction"):
            schema.migrate(empty)
    assert not schema_exists(empty)


@pytest.mark.full
def test_only_changed_files_are_applied_again_and_then_the_privileges(installed):
    newer = changed_assets(clock="\ncomment on function pgflow.now_() is 'changed';\n")
    report = schema.install(installed, newer)
    assert report.sources == ("core/clock", "privileges")
    assert report.migrations == ()
    found = installed.execute("select obj_description('pgflow.now_()'::regprocedure)").fetchone()
    assert found == ("changed",)


@pytest.mark.full
def test_functions_that_are_applied_again_stay_the_same_ones(installed):
    """A call that is planned knows its function by the oid."""
    before = oids(installed)
    schema.install(installed, touched(schema.own_assets()))
    assert oids(installed) == before
    assert len(before) > 200


FORMER_SHAPES = [
    ("drop function pgflow.find_chain; create function pgflow.find_chain(called text, tenant "
        "text default '') returns bigint language sql as 'select 1::bigint'"),
    ("drop function pgflow.find_chain; create function pgflow.find_chain(key text, tenant text "
        "default '') returns int language sql as 'select 1'"),
    ("create function pgflow.find_chain(key text) returns bigint language sql as 'select "
        "1::bigint'"),
    ("create function pgflow.find_chain(key text, tenant text, beyond int default 1) returns "
        "bigint language sql as 'select 1::bigint'"),
    ("drop function pgflow.park_all_; create function pgflow.park_all_(questions jsonb, "
        "positions int[], seqs int[], t timestamptz, out bigint[]) returns bigint[] language sql "
        "as 'select null::bigint[]'"),
    ("drop function pgflow.claim_runs; create function pgflow.claim_runs() returns setof int "
        "language sql as 'select 1'"),
    ("create or replace function pgflow.find_chain(key text, tenant text default '') returns "
        "bigint language sql as 'select 1::bigint'"),
    ("drop function pgflow.register_code; create function pgflow.register_code(worker_id int "
        "default 1, codes jsonb default '[]') returns void language sql as ''"),
]  # fmt: skip
"""Of functions, none of which is in the way of the others of its group."""
GROUPS = [(0, 4), (1, 2, 3, 5), (6, 7)]


@pytest.mark.full
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_functions_of_former_shapes_make_way(installed, group):
    fresh = dump_catalog(installed, with_server_details=True)
    for former in group:
        before = versions_of_rows(installed)
        installed.execute(FORMER_SHAPES[former])
        assert versions_of_rows(installed) != before
    schema.install(installed, touched(schema.own_assets()))
    schema.migrate(installed)
    assert dump_catalog(installed, with_server_details=True) == fresh


@pytest.mark.full
def test_a_function_whose_name_is_gone_makes_way(installed):
    fresh = dump_catalog(installed, with_server_details=True)
    installed.execute(
        "create function pgflow.said_of_update_(payload json) returns json language sql "
        "as 'select payload'; alter function pgflow.said_of_update_ owner to pgflow_owner; "
        "create view public.theirs as select pgflow.said_of_update_('{}')"
    )
    schema.install(installed, changed_assets(clock="\n--! gone said_of_update_\n"))
    schema.migrate(installed)
    assert dump_catalog(installed, with_server_details=True) == fresh
    assert installed.execute("select count(*) from public.theirs").fetchone() == (1,)


def test_no_name_that_is_gone_is_that_of_a_function():
    assets = schema.own_assets()
    gone = {name for file in assets.sources for name in names_gone(file.text)}
    made = {name for file in assets.sources for name, _ in headers(file.text)}
    assert gone.isdisjoint(made)


def test_each_function_of_the_files_has_a_shape_and_no_file_drops_one():
    """A file that drops a function makes those fail that are about to call it:
    `pgflow.schema._shapes` knows when it must.
    """
    for file in schema.own_assets().sources:
        assert len(headers(file.text)) == len(
            re.findall(
                r"(?im)^create\s.*\bfunction\b", file.text
            )  # an indented one is of another schema
        ), file.name
        assert re.search(r"(?im)^\s*drop function", file.text) is None, file.name


@pytest.mark.full
def test_a_new_migration_is_applied_once(installed):
    newer = with_migration("create table pgflow.added (id int);")
    assert schema.install(installed, newer).migrations == ("9999_next",)
    assert schema.install(installed, newer).already_current
    assert installed.execute(
        "select number, name from pgflow.migration where number = 9999"
    ).fetchone() == (9999, "9999_next")


def test_an_error_in_a_file_leaves_everything_as_it_was_and_names_the_file(installed):
    before = versions_of_rows(installed)
    broken = changed_assets(
        clock="\ncomment on function pgflow.now_() is 'changed';\n", wake="\nselect 1 / 0;\n"
    )
    with pytest.raises(psycopg.errors.DivisionByZero) as raised:
        schema.install(installed, broken)
    assert any("sql/runs/wake.sql" in note for note in raised.value.__notes__)
    assert versions_of_rows(installed) == before


def test_an_applied_migration_must_not_change(installed):
    ours = schema.own_assets()
    edited = tuple(file._replace(text=file.text + "-- edited") for file in ours.migrations)
    with pytest.raises(SetupError, match="an applied migration of a release never changes"):
        schema.install(installed, ours._replace(migrations=edited))


@pytest.mark.full
def test_the_hidden_defaults_of_a_session_change_nothing(empty_dsn):
    options = "-c default_transaction_read_only=on -c default_transaction_isolation=serializable -c statement_timeout=1 -c search_path=public"
    with connect(empty_dsn, options=options) as conn:
        assert schema.migrate(conn).migrations
        assert conn.execute("show lock_timeout").fetchone() == ("0",)


@pytest.mark.full
def test_what_others_planted_in_the_search_path_does_not_run(empty_dsn, empty):
    for signature in (
        "obj_description(oid, text)",
        "pg_get_userbyid(oid)",
        "octet_length(text)",
        "clock_timestamp()",
        "json_typeof(json)",
    ):
        empty.execute(
            f"create function public.{signature} returns text language plpgsql as $$ begin raise "
            "'planted'; end $$"
        )
    with connect(empty_dsn, options="-c search_path=public,pg_catalog") as conn:
        schema.migrate(conn)
        schema.require_schema(conn)
        conn.execute("insert into pgflow.queue (queue) values ('q')")


@pytest.mark.full
def test_installers_at_once_take_turns(empty_dsn):
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(schema.migrate_dsn, [empty_dsn] * 4))
    assert sorted(report.already_current for report in reports) == [False, True, True, True]


@pytest.mark.full
def test_an_installer_that_waited_sees_what_the_other_did_at_any_isolation_level(empty_dsn, empty):
    with connect(empty_dsn) as second, ThreadPoolExecutor(1) as pool:
        second.isolation_level = IsolationLevel.SERIALIZABLE
        with empty.transaction():
            empty.execute(schema.migration_sql().removeprefix("begin;").removesuffix("commit;\n"))
            waiting = pool.submit(schema.migrate, second)
            servers.wait_until_blocked(empty_dsn)
        assert waiting.result().already_current


@pytest.mark.full
def test_installers_in_several_databases_make_the_roles_once(bare_dsn):
    with connect(bare_dsn) as admin:
        names = ["app", *(f"app{n}" for n in range(3))]
        for name in names[1:]:
            admin.execute(f"create database {name}")
    with ThreadPoolExecutor(4) as pool:
        reports = list(
            pool.map(schema.migrate_dsn, [make_conninfo(bare_dsn, dbname=name) for name in names])
        )
    assert {report.owner for report in reports} == {"pgflow_owner"}
    assert all(report.advice == () and report.sources for report in reports)


@pytest.mark.full
def test_an_installer_that_waits_too_long_says_that_another_is_at_work(empty_dsn, empty):
    with connect(empty_dsn) as other, other.transaction():
        other.execute("select pg_advisory_xact_lock(%s)", [schema.LOCK_KEY])
        with pytest.raises(SetupError, match="another `pgflow migrate` is at work"):
            schema.migrate(empty, lock_timeout_seconds=0.02)
    assert schema.migrate(empty).migrations


def test_an_upgrade_gives_up_on_what_a_transaction_uses_and_says_whose_it_is(installed, empty_dsn):
    before = versions_of_rows(installed)
    with (
        connect(empty_dsn, application_name="report") as reader,
        reader.transaction(),
        connect(empty_dsn, application_name="comes and goes") as younger,
        younger.transaction(),
    ):
        reader.execute("select from pgflow.runs")
        younger.execute("select from pgflow.own_runs")
        pid = reader.info.backend_pid
        with pytest.raises(
            SetupError,
            match="another transaction uses pgflow.own_runs, which must change: session .*comes and goes",
        ) as refused:
            schema.install(installed, changed_assets(runs_view="\n-- changed\n"), 0.02)
    assert f"{pid} of postgres (report)" in str(refused.value)
    assert versions_of_rows(installed) == before


NEXT = """
alter table pgflow.run add column next_note text;
alter table pgflow.signal add column next_note text;
create index next_idx on pgflow.unit (recorded_at);
drop index pgflow.queue_change_idx;
update pgflow.queue set max_running = max_running;
create table pgflow.next_fact (n int);
create index next_fact_idx on pgflow.next_fact (n);
comment on column pgflow.lock.key is 'The key';
"""
LOCK_MODES = (
    "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock",
    "AccessExclusiveLock",
)  # fmt: skip
LOCKED = """
select c.relname, l.mode from pg_locks l join pg_class c on c.oid = l.relation
where l.pid = pg_backend_pid() and c.relnamespace = 'pgflow'::regnamespace and l.granted
  and c.relkind in ('r', 'p', 'v') and l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
"""


def test_all_locks_of_an_upgrade_are_taken_before_its_first_change(installed):
    """Of relations that were there before, as others can hold locks on no others."""
    files = touched(with_migration(NEXT))
    there = {
        name for (name,) in installed.execute("select relname from pg_class where relkind <> 'i'")
    }
    with installed.transaction(force_rollback=True):
        cursor = installed.cursor()
        installed.execute("set local search_path = pg_catalog, pg_temp")
        found = _install._look(cursor, files)
        installed.execute(_install._prologue(found))
        scripts = _install._find_pending(cursor, found, files).scripts(files)
        installed.execute(next(scripts))
        taken = set(installed.execute(LOCKED).fetchall())
        for script in scripts:
            installed.execute(script.encode())
        held = {lock for lock in installed.execute(LOCKED).fetchall() if lock[0] in there}
    assert {
        ("run", "AccessExclusiveLock"),
        ("unit_0", "ShareLock"),
        ("queue", "ExclusiveLock"),
        ("queue_change", "AccessExclusiveLock"),
        ("lock", "ShareUpdateExclusiveLock"),
        ("runs", "AccessExclusiveLock"),
    } <= taken
    assert {
        (name, mode)
        for name, mode in held
        if not any(
            of == name and LOCK_MODES.index(other) >= LOCK_MODES.index(mode) for of, other in taken
        )
    } == set()


@pytest.mark.parametrize(
    "of_both",
    [
        "run signal",
        *(
            pytest.param(both, marks=pytest.mark.full)
            for both in ("signal run", "runs queues", "queues runs")
        ),
    ],
)
def test_an_upgrade_never_closes_a_circle_of_waits(installed, empty_dsn, of_both):
    """The application holds one and wants the other, again and again, and looks for circles at
    once: it would be the victim of each.
    """
    held, wanted = of_both.split()
    lock = {
        name: f"select from pgflow.{name}"
        if name.endswith("s")
        else f"lock table pgflow.{name} in row exclusive mode"
        for name in (held, wanted)
    }
    files = with_migration("alter table pgflow.run add a int; alter table pgflow.signal add a int;")
    with ThreadPoolExecutor(1) as pool, connect(empty_dsn) as application:
        application.execute("set deadlock_timeout = '1ms'")
        with application.transaction():
            application.execute(lock[held])
            installing = pool.submit(schema.install, installed, touched(files))
            waits = 0
            while waits < 5:
                with application.transaction(force_rollback=True):
                    began = application.execute("select clock_timestamp()").fetchone()[0]
                    application.execute(lock[wanted])
                    ended = application.execute("select clock_timestamp()").fetchone()[0]
                waits += (ended - began).total_seconds() > 0.001
                assert not installing.done()
        assert installing.result(60).migrations == ("9999_next",)
    assert installed.execute(
        "select deadlocks from pg_stat_database where datname = current_database()"
    ).fetchone() == (0,)


@pytest.mark.full
@pytest.mark.parametrize("has_older", [False, True], ids=["installing", "upgrading"])
def test_an_installer_that_is_killed_midway_leaves_nothing_and_can_be_run_again(
    empty_dsn, empty, has_older
):
    if has_older:
        schema.install(empty, changed_assets(partition="\n-- older\n", clock="\n-- older\n"))
    before = dump_catalog(empty, with_server_details=True) if has_older else None
    if has_older:
        empty.execute(servers.MIDWAY.format(""))
    else:  # there is no secret yet of which the number of that lock is made
        empty.execute("select pg_advisory_lock(4711)")
        empty.execute(
            "create function public.stop() returns event_trigger language plpgsql as "
            "'begin perform pg_advisory_lock(4711); end'"
        )
        empty.execute(
            "create event trigger stop on ddl_command_start when tag in ('CREATE VIEW') "
            "execute function public.stop()"
        )
    script = "import sys; from pgflow import schema; schema.migrate_dsn(sys.argv[1])"
    installer = subprocess.Popen([sys.executable, "-c", script, empty_dsn])
    servers.wait_until_blocked(empty_dsn)
    installer.send_signal(signal.SIGKILL)
    installer.wait()
    if not has_older:
        empty.execute("drop event trigger stop")
    empty.execute("select pg_advisory_unlock_all()")

    assert schema_exists(empty) == has_older
    report = schema.migrate(empty)
    assert report.sources
    assert before in (None, dump_catalog(empty, with_server_details=True))
    assert schema.migrate(empty).already_current
    assert empty.execute("select * from pgflow.check()").fetchall() == []


def forbidden_everywhere(conn: psycopg.Connection, error: type[Exception], match: str) -> None:
    for call in (schema.migrate, schema.migration_sql, schema.require_schema):
        with pytest.raises(error, match=match):
            call(conn)


def test_a_schema_of_somebody_else_is_refused(empty):
    empty.execute("create schema pgflow")
    forbidden_everywhere(empty, SchemaForeign, "is not of pgflow-engine")
    empty.execute("create table pgflow.migration (number int)")
    forbidden_everywhere(empty, SchemaForeign, "is not of pgflow-engine")
    assert empty.execute(
        "select count(*) from pg_class where relnamespace = 'pgflow'::regnamespace"
    ).fetchone() == (1,)


def test_a_mark_on_something_else_than_our_table_does_not_count(empty):
    empty.execute(
        "create schema pgflow; create view pgflow.migration as select 1; comment on view "
        "pgflow.migration is 'pgflow-engine marker'"
    )
    forbidden_everywhere(empty, SchemaForeign, "is not of pgflow-engine")


def test_a_database_without_the_schema_says_to_migrate(empty):
    with pytest.raises(SchemaMissing, match="run `pgflow migrate`"):
        schema.require_schema(empty)


@pytest.mark.full
def test_an_older_schema_says_to_migrate(empty):
    schema.install(empty, older_assets())
    with pytest.raises(SchemaOutdated, match="run `pgflow migrate`"):
        schema.require_schema(empty)


def test_a_schema_without_its_stamp_says_to_migrate_and_gets_it_back(installed):
    installed.execute("comment on schema pgflow is 'flows of the payroll'")
    with pytest.raises(SchemaOutdated):
        schema.require_schema(installed)
    assert schema.migrate(installed).sources == ("privileges",)
    schema.require_schema(installed)


@pytest.mark.full
def test_a_newer_schema_is_never_migrated_but_serves_an_older_worker(empty):
    schema.install(empty, with_migration("create table pgflow.added (id int);"))
    with pytest.raises(SchemaNewer, match="upgrade pgflow-engine"):
        schema.migrate(empty)
    schema.require_schema(empty)


@pytest.mark.full
def test_a_breaking_migration_stops_older_workers_too(empty):
    schema.install(
        empty, with_migration("--! breaking-change\ncreate table pgflow.added (id int);")
    )
    forbidden_everywhere(empty, SchemaNewer, "upgrade pgflow-engine")


@pytest.mark.full
def test_a_newer_release_without_a_migration_is_newer_all_the_same(empty):
    schema.install(empty, changed_assets(clock="\n-- newer\n")._replace(version="999.0"))
    with pytest.raises(SchemaNewer, match="upgrade pgflow-engine"):
        schema.migrate(empty)
    schema.require_schema(empty)


@pytest.mark.full
def test_a_migration_that_nobody_knows_is_newer_even_if_the_stamp_is_lost(empty):
    schema.install(empty, with_migration("create table pgflow.added (id int);"))
    empty.execute("comment on schema pgflow is null")
    with pytest.raises(SchemaNewer, match="9999_next"):
        schema.migrate(empty)


def test_a_server_that_is_too_old_is_refused(empty):
    row = empty.execute(schema.SCHEMA_QUERY).fetchone()
    with pytest.raises(ServerUnsupported, match="Postgres 14: pgflow needs 15 or newer"):
        schema.judge_schema((140011, *row[1:]))


def test_any_role_can_ask_whether_the_schema_fits(installed):
    with installed.transaction(force_rollback=True):
        installed.execute("create role h_nobody; set local role h_nobody")
        schema.require_schema(installed)


def run_script(dsn: str, script: str) -> None:
    psql = [servers.find_test_programs() / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn]
    subprocess.run(psql, input=script, text=True, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.full
def test_the_script_for_a_new_database_installs_the_same_schema(empty_dsn, empty):
    run_script(empty_dsn, schema.migration_sql())
    schema.require_schema(empty)
    assert schema.migrate(empty).already_current
    assert dump_catalog(empty, with_server_details=True) == fresh_dump(empty)


@pytest.mark.full
def test_the_script_for_an_older_database_holds_what_is_pending_and_changes_nothing_by_itself(
    empty_dsn, empty
):
    schema.install(empty, changed_assets(clock="\ncomment on function pgflow.now_() is 'older';\n"))
    before = versions_of_rows(empty)
    with empty.transaction():
        script = schema.migration_sql(empty)
        assert empty.execute("select current_user = session_user").fetchone() == (True,)
    assert versions_of_rows(empty) == before
    assert re.findall(r"^-- (sql|migrations)/([\w/]+)\.sql", script, re.MULTILINE) == [
        ("sql", "core/clock"),
        ("sql", "privileges"),
    ]

    run_script(empty_dsn, script)
    schema.require_schema(empty)
    assert schema.migration_sql(empty).endswith("is up to date\n")


def test_the_script_run_twice_fails_and_harms_nothing(empty_dsn, installed):
    before = versions_of_rows(installed)
    with pytest.raises(psycopg.errors.DuplicateSchema), connect(empty_dsn) as conn:
        conn.execute(schema.migration_sql())
    assert versions_of_rows(installed) == before


def test_every_file_is_ascii_so_that_any_client_encoding_will_do():
    assets = schema.own_assets()
    found = [file.name for file in (*assets.migrations, *assets.sources) if not file.text.isascii()]
    assert found == []


@pytest.mark.full
def test_a_superuser_makes_the_roles_and_owns_nothing(bare_dsn):
    report = schema.migrate_dsn(bare_dsn)
    assert report.roles_created == ROLES
    with connect(bare_dsn) as conn:
        assert owners(conn) == {report.owner} == {"pgflow_owner"}
        roles = conn.execute(
            "select bool_or(rolcanlogin or rolsuper or rolcreaterole or rolbypassrls) from "
            "pg_roles where rolname ~ '^pgflow_'"
        )
        assert roles.fetchone() == (False,)


@pytest.mark.full
def test_a_role_that_may_make_roles_hands_the_schema_to_their_owner(login, bare_dsn):
    dsn = login("deploy", "createrole")
    report = schema.migrate_dsn(dsn)
    assert report.roles_created == ROLES
    assert report.advice == ()
    with connect(bare_dsn) as admin:
        assert owners(admin) == {"pgflow_owner"}
    with connect(dsn) as conn:
        found = schema.install(conn, changed_assets(clock="\n-- newer\n")).sources
        assert found == ("core/clock", "privileges")


def granted_roles(conn: psycopg.Connection) -> set[str]:
    query = "select rolname from pg_roles where rolname = any(%s) and has_function_privilege(rolname, 'pgflow.run_status(text, text)', 'execute')"
    return {name for (name,) in conn.execute(query, [list(READERS)])}


@pytest.mark.full
def test_a_plain_role_installs_without_roles_and_says_what_an_administrator_must_run(
    login, bare_dsn
):
    dsn = login("plain")
    report = schema.migrate_dsn(dsn)
    assert report.owner == "plain"
    assert report.roles_created == ()
    assert report.advice[:-1] == tuple(f'create role "{name}" nologin;' for name in READERS)
    assert "run `pgflow migrate` again" in report.advice[-1]
    again = schema.migrate_dsn(dsn)
    assert (again.already_current, again.advice) == (True, report.advice)

    with connect(bare_dsn) as administrator:
        for statement in report.advice:
            administrator.execute(statement)
        assert granted_roles(administrator) == set()
        report = schema.migrate_dsn(dsn)
        assert (report.migrations, report.sources, report.advice) == ((), ("privileges",), ())
        found = granted_roles(administrator)
        assert found == {"pgflow_client", "pgflow_worker", "pgflow_operator", "pgflow_tenant"}
    assert schema.migrate_dsn(dsn).already_current


@pytest.mark.full
def test_a_plain_role_that_owns_the_schema_can_run_the_engine(login):
    dsn = login("plain")
    schema.migrate_dsn(dsn)
    with connect(dsn) as conn:
        conn.execute(
            """select pgflow.start_run(workflow => 'w', key => 'k', input => '{"a": 1}')"""
        )
        assert conn.execute("select pgflow.run_status('k')").fetchone() == ("queued",)
        (privileges, *others) = findings_of(check_privileges, Patient(dsn, conn))
    assert [finding.level for finding in (privileges, *others)] == ["ok", "ok"]
    assert "plain owns the schema, and no other role can use pgflow" in others[0].found


def test_the_first_look_at_runs_and_queues_is_not_dear_enough_for_a_compiler(installed):
    """As `jit_above_cost` is where nobody has set it: tables that are empty and not analyzed yet are
    taken for larger than they are.
    """
    cost = {
        view: installed.execute(f"explain (format json) select * from pgflow.{view}").fetchone()[0][
            0
        ]["Plan"]["Total Cost"]
        for view in ("runs", "lanes", "queues", "workers", "effects", "gates", "schedules")
    }
    assert {view: found for view, found in cost.items() if found > 100_000} == {}


@pytest.mark.full
def test_installations_at_once_wait_for_room_in_the_lock_table_of_a_small_server():
    with OwnServer(max_connections="25") as server, ThreadPoolExecutor(6) as pool:
        names = [servers.create_database(server.dsn) for _ in range(6)]
        dsns = [servers.dsn_of(server.dsn, name) for name in names]
        assert all(report.migrations for report in pool.map(schema.migrate_dsn, dsns))


@pytest.mark.full
def test_a_role_that_may_not_create_a_schema_learns_the_grant_it_needs(login, bare_dsn):
    dsn = login("plain", may_create=False)
    with pytest.raises(
        SetupError, match="plain may not create a schema in database app"
    ) as refused:
        schema.migrate_dsn(dsn)
    with connect(bare_dsn) as administrator:
        administrator.execute(str(refused.value).partition("administrator run: ")[2])
    assert schema.migrate_dsn(dsn).owner == "plain"


@pytest.mark.full
def test_a_plain_role_that_is_a_member_of_the_owner_installs_for_it(login, bare_dsn):
    dsn = login("plain")
    with connect(bare_dsn) as administrator:
        administrator.execute("create role pgflow_owner; grant pgflow_owner to plain")
    report = schema.migrate_dsn(dsn)
    assert report.owner == "pgflow_owner"
    assert len(report.advice) == len(READERS) + 1


@pytest.mark.full
def test_an_owner_role_that_cannot_be_had_leaves_the_schema_to_the_installer(login, bare_dsn):
    dsn = login("plain")
    with connect(bare_dsn) as administrator:
        administrator.execute("create role pgflow_owner")
    assert schema.migrate_dsn(dsn).owner == "plain"
    with connect(bare_dsn) as administrator:
        assert owners(administrator) == {"plain"}


def test_an_owner_role_that_is_a_superuser_is_refused(bare_dsn):
    with connect(bare_dsn) as administrator:
        administrator.execute("create role pgflow_owner superuser")
    with pytest.raises(SetupError, match="would belong to the superuser pgflow_owner.*nosuperuser"):
        schema.migrate_dsn(bare_dsn)


def test_a_schema_that_came_to_belong_to_a_superuser_is_refused(bare_dsn):
    """As a dump does that is restored where its owner is missing."""
    schema.migrate_dsn(bare_dsn)
    with connect(bare_dsn) as administrator:
        administrator.execute("alter role pgflow_owner superuser")
        for refused in (schema.migrate, schema.require_schema):
            with pytest.raises(SetupError, match="belongs to the superuser pgflow_owner"):
                refused(administrator)


@pytest.mark.full
def test_an_upgrade_by_a_stranger_says_who_must_run_it(login, bare_dsn):
    schema.migrate_dsn(bare_dsn)
    with connect(login("stranger")) as conn:
        assert schema.migrate(conn).already_current
        newer = changed_assets(clock="\n-- newer\n")
        with pytest.raises(
            SetupError, match="belongs to pgflow_owner, and stranger may not act for that role"
        ) as refused:
            schema.install(conn, newer)
        with connect(bare_dsn) as administrator:
            administrator.execute(str(refused.value).partition("administrator run: ")[2])
        assert schema.install(conn, newer).sources == ("core/clock", "privileges")


@pytest.mark.full
def test_a_superuser_does_not_run_what_another_role_may_have_planted(login, bare_dsn):
    schema.migrate_dsn(login("plain"))
    with connect(bare_dsn) as superuser:
        with pytest.raises(SetupError, match="belongs to plain: run `pgflow migrate` as that role"):
            schema.install(superuser, changed_assets(clock="\n-- newer\n"))


@pytest.mark.full
def test_a_superuser_finds_the_schema_of_another_role_up_to_date(login, bare_dsn):
    dsn = login("plain")
    with connect(bare_dsn) as superuser:
        for statement in schema.migrate_dsn(dsn).advice:
            superuser.execute(statement)
        schema.migrate_dsn(dsn)
        assert schema.migrate(superuser).already_current


@pytest.mark.full
def test_roles_that_were_dropped_are_made_again(bare_dsn):
    schema.migrate_dsn(bare_dsn)
    with connect(bare_dsn) as superuser:
        superuser.execute("drop owned by pgflow_client; drop role pgflow_client")
    report = schema.migrate_dsn(bare_dsn)
    assert (report.roles_created, report.sources) == (("pgflow_client",), ("privileges",))
    with connect(bare_dsn) as superuser:
        found = granted_roles(superuser)
        assert found == {"pgflow_client", "pgflow_worker", "pgflow_operator", "pgflow_tenant"}


def declared_grants() -> dict[str, set[str]]:
    """The functions that each role may call, as the files say beside them."""
    text = "".join(file.text for file in schema.own_assets().sources)
    declared = {
        name: roles.split(", ")
        for name, roles in re.findall(r"^--! grant (\w+) to (.+)$", text, re.MULTILINE)
    }
    views = set(re.findall(r"^create view pgflow\.(\w+)", text, re.MULTILINE))
    return {
        role: {
            name
            for name, roles in declared.items()
            if name not in views
            and (role in roles or (role in ANSWERERS and "pgflow_auditor" in roles))
        }
        for role in READERS
    }


@pytest.mark.parametrize("role", READERS)
def test_a_role_may_call_exactly_what_the_privileges_say(installed, role):
    query = """
        select distinct proname from pg_proc
        where pronamespace = 'pgflow'::regnamespace and has_function_privilege(%s, oid, 'execute')
    """
    assert {name for (name,) in installed.execute(query, [role])} == declared_grants()[role]


@pytest.mark.parametrize("role", READERS)
def test_a_role_may_read_the_views_it_is_granted_and_touch_no_table(installed, role):
    query = """
        select relkind, has_table_privilege(%(role)s, oid, 'select'),
          has_table_privilege(%(role)s, oid, 'insert, update, delete, truncate, references, trigger')
        from pg_class where relnamespace = 'pgflow'::regnamespace and relkind in ('r', 'p', 'v', 'm')
    """
    sees = {"pgflow_declarer": {False}, "pgflow_tenant": {True, False}}.get(role, {True})
    assert set(installed.execute(query, {"role": role})) == {
        ("r", False, False),
        ("p", False, False),
        *(("v", is_seen, False) for is_seen in sees),
    }
    sequences = "select bool_or(has_sequence_privilege(%s, oid, 'usage, select, update')) from pg_class where relnamespace = 'pgflow'::regnamespace and relkind = 'S'"
    assert installed.execute(sequences, [role]).fetchone() == (False,)
    assert installed.execute(
        "select has_schema_privilege(%s, 'pgflow', 'create')", [role]
    ).fetchone() == (False,)


def test_a_worker_that_tries_to_write_a_table_is_refused(installed):
    with pytest.raises(psycopg.errors.InsufficientPrivilege), installed.transaction():
        installed.execute("set local role pgflow_worker")
        installed.execute("delete from pgflow.unit")


def test_nobody_else_may_do_anything(installed):
    with installed.transaction(force_rollback=True):
        installed.execute("create role h_nobody")
        query = """
            select oid::regprocedure::text from pg_proc where pronamespace = 'pgflow'::regnamespace and has_function_privilege('h_nobody', oid, 'execute')
            union all select oid::regclass::text from pg_class where relnamespace = 'pgflow'::regnamespace
              and case when relkind in ('r', 'p', 'v') then has_table_privilege('h_nobody', oid, 'select, insert, update, delete, truncate, references, trigger')
                when relkind = 'S' then has_sequence_privilege('h_nobody', oid, 'usage, select, update') end
            union all select 'schema' where has_schema_privilege('h_nobody', 'pgflow', 'usage, create')
        """
        assert installed.execute(query).fetchall() == []


OFFENDERS = {
    "every function pins its search path and says what it does": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'pgflow'::regnamespace and p.prokind <> 'p' -- a procedure that commits cannot
          and (not (coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp'] or p.prosqlbody is not null and not p.prosecdef)
            or obj_description(p.oid, 'pg_proc') is null)
    """,
    "only what is called from outside runs with the owners rights": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'pgflow'::regnamespace and p.prosecdef = (p.proname like '%\\_')
          -- but for what makes or looks at functions for its caller, and what commits
          and p.proname not in ('create_workflow', 'drop_workflow', 'work', 'work_until', 'check_workflow')
    """,
    "nothing that is called from outside is ever compiled": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = 'pgflow'::regnamespace and p.prosecdef and not coalesce('jit=off' = any(p.proconfig), false)
    """,
    "every table view and sequence says what it is": """
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'pgflow'::regnamespace and c.relkind in ('r', 'p', 'v', 'S') and not c.relispartition
          and obj_description(c.oid, 'pg_class') is null
          and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i')
    """,
    "the bounds of the journal bind nobody who reads it": """
        select a.attrelid::regclass::text, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_type t on t.oid = a.atttypid
        where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v' and t.typtype = 'd'
        union all
        select p.oid::regprocedure::text, t.typname from pg_proc p, unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) a (id) join pg_type t on t.oid = a.id
        where p.pronamespace = 'pgflow'::regnamespace and t.typtype = 'd'
    """,
    "what each step writes has no check of its table": (
        "select conname from pg_constraint where contype = 'c' and conrelid in ('pgflow.unit'::regclass, 'pgflow.lease'::regclass, 'pgflow.ready'::regclass)"
    ),
}
"""Queries for what breaks a rule, by the rule."""


@pytest.mark.parametrize("rule", OFFENDERS)
def test_nothing_that_is_installed_breaks_a_rule(installed, rule):
    assert installed.execute(OFFENDERS[rule]).fetchall() == []


def test_the_sqlstates_of_both_sides_match():
    raised = {
        code
        for file in schema.own_assets().sources
        for code in re.findall(r"errcode = '(PF\w{3})'", file.text)
    }
    assert raised == set(errors.BY_SQLSTATE)


def test_the_list_of_unit_kinds_is_the_one_that_the_journal_accepts(installed):
    (check,) = installed.execute(
        "select pg_get_constraintdef(oid) from pg_constraint where contypid = "
        "'pgflow.unit_letter'::regtype"
    ).fetchone()
    kinds = {kind for (kind,) in installed.execute("select kind::text from pgflow.unit_kind")}
    assert set(re.findall(r"'(.)'::\"char\"", check)) == kinds


def test_a_fresh_install_is_the_snapshot(installed):
    assert generate.stale(generate.snapshot(installed)) == {}, "python -m tools.generate"


@pytest.mark.full
def test_an_upgraded_install_equals_a_fresh_one(empty):
    schema.install(empty, older_assets())
    assert "boolean) returns text" in dump_catalog(empty)
    schema.migrate(empty)
    assert dump_catalog(empty, with_server_details=True) == fresh_dump(empty)


@pytest.mark.full
def test_an_upgrade_forgets_files_that_have_moved(empty):
    schema.install(empty, older_assets())
    schema.migrate(empty)
    known = {name for (name,) in empty.execute("select name from pgflow.source")}
    assert known == {file.name for file in schema.own_assets().sources}


@pytest.mark.full
def test_a_version_of_other_files_between_leaves_nothing_of_itself(empty):
    """It knows none of our files, so it replaces their functions and leaves the records that they
    were applied.
    """
    schema.migrate(empty)
    fresh = dump_catalog(empty, with_server_details=True)
    older = older_assets()
    apart = tuple(
        file._replace(name=f"other/{file.name}" if file.name != "privileges" else file.name)
        for file in older.sources
    )
    schema.install(empty, older._replace(version=schema.own_assets().version, sources=apart))
    empty.execute(
        "insert into pgflow.source select s.name, s.sha256 from unnest(%s::text[], %s::text[]) as "
        "s (name, sha256) on conflict do nothing",
        (
            [f.name for f in schema.own_assets().sources],
            [f.sha256 for f in schema.own_assets().sources],
        ),
    )
    schema.migrate(empty)
    assert dump_catalog(empty, with_server_details=True) == fresh


@pytest.mark.full
def test_a_grant_of_something_that_is_not_there_is_refused(empty):
    with pytest.raises(SetupError, match="no function or view to grant: nowhere"):
        schema.install(empty, changed_assets(clock="\n--! grant nowhere to pgflow_client\n"))


def test_a_line_to_the_installer_is_read_or_refused():
    """A line that the installer does not understand would grant nothing, silently."""
    files = schema.own_assets().sources
    lines = [line for file in files for line in file.text.splitlines() if line.startswith("--!")]
    gone = [name for file in files for name in names_gone(file.text)]
    assert len(lines) == len(schema.own_assets().grants) + len(gone)
    assert all(line.startswith(("--! grant ", "--! gone ")) for line in lines)
    assert {role for roles in schema.own_assets().grants.values() for role in roles} == set(READERS)


def test_whoever_may_read_a_view_may_execute_what_it_calls(installed):
    granted = """
      select c.relname, r.rolname from pg_class c, pg_roles r
      where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v' and r.rolname = any(%s)
        and has_table_privilege(r.oid, c.oid, 'select')
    """
    views = installed.execute(granted, (list(READERS),)).fetchall()
    assert len(views) > 40
    refused = []
    for view, role in views:
        installed.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        try:
            installed.execute(sql.SQL("select * from pgflow.{}").format(sql.Identifier(view)))
        except psycopg.errors.InsufficientPrivilege as error:
            refused.append(f"{role} on {view}: {error}")
        installed.execute("reset role")
    assert refused == [], "\n".join(refused)


@pytest.mark.full
def test_an_upgrade_takes_back_what_only_an_older_version_granted(empty):
    grant = "\ngrant execute on function pgflow.serve_lanes to pgflow_auditor;\n"
    schema.install(empty, changed_assets(privileges=grant)._replace(version="0.0.1"))
    schema.migrate(empty)
    assert dump_catalog(empty, with_server_details=True) == fresh_dump(empty)
