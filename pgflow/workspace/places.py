"""Places of a repository: the folders that git works with, and one of ours.

A writer of a working tree may write its ``.git`` as well: a file or a link there may lead to
another repository. So these places are found without git, and a repository counts only if its own
records name the folder as its working tree.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pgflow.errors import PgflowError

ATTRIBUTES: Final = (
    "* !text !eol !crlf !ident !filter !working-tree-encoding !diff !merge !whitespace\n"
)
"""Of every file: bytes as they are. These lines come before those of any other file."""
CONFIG: Final = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
_SHA256: Final = CONFIG.replace("0", "1") + "[extensions]\n\tobjectFormat = sha256\n"
_IS_SHA256: Final = re.compile(r"^\s*objectformat\s*=\s*\"?sha256\b", re.IGNORECASE | re.MULTILINE)
MOST_SECONDS = 900.0
"""Time that a command of git has: a pipe in the place of a file has it wait for ever."""
_LARGEST: Final = 1 << 20


class WorkspaceError(PgflowError):
    """Something that git or the folder refuses; the text says which command, and why."""


@dataclass(frozen=True)
class Place:
    """The folders of a repository.

    Attributes:
        top: Top folder of the working tree; None of a repository without one.
        git: Git's folder for this working tree.
        common: Git's folder, which all working trees share.
    """

    top: Path | None
    git: Path
    common: Path

    def refuse_links(self, reference: str) -> None:
        """Refuse a reference whose file, or whose log, would be written by way of a link.

        Raises:
            WorkspaceError: There is one.
        """
        for first in (self.common, self.common / "logs"):
            path = first
            for part in reference.split("/"):
                path /= part
                _refuse_link(path)


def find_place(folder: Path) -> Place:
    """Find the repository that a folder is in.

    Raises:
        WorkspaceError: It is in none, or in one that does not know the folder.
    """
    start = Path(os.path.realpath(folder))
    for top in (start, *start.parents):
        entry = top / ".git"
        if os.path.lexists(entry):
            return _checked(_of_working_tree(top, entry))
        if top == start and all((top / name).exists() for name in ("HEAD", "objects", "refs")):
            return _checked(Place(None, top, top))
    raise WorkspaceError(f"{folder} is in no git repository")


def _of_working_tree(top: Path, entry: Path) -> Place:
    mode = entry.lstat().st_mode
    if stat.S_ISDIR(mode):
        if (entry / "commondir").exists():
            raise WorkspaceError(f"{entry} borrows another repository: {entry / 'commondir'}")
        return Place(top, entry, entry)
    found = re.fullmatch(r"gitdir: (.+?)\s*", _text(entry)) if stat.S_ISREG(mode) else None
    if found is None:
        raise WorkspaceError(f"{entry} is neither a folder nor the file of a working tree")
    own = Path(os.path.realpath(top / found[1]))
    if (own / "commondir").is_file():
        common = Path(os.path.realpath(own / _text(own / "commondir").strip()))
        back = Path(_text(own / "gitdir").strip())
        known = own.parent == common / "worktrees" and _same(back, entry)
    else:
        common = own
        known = _same(own / _worktree_of(own), top)
    if not known:
        raise WorkspaceError(f"{entry} leads to {own}, which does not know this folder")
    return Place(top, own, common)


def _same(path: Path, other: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _worktree_of(own: Path) -> str:
    """Return the working tree that the repository of a submodule names."""
    command = ["git", "config", "--file", str(own / "config"), "--no-includes", "core.worktree"]
    done = run_bounded(command, own, dict(os.environ))
    return os.fsdecode(done.stdout).rstrip("\n") or "."


def run_bounded(
    command: Sequence[str], folder: str | Path, environment: Mapping[str, str], given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a session of its own, and end all of it that takes too long.

    Raises:
        WorkspaceError: It does not begin, or does not end.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - a list of words, and none of them a program
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise WorkspaceError(f"cannot run git in {folder}: {error}") from None
    with process:
        try:
            printed, complained = process.communicate(given, MOST_SECONDS)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise WorkspaceError(
                f"git in {folder} has not ended within {MOST_SECONDS:g} s: a remote does not "
                f"answer, or a file is a pipe, which find {folder} -type p lists"
            ) from None
    return subprocess.CompletedProcess(command, process.returncode, printed, complained)


def _checked(place: Place) -> Place:
    """Refuse links among the folders that are written to, and pipes and devices among the files."""
    common = place.common
    for name in ("config", "logs", "objects", "packed-refs", "pgflow", "refs", "worktrees"):
        _refuse_link(common / name)
    files = ("config", "packed-refs", "objects/info/alternates")
    for path in (*(common / name for name in files), place.git / "HEAD"):
        if path.exists() and not path.is_file():
            raise WorkspaceError(
                f"{path} is not a plain file: git would wait for ever at a pipe, and read a device "
                "until no memory is left. Remove it"
            )
    try:
        with os.scandir(common / "objects") as entries:
            for entry in entries:
                if entry.is_symlink():
                    _refuse_link(Path(entry.path))
    except OSError as error:
        raise WorkspaceError(f"{common} has no objects: {error}") from None
    return place


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise WorkspaceError(f"{path} is a symbolic link, and may lead anywhere: remove it")


def _text(path: Path) -> str:
    """Return the text of a small file; empty if it is not one."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > _LARGEST:
            return ""
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


# Our own folder -----------------------------------------------------------------------------------


def own_folder(place: Place) -> Path:
    """Make the folder that commands on files have as git's: outside of all that a run writes to.

    It has the lines of ours, the index of each run, and what the user of the repository ignores. It
    may be removed at any time: then git reads all files once.
    """
    cache_folder = _cache(place)
    folder = cache_folder / hashlib.sha256(os.fsencode(place.git)).hexdigest()[:32]
    if not folder.exists():
        _forget_lost(cache_folder)
    for name in ("info", "objects", "refs"):
        (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    ignored = _text(place.common / "info" / "exclude")
    for name, text in (
        ("HEAD", "ref: refs/heads/none\n"),
        ("config", _SHA256 if _IS_SHA256.search(_text(place.common / "config")) else CONFIG),
        ("info/attributes", ATTRIBUTES),
        ("repository", str(place.git)),
        ("info/exclude", f"{_text(_users_ignored())}\n{ignored}"),
    ):
        if _text(folder / name) != text:
            written = folder / f"{name}.{os.getpid()}"
            written.write_text(text, errors="surrogateescape")
            written.replace(folder / name)
    return folder


def _forget_lost(cache_folder: Path) -> None:
    """Remove the folders of repositories that are gone."""
    for folder in cache_folder.iterdir():
        repository = _text(folder / "repository")
        if repository and not os.path.lexists(repository):
            shutil.rmtree(folder, ignore_errors=True)


def _cache(place: Place) -> Path:
    """Return the folder of all such folders: the user's for such things, or one for this
    process.
    """
    top = place.top or place.common
    base = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "pgflow" / "git"
    )
    if _is_ours(base) and not base.resolve().is_relative_to(top):
        return base
    return _for_this_process()


def _is_ours(base: Path) -> bool:
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = base.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and os.access(base, os.W_OK)


@cache
def _for_this_process() -> Path:
    return Path(tempfile.mkdtemp(prefix="pgflow-git-"))


@cache
def _users_ignored() -> Path:
    """Return the file of all that the user ignores everywhere."""
    printed = subprocess.run(
        ["git", "config", "--type=path", "--get", "core.excludesFile"],  # noqa: S607
        cwd="/",
        env={**os.environ, "GIT_DIR": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.rstrip("\n")
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(printed) if printed else Path(home, "git", "ignore")
