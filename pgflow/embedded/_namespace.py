"""Postgres refuses to run as root;
this gives root's processes another name instead of another account.

Inside a user namespace of its own, a process of root can be known as user 1 while its files stay
root's outside: nothing has to be created, opened up or handed over. Where the kernel or a container
refuses that, an account that exists anyway (`find_account`) runs the server,
in a folder of its own.

``python -m pgflow.embedded._namespace PROGRAM ARGUMENT...`` runs one program that way, as
``unshare --user --map-user=1 --map-group=1`` does.
"""

from __future__ import annotations

import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pgflow.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWUSER = 0x10000000
ACCOUNTS = ("postgres", "_postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """An unprivileged user of this machine."""

    uid: int
    gid: int


def enter_user_namespace() -> None:
    """Make this process, which has one thread, an ordinary user to itself and to its children.

    Raises:
        OSError: The kernel refuses. The process may be left half way:
            ask `user_namespaces_work` first.
    """
    inner_uid, inner_gid = _inner_ids()
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _unshare_user()
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inner_uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{inner_gid} {outer_gid} 1")


def _inner_ids() -> tuple[int, int]:
    # initdb wants a name for its user. 1 has one nearly everywhere,
    # and elsewhere any other account will do.
    try:
        pwd.getpwuid(1)
    except KeyError:
        for entry in pwd.getpwall():
            if entry.pw_uid != 0:
                return entry.pw_uid, entry.pw_gid
    return 1, 1


def _unshare_user() -> None:
    if sys.version_info >= (3, 12):
        os.unshare(os.CLONE_NEWUSER)
        return
    import ctypes  # os has no unshare before 3.12

    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def user_namespaces_work() -> bool:
    """Return True if `enter_user_namespace` would succeed."""
    return sys.platform == "linux" and holds_inside(lambda: True)


def holds_inside(condition: Callable[[], bool]) -> bool:
    """Return True if `condition` holds in a user namespace,
    asked by a child since entering cannot be undone.
    """
    child = os.fork()
    if child == 0:
        _exit_with(condition)
    return os.waitpid(child, 0)[1] == 0


def _exit_with(condition: Callable[[], bool]) -> NoReturn:
    try:
        enter_user_namespace()
        os._exit(0 if condition() else 1)
    finally:
        os._exit(1)  # whatever went wrong must not run on as a second copy of this process


def find_account() -> Account:
    """Return an unprivileged account that exists anyway."""
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedServerError(
        "Postgres does not run as root, this kernel refuses user namespaces, and there is no "
        f"account named {' or '.join(ACCOUNTS)}: run as an ordinary user, or name a server with "
        "PGFLOW_DSN"
    )


def main() -> None:
    """Replace this process by the program that its arguments name, as an ordinary user."""
    if os.geteuid() == 0:
        if not user_namespaces_work():
            sys.exit(
                "Postgres does not run as root, and user namespaces are refused here: run this as "
                "an ordinary user"
            )
        enter_user_namespace()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606  no shell is the point


if __name__ == "__main__":
    main()
