"""Three nodes under Patroni, with etcd, on this machine: `apt install patroni etcd-server postgresql`.

What one node says to the others goes through links, which a test cuts. Clients reach each node
directly, so that they still reach one that is cut off from its peers.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import servers

from pgflow.embedded._supervisor import find_free_port

PROGRAMS = ("patroni", "etcd")
TTL_SECONDS = 20
"""Time after which a silent leader has lost its role: the least that Patroni takes."""
HANG_SECONDS = 1800.0


def find_postgres() -> Path | None:
    """Return the folder of the newest programs of the distribution, None if it has none."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[4])
    )
    return found[-1].parent if found else None


class Link:
    """Passes bytes on to a port of this machine until it is cut: then they stay where they are."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._is_open = threading.Event()
        self._is_open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let nothing through, and answer nothing."""
        self._is_open.clear()

    def mend(self) -> None:
        """Let everything through again."""
        self._is_open.set()

    def close(self) -> None:
        """Accept nothing more."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        self._is_open.wait()
        with contextlib.suppress(OSError), near, selectors.DefaultSelector() as ready:
            with socket.create_connection(("127.0.0.1", self._to)) as far:
                ready.register(near, selectors.EVENT_READ, far)
                ready.register(far, selectors.EVENT_READ, near)
                while True:
                    for key, _ in ready.select():
                        data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                        self._is_open.wait()
                        if not data:
                            return
                        key.data.sendall(data)


class Node:
    """Patroni and its Postgres."""

    def __init__(self, name: str, cluster: Patronis) -> None:
        self.name, self._cluster = name, cluster
        self.port, self._rest_port = find_free_port(), find_free_port()
        self._links = [Link(cluster.etcd_port), Link(self.port), Link(self._rest_port)]
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []
        self.folder = cluster.folder / name
        self.folder.mkdir()
        (self.folder / "patroni.yml").write_text(json.dumps(self._settings()))  # JSON is YAML

    def _settings(self) -> dict[str, Any]:
        etcd, postgres, rest = (f"127.0.0.1:{link.port}" for link in self._links)
        cluster = self._cluster
        rule = "host {} all 127.0.0.1/32 scram-sha-256"
        return {
            "scope": "shop",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self._rest_port}", "connect_address": rest},
            "etcd3": {"hosts": [etcd], "use_proxies": cluster.is_cut},
            "bootstrap": {"dcs": {"ttl": TTL_SECONDS, "loop_wait": 2, "retry_timeout": 5,
                "synchronous_mode": cluster.is_synchronous, "postgresql": {"use_pg_rewind": True}},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
                "pg_hba": [rule.format("all"), rule.format("replication")]},
            "postgresql": {"listen": f"127.0.0.1:{self.port}", "connect_address": postgres,
                "data_dir": str(self.folder / "data"), "bin_dir": str(cluster.programs),
                "authentication": {role: {"username": name, "password": cluster.password} for role,
                    name in (("superuser", "postgres"), ("replication", "replicator"),
                        ("rewind", "rewinder"))},
                "parameters": {"unix_socket_directories": str(self.folder),
                    "shared_buffers": "32MB"}},
        }  # fmt: skip

    def start(self) -> None:
        """Start Patroni, which starts Postgres."""
        self._process = self._cluster.start(
            "patroni", self.folder / "patroni.yml", log=self.folder / "log"
        )

    def is_leader(self) -> bool:
        """Return True if it says of itself that it takes writes."""
        return self._asks("/primary")

    def follows(self) -> bool:
        """Return True if it is a standby that streams."""
        return (
            self._asks("/replica")
            and self.state().get("replication_state", "streaming") == "streaming"
        )

    def _asks(self, path: str) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(
                f"http://127.0.0.1:{self._rest_port}{path}", timeout=2
            ) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def state(self) -> dict[str, Any]:
        """Return its own account of its state."""
        return _answer(f"http://127.0.0.1:{self._rest_port}/patroni")

    def pids(self) -> list[int]:
        """Patroni, Postgres and all of their processes."""
        return [*self._own_pids(), *self.postgres_pids()]

    def _own_pids(self) -> list[int]:
        return [self._process.pid] if self._process and self._process.poll() is None else []

    def postgres_pids(self) -> list[int]:
        """Postgres, the first process first."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            first = int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
            if str(self.folder).encode() in Path(f"/proc/{first}/cmdline").read_bytes():
                return [
                    first,
                    *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split()),
                ]
        return []

    # ------------------------------------------------------------ what happens to it

    def signal(self, number: signal.Signals, pids: list[int]) -> None:
        """Send a signal to some of its processes."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """All of it is gone at once, as with its machine."""
        self.signal(signal.SIGKILL, self._frozen or self.pids())
        self._frozen = []
        if self._process is not None:
            self._process.wait()

    def freeze(self) -> None:
        """It does nothing any more; its kernel still takes what is sent to it."""
        self._frozen = self.pids()
        self.signal(signal.SIGSTOP, self._frozen)

    def cut_off(self) -> None:
        """Its peers and etcd hear nothing of it, and it hears nothing of them. Clients reach it."""
        for link in self._links:
            link.cut()

    def join_again(self) -> None:
        """It hears its peers again, and is started again if it has ended."""
        for link in self._links:
            link.mend()
        if self._frozen:
            self.kill()  # as its watchdog would: thawed, it takes the lead back from the new leader
        if not self._own_pids():
            self.start()

    def close(self) -> None:
        """End it."""
        self.kill()
        for link in self._links:
            link.close()


class Patronis:
    """Three nodes and etcd, gone with their data when left.

    Args:
        is_synchronous: True if a commit waits for a standby.
        is_cut: True if links will be cut. Then Patroni must not learn etcd's own address from it.
    """

    def __init__(self, *, is_synchronous: bool, is_cut: bool = False) -> None:
        self.is_synchronous, self.is_cut = is_synchronous, is_cut
        programs = find_postgres()
        assert programs is not None
        self.programs = programs
        self.password = secrets.token_hex(16)
        self.etcd_port = find_free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="pgf"))
        self._is_root = os.geteuid() == 0
        self._etcd: subprocess.Popen[bytes] | None = None
        self.nodes: list[Node] = []

    def __enter__(self) -> Self:
        """Start etcd and the nodes; return once two follow the third."""
        self.nodes = [Node(f"node{number}", self) for number in (1, 2, 3)]
        if self._is_root:
            for path in (self.folder, *self.folder.rglob("*")):
                shutil.chown(path, "postgres")
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, find_free_port()))
        self._etcd = self.start(
            *("etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client),
            *("--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
            log=self.folder / "etcd.log",
        )
        try:
            _wait(
                lambda: (
                    _answer(f"{client}/version").get("etcdcluster", "not_decided") != "not_decided"
                ),
                "etcd",
            )
            self.nodes[0].start()
            self.leader()
            for node in self.nodes[1:]:
                node.start()
            self.wait_for_standbys()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all of it."""
        for node in self.nodes:
            node.close()
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *command: Any, log: Path) -> subprocess.Popen[bytes]:
        """Start a program as the user whom Postgres runs as."""
        with log.open("ab") as out:
            return subprocess.Popen(
                [*map(str, command)],
                stdout=out,
                stderr=out,
                cwd=self.folder,
                start_new_session=True,
                user="postgres" if self._is_root else None,
                env={"PATH": f"{os.environ['PATH']}:/usr/bin", "HOME": str(self.folder)},
            )

    @property
    def dsn(self) -> str:
        """Address of all nodes; a connection is to the one that takes writes."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres:{self.password}@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=3"

    def dsn_of(self, node: Node) -> str:
        """Address of one node."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{node.port}/postgres?connect_timeout=3"

    def leader(self, other_than: Node | None = None) -> Node:
        """Wait for a leader, which may have to be another one, and return it."""

        def found() -> Node | None:
            return next(
                (node for node in self.nodes if node is not other_than and node.is_leader()), None
            )

        return _wait(found, "a node leads")

    def wait_for_standbys(self) -> None:
        """Return once all nodes but the leader follow it, one of them in step if it has to be."""
        wanted = "sync_state = 'sync'" if self.is_synchronous else "state = 'streaming'"

        def is_safe() -> bool:
            leader = self.leader()  # which may change once more while a node comes back
            if not all(node.follows() for node in self.nodes if node is not leader):
                return False
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self.dsn_of(leader)) as conn,
            ):
                row = conn.execute(
                    f"select count(*) from pg_stat_replication where {wanted}"
                ).fetchone()
                return bool(row and row[0])
            return False

        _wait(is_safe, "two nodes follow, and commits wait for one")

    def switch_over(self) -> None:
        """Have another node lead, in good order."""
        leader = self.leader()
        request = urllib.request.Request(
            f"http://127.0.0.1:{leader._rest_port}/switchover",
            data=json.dumps({"leader": leader.name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60):
            pass


def _answer(url: str) -> dict[str, Any]:
    """Return the object that a program answers with; an empty one if it does not answer."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
        return dict(json.load(answer))
    return {}


def _wait(condition: Callable[[], Any], what: str) -> Any:
    return servers.wait_until(condition, what, HANG_SECONDS)
