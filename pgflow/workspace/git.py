"""The plumbing of git: commands in one folder, with an index, a configuration and a name of ours.

Nothing here touches the user's index, branches or HEAD, runs a hook of theirs, or asks a person.
And nothing trusts the repository: a writer of the folder may write its ``.git`` too.
Commands come in three kinds, each with an environment of a few variables:

- on files and objects: with a git folder of our own (`pgflow.workspace.places`), which shares only
  the objects. Neither the repository's configuration nor any attribute is read, so no filter, no
  driver, no ``core.worktree`` and no alias counts;
- on references and working trees (``rev-parse``, ``update-ref``, ``worktree``, ``branch``): with
  the repository's git folder, but only commands that run no program which a configuration names;
- with a remote (``push``, ``ls-remote``): with our git folder and the user's own configuration,
  for it has their credentials.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from pgflow.workspace.places import Place, WorkspaceError, find_place, own_folder, run_bounded

MIN_VERSION = (2, 38)
"""The first whose ``merge-tree`` writes a tree."""
SETTINGS = {
    "advice.addEmbeddedRepo": "false",
    "commit.gpgSign": "false",
    "core.alternateRefsCommand": ":",
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.quotePath": "false",
    "core.sparseCheckout": "false",
    "core.splitIndex": "false",
    "core.untrackedCache": "false",
    "gc.auto": "0",
    "log.showSignature": "false",
    "push.gpgSign": "false",
    "push.recurseSubmodules": "no",
    "submodule.recurse": "false",
}
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "pgflow"), ("EMAIL", "pgflow@localhost"))
}
ALWAYS: Final = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": ":",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
"""Variables of every command but those with a remote, which need the user's configuration."""
PASSED: Final = ("HOME", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER", "XDG_CONFIG_HOME")
"""Variables of the worker that git sees; of all others it sees none."""
PASSED_TO_REMOTES: Final = (
    "ALL_PROXY", "CURL_CA_BUNDLE", "GH_TOKEN", "GITHUB_TOKEN", "GIT_ASKPASS", "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO",
    "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSH_AGENT_PID", "SSH_ASKPASS", "SSH_AUTH_SOCK",
    "SSL_CERT_DIR", "SSL_CERT_FILE", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Variables of the worker that a remote needs beside those."""
PROTOCOLS: Final = "file:git:http:https:ssh"
ON_FILES: Final = frozenset(
    {"add", "commit-tree", "diff", "diff-index", "log", "ls-files", "merge-tree", "mktree",
     "read-tree", "update-index", "write-tree"}
)  # fmt: skip
WITH_REMOTES: Final = frozenset({"push", "ls-remote"})
_QUIET_FOLDER: Final = (
    "git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.alternateRefsCommand=: "
    "-c receive.denyCurrentBranch=refuse -c receive.autogc=false -c gc.auto=0"
)
"""Git in a remote that is a folder, which runs no program that a configuration names."""


class Conflict(WorkspaceError):
    """Two changes of the same lines: nothing was changed.

    Attributes:
        paths: The files that both have changed.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        super().__init__(f"both sides have changed {', '.join(paths)}: nothing was changed")


class Moved(WorkspaceError):
    """Another process has worked in this folder for this run meanwhile: the present work does not
    count.
    """


class Fenced(Moved):
    """Another run with a greater fence, which holds the lease now, has worked here."""


@dataclass(frozen=True)
class Git:
    """Git in one folder.

    Attributes:
        folder: Top folder of a working tree.
    """

    folder: str

    def run(
        self,
        *arguments: str,
        index: Path | None = None,
        given: bytes = b"",
        may: tuple[int, ...] = (),
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command.

        Args:
            arguments: Of git.
            index: File of the index that it uses instead of the user's.
            given: Its standard input.
            may: Exit codes beside 0 that are not failures.

        Raises:
            WorkspaceError: It fails, and the error has its output; or it does not end.
        """
        command = arguments[0]
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        environment = self._environment(command, index)
        words = self._with_address(arguments) if command in WITH_REMOTES else arguments
        done = run_bounded([find_git(), *settings, *words], self.folder, environment, given)
        if done.returncode not in (0, *may):
            message = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
            raise WorkspaceError(f"git {command} in {self.folder}: {message}")
        return done

    @cached_property
    def place(self) -> Place:
        """The repository that the folder is of."""
        return find_place(Path(self.folder))

    def _environment(self, command: str, index: Path | None) -> dict[str, str]:
        """Return the variables of a command; see the top of this file."""
        place = self.place
        names = PASSED + (PASSED_TO_REMOTES if command in WITH_REMOTES else ())
        environment = {name: os.environ[name] for name in names if name in os.environ}
        if command in WITH_REMOTES:
            always = {name: ALWAYS[name] for name in ALWAYS if not name.startswith("GIT_CONFIG")}
            environment = always | environment | {"GIT_ALLOW_PROTOCOL": PROTOCOLS}
        else:
            environment |= ALWAYS
        if command in ON_FILES | WITH_REMOTES:
            environment["GIT_DIR"] = str(own_folder(place))
            environment["GIT_OBJECT_DIRECTORY"] = str(place.common / "objects")
            if (place.common / "shallow").is_file():
                environment["GIT_SHALLOW_FILE"] = str(place.common / "shallow")
        else:
            environment |= {"GIT_DIR": str(place.git), "GIT_COMMON_DIR": str(place.common)}
        if place.top is not None:
            environment["GIT_WORK_TREE"] = str(place.top)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        return environment | IDENTITY

    def _with_address(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments with the address of a remote in the place of its name.

        An address in the repository's own configuration is untrusted. So a folder that it names is
        written to without its hooks, and only protocols of git count.
        """
        at = arguments.index("--end-of-options") + 1
        address = find_address(self.place, arguments[at])
        quiet: list[str] = []
        if address != arguments[at] and is_folder(address):
            side = "receive-pack" if arguments[0] == "push" else "upload-pack"
            quiet = [f"--{side}={_QUIET_FOLDER} {side}"]
        return [arguments[0], *quiet, *arguments[1:at], address, *arguments[at + 1 :]]

    def ask(self, *arguments: str, index: Path | None = None) -> str:
        """Returns what a command prints, without the last line's end."""
        return (
            self.run(*arguments, index=index).stdout.decode(errors="surrogateescape").rstrip("\n")
        )

    def find(self, name: str) -> str | None:
        """Returns the commit that a name means, or None."""
        done = self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", may=(1, 128))
        return done.stdout.decode().strip() or None

    def common_folder(self) -> Path:
        """Returns the folder of the repository, which its working trees share."""
        return self.place.common

    def has_worktree(self, place: Path) -> bool:
        """Returns True if a whole working tree is there; one that was half made is removed."""
        if place.is_symlink():
            raise WorkspaceError(f"{place} is a symbolic link: remove it")
        if (place / ".git").exists() and (find_place(place).git / "locked").exists():
            self.remove_worktree(place, is_locked=True)
        return (place / ".git").exists()

    def add_worktree(self, place: Path, base: str, *options: str) -> None:
        """Makes a working tree: its files are those of a commit byte for byte, without filters.

        Args:
            place: Folder of it.
            base: Name of the commit, or of a branch.
            options: Of ``git worktree add``.
        """
        self.run("worktree", "prune")
        locked = ("--lock", "--no-checkout", "--quiet", "--force")
        self.run("worktree", "add", *locked, *options, str(place), base)
        made = Git(str(place))
        made.run("read-tree", "--reset", "-u", made.tree_of("HEAD"), index=made.place.git / "index")
        self.run("worktree", "unlock", str(place))

    def remove_worktree(self, place: Path, *, is_locked: bool = False) -> None:
        """Remove a working tree with all that is in it; a locked one only with ``is_locked``."""
        if place.is_symlink():
            raise WorkspaceError(f"{place} is a symbolic link: remove it")
        forced = ["--force"] * (1 + is_locked)
        self.run("worktree", "remove", *forced, str(place))

    def is_clean(self) -> bool:
        """Returns True if the files and the user's index are those of HEAD."""
        head = self.tree_of("HEAD")
        with self.index("%clean") as index:
            self.run("read-tree", head, index=index)
            self.take_in(":/", index=index)
            if self.ask("write-tree", index=index) != head:
                return False
        staged = self.place.git / "index"
        done = self.run(
            "diff-index",
            "--cached",
            "--quiet",
            "--ignore-submodules=dirty",
            head,
            index=staged,
            may=(1,),
        )
        return done.returncode == 0 or not staged.exists()

    def take_in(self, *paths: str, index: Path, options: Sequence[str] = ()) -> None:
        """Puts files into an index as they are.

        Repositories within the folder are taken anew: of one that is in the index already, git asks
        for the state, with its configuration and its filters.
        """
        entries = self.run("ls-files", "--stage", "-z", index=index).stdout
        inner = [line.partition(b"\t")[2] for line in entries.split(b"\0") if line[:6] == b"160000"]
        if inner:
            given = b"".join(path + b"\0" for path in inner)
            self.run("update-index", "--force-remove", "-z", "--stdin", index=index, given=given)
        self.run("add", *options, "--all", "--", *paths, index=index)

    def tree_of(self, commit: str) -> str:
        """Returns the tree of a commit."""
        return self.ask("rev-parse", "--verify", f"{commit}^{{tree}}")

    def commit(self, tree: str, message: str, parents: Sequence[str]) -> str:
        """Writes a commit, which no reference names yet."""
        named = [part for parent in parents for part in ("-p", parent)]
        done = self.run("commit-tree", tree, *named, "-F", "-", given=message.encode())
        return done.stdout.decode().strip()

    def move(self, reference: str, to: str, expected: str | None, why: str) -> None:
        """Lets a reference name a commit, if it still names the one that it is expected to.

        Raises:
            Moved: If it does not.
        """
        self.place.refuse_links(reference)
        done = self.run(
            "update-ref",
            "--create-reflog",
            "-m",
            why,
            reference,
            to,
            expected or "",
            may=(1, 128),
        )
        if done.returncode != 0:
            if b".lock': File exists" in done.stderr:
                complaint = done.stderr.decode(errors="replace").strip().splitlines()[0]
                raise WorkspaceError(
                    f"{complaint} Remove it if no git works in {self.folder}: one that was killed "
                    "leaves it behind"
                )
            raise Moved(
                f"{reference} is no longer at {expected or 'its beginning'}: another process has "
                "worked here for the same run"
            )

    def merge(self, base: str, ours: str, theirs: str) -> str:
        """Returns the tree that has the changes of both sides since a base.

        Args:
            base: Tree.
            ours: Tree.
            theirs: Tree.

        Raises:
            Conflict: If they have changed the same.
        """
        root = self.commit(base, "base", [])
        sides = [self.commit(tree, "side", [root]) for tree in (ours, theirs)]
        return self.merge_commits(*sides)

    def merge_commits(self, ours: str, theirs: str) -> str:
        """Returns the tree that has the changes of both commits since they parted.

        Raises:
            Conflict: If they have changed the same.
        """
        done = self.run(
            "merge-tree",
            "--write-tree",
            "--name-only",
            "--no-messages",
            "-z",
            ours,
            theirs,
            may=(1,),
        )
        tree, *names = done.stdout.decode(errors="surrogateescape").split("\0")
        if done.returncode != 0:
            raise Conflict(sorted({name for name in names if name}))
        return tree.strip()

    @contextmanager
    def index(self, name: str) -> Iterator[Path]:
        """Yields a copy of an index of ours, which takes its place if the block ends well.

        A copy, for a lock of git's that a killed process leaves would lock the others out.
        """
        folder = own_folder(self.place)
        lasting = folder / f"{name}.index"
        copy = folder / f"{name}.{secrets.token_hex(6)}.index"
        try:
            with suppress(FileNotFoundError):
                shutil.copy2(lasting, copy)  # with its time, by which git finds recent changes
            yield copy
            copy.replace(lasting)
        finally:
            copy.unlink(missing_ok=True)


def read_remote(place: Place, name: str, key: str) -> str | None:
    """Reads an address from the file of a repository's configuration, and from no other file."""
    words = ("--file", str(place.common / "config"), "--no-includes", "--get")
    environment = ALWAYS | {"PATH": os.environ.get("PATH", "")}
    command = [find_git(), "config", *words, f"remote.{name}.{key}"]
    done = run_bounded(command, place.common, environment)
    return os.fsdecode(done.stdout).rstrip("\n") or None


def find_address(place: Place, remote: str) -> str:
    """Return the address of a remote, given its name or address.

    Raises:
        WorkspaceError: The repository has an invalid address for it.
    """
    if not re.fullmatch(r"[\w.-]+", remote):
        return remote
    address = read_remote(place, remote, "pushurl") or read_remote(place, remote, "url")
    if address is None:
        return remote
    if re.match(r"-|[\w+.-]+::", address):
        raise WorkspaceError(f"remote {remote} of {place.top} runs a program: {address}")
    return address


def is_folder(address: str) -> bool:
    """Returns True for the path of a folder, or its address."""
    return address.startswith("file:") or ":" not in address.partition("/")[0]


def find_git() -> str:
    """Return the program, which must be new enough.

    Raises:
        WorkspaceError: It is missing, or too old.
    """
    global _program  # noqa: PLW0603 - once a process
    if _program is None:
        found = shutil.which("git")
        if found is None:
            raise WorkspaceError("git is not on the PATH: a workspace needs it")
        printed = subprocess.run(  # noqa: S603 - see above
            [found, "--version"], capture_output=True, text=True, check=True
        ).stdout
        numbers = re.search(r"(\d+)\.(\d+)", printed)
        if numbers is None or (int(numbers[1]), int(numbers[2])) < MIN_VERSION:
            wanted = ".".join(map(str, MIN_VERSION))
            raise WorkspaceError(
                f"a workspace needs git {wanted} or newer, this is {printed.strip()}"
            )
        _program = found
    return _program


_program: str | None = None
