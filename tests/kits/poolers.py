"""PgBouncer between a test and its database."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from servers import HANG_SECONDS, find_program, wait_until


@contextlib.contextmanager
def bouncer(dsn: str, mode: str) -> Iterator[str]:
    """PgBouncer before the test's database; its DSN."""
    program = find_program("pgbouncer", "pgbouncer")
    parts = conninfo_to_dict(dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="pgflow-bouncer-") as name:
        command = [
            program,
            *(["-u", "nobody"] if os.geteuid() == 0 else []),
            str(_configure(Path(name), parts, port, mode)),
        ]
        pooler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: _answers(port), "pgbouncer listens")
            yield f"postgresql://{parts['user']}@127.0.0.1:{port}/{parts['dbname']}"
        finally:
            pooler.send_signal(signal.SIGINT)
            pooler.wait(HANG_SECONDS)


def _configure(folder: Path, parts: dict[str, Any], port: int, mode: str) -> Path:
    """Its configuration, in a folder where another user may read and write."""
    folder.chmod(0o777)
    (folder / "users.txt").write_text(f'"{parts["user"]}" "{parts.get("password", "")}"\n')
    (folder / "bouncer.ini").write_text(
        f"[databases]\n{parts['dbname']} = host={parts['host']} port={parts['port']} "
        f"dbname={parts['dbname']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type "
        f"= trust\nauth_file = {folder}/users.txt\n"
        f"pool_mode = {mode}\nlogfile = {folder}/log\nignore_startup_parameters = "
        "extra_float_digits,options\nmax_client_conn = 500\nserver_round_robin = 0\n"
    )
    return folder / "bouncer.ini"


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
