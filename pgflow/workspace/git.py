"""The plumbing of git: commands in one folder, with an index and an identity of ours.

Nothing here touches the user's index, branches or HEAD, runs a hook of theirs, or asks a person.
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

from pgflow.errors import PgflowError

MIN_VERSION = (2, 38)
"""The first whose ``merge-tree`` writes a tree."""
SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.quotePath": "false",
    "core.splitIndex": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "advice.addEmbeddedRepo": "false",
}
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "pgflow"), ("EMAIL", "pgflow@localhost"))
}
OF_A_REPOSITORY = frozenset(
    f"GIT_{name}"
    for name in (
        "ALTERNATE_OBJECT_DIRECTORIES",
        "COMMON_DIR",
        "CONFIG",
        "CONFIG_COUNT",
        "CONFIG_PARAMETERS",
        "DIR",
        "GRAFT_FILE",
        "IMPLICIT_WORK_TREE",
        "INDEX_FILE",
        "NO_REPLACE_OBJECTS",
        "OBJECT_DIRECTORY",
        "PREFIX",
        "REPLACE_REF_BASE",
        "SHALLOW_FILE",
        "WORK_TREE",
    )
)
"""Variables of one repository, which a hook may have set: ``git rev-parse --local-env-vars``."""
NOTHING = "0" * 40


class WorkspaceError(PgflowError):
    """Something that git or the folder refuses; the text says which command, and why."""


class Conflict(WorkspaceError):
    """Two changes of the same lines: nothing was changed.

    Attributes:
        paths: The files that both have changed.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        super().__init__(f"both sides have changed {', '.join(paths)}: nothing was changed")


class Moved(WorkspaceError):
    """Somebody else has worked in this folder for this run meanwhile: what was done here does not
    count.
    """


class Fenced(Moved):
    """Somebody with a greater fence has worked here: whoever holds the lease now."""


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
        """Runs a command.

        Args:
            arguments: Of git.
            index: File of the index that it uses instead of the user's.
            given: Its standard input.
            may: Exit codes beside 0 that are no failure.

        Raises:
            WorkspaceError: If it fails, with what it has printed.
        """
        environment = {
            name: value for name, value in os.environ.items() if name not in OF_A_REPOSITORY
        }
        environment |= IDENTITY | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [find_git(), *settings, *arguments]
        try:
            done = subprocess.run(  # noqa: S603 - a list of words, and none of them a program
                command,
                cwd=self.folder,
                env=environment,
                input=given,
                capture_output=True,
                check=False,
            )
        except OSError as error:
            raise WorkspaceError(f"cannot run git in {self.folder}: {error}") from None
        if done.returncode not in (0, *may):
            said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
            raise WorkspaceError(f"git {arguments[0]} in {self.folder}: {said}")
        return done

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
        return Path(self.ask("rev-parse", "--path-format=absolute", "--git-common-dir"))

    def has_worktree(self, place: Path) -> bool:
        """Returns True if a whole working tree is there; one that was half made is removed."""
        if (place / ".git").exists():
            own = Path(Git(str(place)).ask("rev-parse", "--absolute-git-dir"))
            if (own / "locked").exists():  # git locks one until all of its files are there
                self.run("worktree", "remove", "--force", "--force", str(place))
        return (place / ".git").exists()

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
        done = self.run(
            "update-ref",
            "--create-reflog",
            "-m",
            why,
            reference,
            to,
            expected or NOTHING,
            may=(1, 128),
        )
        if done.returncode != 0:
            raise Moved(
                f"{reference} is not at {expected or 'its beginning'} any more: somebody else has "
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

    @cached_property
    def own_folder(self) -> Path:
        """The folder of what is ours, within that of git: each working tree has one."""
        return Path(self.ask("rev-parse", "--absolute-git-dir")) / "pgflow"

    @contextmanager
    def index(self, name: str) -> Iterator[Path]:
        """Yields a copy of an index of ours, which takes its place if the block ends well.

        A copy, for a lock of git's that a killed process leaves would lock the others out.
        """
        self.own_folder.mkdir(exist_ok=True)
        lasting = self.own_folder / f"{name}.index"
        copy = self.own_folder / f"{name}.{secrets.token_hex(6)}.index"
        try:
            with suppress(FileNotFoundError):
                shutil.copy2(lasting, copy)  # with its time, by which git tells what is young
            yield copy
            copy.replace(lasting)
        finally:
            copy.unlink(missing_ok=True)


def find_git() -> str:
    """Returns the program, which must be young enough.

    Raises:
        WorkspaceError: If there is none.
    """
    global _program  # noqa: PLW0603 - once a process
    if _program is None:
        found = shutil.which("git")
        if found is None:
            raise WorkspaceError("there is no git on the PATH: a workspace needs it")
        said = subprocess.run(  # noqa: S603 - see above
            [found, "--version"], capture_output=True, text=True, check=True
        ).stdout
        numbers = re.search(r"(\d+)\.(\d+)", said)
        if numbers is None or (int(numbers[1]), int(numbers[2])) < MIN_VERSION:
            wanted = ".".join(map(str, MIN_VERSION))
            raise WorkspaceError(f"a workspace needs git {wanted} or newer, this is {said.strip()}")
        _program = found
    return _program


_program: str | None = None
