"""Account and folder of a server that is started by root.

An ordinary user's server is simply that user's. For root there are two ways, and the first start
decides: a user namespace keeps everything root's and in place (`_namespace`). Where that is
refused, as by Docker's default profile, an account that exists anyway gets a folder of its own
under ``/var/lib``, since it could not reach root's without opening up the folders above; ``data``
is then a symbolic link into it. The account owns only what is inside its ``data`` and ``run``, so
that it cannot have root follow a link of its making.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pgflow.embedded._binaries import copy_programs, find_programs, runnable_programs
from pgflow.embedded._cluster import Cluster
from pgflow.embedded._namespace import (
    Account,
    enter_user_namespace,
    find_account,
    holds_inside,
    user_namespaces_work,
)
from pgflow.errors import EmbeddedServerError

if TYPE_CHECKING:
    from pgflow.embedded._folder import Folder

SYSTEM_DATA = Path("/var/lib")


def place_cluster(folder: Folder) -> Cluster:
    """Decide for this folder, and enter the user namespace if that is the way."""
    if os.geteuid() != 0:
        return Cluster(folder.data, runnable_programs(folder.programs), folder.postgres_lock, None)
    programs = find_programs()
    if not folder.data.is_symlink() and user_namespaces_work():
        return _place_in_namespace(folder, programs)
    return _place_with_account(folder, programs)


def _place_in_namespace(folder: Folder, programs: Path) -> Cluster:
    # Inside, root can no longer pass the closed folders of others.
    if not holds_inside(lambda: os.access(folder.root, os.W_OK | os.X_OK)):
        raise EmbeddedServerError(
            f"{folder.root} lies in another user's closed folder: choose another PGFLOW_HOME"
        )
    if not holds_inside(lambda: os.access(programs / "postgres", os.X_OK)):
        programs = copy_programs(programs, folder.programs)
    enter_user_namespace()
    return Cluster(folder.data, programs, folder.postgres_lock, None)


def _place_with_account(folder: Folder, programs: Path) -> Cluster:
    place = folder.data.readlink().parent if folder.data.is_symlink() else None
    if place is None or not place.is_dir():
        place = _make_place(folder)
    owner = (place / "run").stat()
    account = Account(owner.st_uid, owner.st_gid)
    if not _can_run(account, programs / "postgres"):
        programs = copy_programs(programs, place / "programs")
    return Cluster(place / "data", programs, folder.postgres_lock, account)


def _make_place(folder: Folder) -> Path:
    if folder.data.is_dir():
        raise EmbeddedServerError(
            f"{folder.data} was made in a user namespace, which is refused now: "
            "run as an ordinary user, choose another PGFLOW_HOME, or name a server with PGFLOW_DSN"
        )
    account = find_account()
    place = Path(tempfile.mkdtemp(prefix="pgflow-", dir=SYSTEM_DATA))
    place.chmod(0o711)
    (place / "run").mkdir(mode=0o700)
    os.chown(place / "run", account.uid, account.gid)
    folder.data.unlink(missing_ok=True)
    folder.data.symlink_to(place / "data")
    return place


def _can_run(account: Account, program: Path) -> bool:
    try:
        answer = subprocess.run(  # noqa: S603  prints its version before it looks at anything else
            [program, "--version"],
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            cwd="/",
            stdout=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return False
    return answer.returncode == 0
