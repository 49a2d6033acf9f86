"""Random programs over workspaces, under kills: `python -m tests.workspaces [--programs N] [--seed
S]`.

Two agents work in working trees of one repository. They edit, commit, switch branches, push, change
files under keys, rewind, drop and pick, and are killed with SIGKILL before or after any command of
git. A model says what each folder must have. At the end each snapshot gives the files of its
moment, no act was done twice or lost, and nothing of ours has touched what is the user's.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "kits"))

from gitkit import Files, git, make_repository, of_the_user, read_files

from pgflow.workspace import Conflict, Snapshot, Workspace
from pgflow.workspace import git as git_module
from pgflow.workspace.snapshots import Kind

NAMES = ("a", "b", "sub/c", "sub/d e", "ü")
COMMANDS = 24
"""More than any operation runs: a kill behind the last one is none."""


class Killed(Exception):
    """The child has come to its end by SIGKILL."""


def in_child(work: Callable[[], None], at_command: int | None) -> None:
    """Does work in a process of its own, which dies at its n-th command of git.

    Raises:
        Killed: If it has died of that.
    """
    child = os.fork()
    if child == 0:
        left = at_command
        run = git_module.Git.run

        def counted(self: git_module.Git, *arguments: str, **options: object) -> object:
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return run(self, *arguments, **options)  # type: ignore[arg-type]

        git_module.Git.run = counted  # type: ignore[method-assign,assignment]
        code = 1
        try:
            work()
            code = 0
        except Conflict:
            code = 3
        except BaseException:  # noqa: BLE001 - it must not go on as the parent
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise Killed
    if os.WEXITSTATUS(status) == 3:
        raise Conflict(["?"])
    assert os.WEXITSTATUS(status) == 0, "the child has failed"


class Agent:
    """One folder, and what the model says of it."""

    def __init__(self, ws: Workspace) -> None:
        self.ws = ws
        self.files = read_files(ws.path)
        self.seen: dict[str, Files] = {}
        """Snapshot -> files of its moment."""
        self.changes: list[Snapshot] = []
        self.keys = 0

    @property
    def folder(self) -> Path:
        return Path(self.ws.path)

    def write(self, name: str, content: bytes | None, *, runs: bool = False) -> None:
        write(self.folder, name, content, runs=runs)
        self.files = read_files(self.folder)

    def note(self, snapshot: Snapshot | None) -> None:
        """Remembers the files of a snapshot that has just been made."""
        if snapshot is not None:
            self.seen[snapshot.commit] = self.files


def write(folder: Path, name: str, content: bytes | None, *, runs: bool = False) -> None:
    path = folder / name
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if runs else 0o644)


class Program:
    """One random program.

    Attributes:
        counts: Number of times of each operation, and of kills.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.repository = make_repository(folder / "repository", a="a", b="b")
        git(folder, "init", "--quiet", "--bare", "remote")
        git(self.repository, "remote", "add", "origin", str(folder / "remote"))
        self.agents = [
            Agent(Workspace(str(self.repository), "one")),
            Agent(Workspace.in_worktree(self.repository, "two")),
        ]
        self.tokens = 0

    def run(self, operations: int) -> Counter[str]:
        """Runs it, and looks whether each snapshot gives its files."""
        for _ in range(operations):
            agent = self.dice.choice(self.agents)
            other = self.agents[1 - self.agents.index(agent)]
            apart = read_files(other.folder)
            name = self.dice.choice(
                ["edit", "edit", "user", "change", "change", "change", "rewind", "drop", "pick"]
            )
            self.counts[name] += 1
            getattr(self, name)(agent)
            assert read_files(agent.folder) == agent.files, name
            assert read_files(other.folder) == apart, f"{name} has changed another's folder"
        for agent in self.agents:
            self._look_at_all(agent)
        git(self.repository, "fsck", "--no-dangling", "--no-progress")
        return self.counts

    # ------------------------------------------------------------ what users do

    def edit(self, agent: Agent) -> None:
        """A person, or a program, writes."""
        name = self.dice.choice(NAMES)
        content = None if self.dice.random() < 0.25 else self._content()
        agent.write(name, content, runs=self.dice.random() < 0.2)

    def user(self, agent: Agent) -> None:
        """The user works with git: stages, commits, switches, pushes, stashes."""
        what = self.dice.choice(["stage", "commit", "switch", "push", "stash"])
        if what in ("commit", "stash", "switch"):
            git(agent.folder, "add", "--all")
        if what == "stage":
            git(agent.folder, "add", "--all")
        elif what == "commit":
            git(agent.folder, "commit", "--quiet", "--allow-empty", "--message", "mine")
        elif what == "switch":
            self.tokens += 1
            git(agent.folder, "commit", "--quiet", "--allow-empty", "--message", "mine")
            at = self.dice.choice(["HEAD", "HEAD~1"]) if self._depth(agent) > 1 else "HEAD"
            git(agent.folder, "switch", "--quiet", "--create", f"branch-{self.tokens}", at)
        elif what == "push":
            git(agent.folder, "push", "--quiet", "--force", "origin", "HEAD:refs/heads/pushed")
        else:
            git(agent.folder, "stash", "--quiet")
        agent.files = read_files(agent.folder)

    # ------------------------------------------------------------ what is ours

    def change(self, agent: Agent) -> None:
        """An act under a key, tried until it is done: what it appends is there once."""
        agent.keys += 1
        key, name, token = f"k{agent.keys}", self.dice.choice(NAMES), self._content()

        def act() -> None:
            with agent.ws.change(key, decision=f"d{agent.keys // 4}") as change:
                if change.done is None:
                    path = agent.folder / name
                    found = path.read_bytes() if path.exists() else b""
                    write(agent.folder, "scratch", b"half")
                    git_module.Git(agent.ws.path).run("version")  # a place to die at
                    write(agent.folder, name, found + token)
                    git_module.Git(agent.ws.path).run("version")
                    write(agent.folder, "scratch", None)

        before = read_files(agent.folder)
        self._until_done(agent, act)
        found, runs = before.get(name, (b"", False))
        agent.files = {**before, name: (found + token, False)}
        agent.files.pop("scratch", None)
        assert read_files(agent.folder) == agent.files, (name, runs)
        self._once(agent, key)
        made = agent.ws.find_change(key)
        assert made is not None
        agent.note(made)
        agent.changes.append(made)

    def rewind(self, agent: Agent) -> None:
        """To a moment that the model knows."""
        if not agent.seen:
            return
        commit = self.dice.choice(sorted(agent.seen))
        self._until_done(agent, lambda: agent.ws.rewind(commit))  # type: ignore[arg-type,return-value]
        agent.files = agent.seen[commit]

    def drop(self, agent: Agent) -> None:
        """One change is taken back, or conflicts with a later one."""
        if agent.changes:
            change = self.dice.choice(agent.changes)
            self._merge(agent, agent, change, lambda: agent.ws.drop(change), reverse=True)

    def pick(self, agent: Agent) -> None:
        """One change of the other comes here."""
        other = self.agents[1 - self.agents.index(agent)]
        if other.changes:
            change = self.dice.choice(other.changes)
            self._merge(agent, other, change, lambda: agent.ws.pick(change))

    # ------------------------------------------------------------ the model

    def _merge(
        self,
        agent: Agent,
        source: Agent,
        change: Snapshot,
        work: Callable[[], object],
        *,
        reverse: bool = False,
    ) -> None:
        before, after = self._sides(source, change)
        if reverse:
            before, after = after, before
        wanted, conflict = merge(before, agent.files, after)
        try:
            self._until_done(agent, work)  # type: ignore[arg-type]
        except Conflict:
            assert conflict, "no conflict was expected"
            return
        assert not conflict, f"a conflict was expected at {conflict}"
        agent.files = wanted

    def _sides(self, agent: Agent, change: Snapshot) -> tuple[Files, Files]:
        """The files before and after a change: of git's objects, which the snapshots are."""
        return (
            read_commit(agent.folder, f"{change.commit}^"),
            read_commit(agent.folder, change.commit),
        )

    def _until_done(self, agent: Agent, work: Callable[[], None]) -> None:
        """Tries again after each death, as a run does; the user's own stays as it is."""
        own = of_the_user(agent.folder)
        try:
            for _ in range(3):
                at = self.dice.randrange(COMMANDS) if self.dice.random() < 0.5 else None
                try:
                    in_child(work, at)
                except Killed:
                    self.counts["killed"] += 1
                    continue
                return
            in_child(work, None)
        finally:
            assert of_the_user(agent.folder) == own, "what is the user's was touched"

    def _once(self, agent: Agent, key: str) -> None:
        made = [one for one in agent.ws.history() if one.kind == "change" and one.key == key]
        assert len(made) == 1, f"{key} was done {len(made)} times"

    def _look_at_all(self, agent: Agent) -> None:
        for commit, files in agent.seen.items():
            assert read_commit(agent.folder, commit) == files, "a snapshot has changed"
        kinds: Counter[Kind] = Counter(one.kind for one in agent.ws.history())
        self.counts.update(f"snapshots: {kind}" for kind in kinds.elements())
        for commit in self.dice.sample(sorted(agent.seen), min(3, len(agent.seen))):
            agent.ws.rewind(commit)
            assert read_files(agent.folder) == agent.seen[commit], "a rewind gives other files"

    def _content(self) -> bytes:
        self.tokens += 1
        return f"<{self.tokens}>".encode()

    def _depth(self, agent: Agent) -> int:
        return int(git(agent.folder, "rev-list", "--count", "HEAD"))


def read_commit(folder: Path, commit: str) -> Files:
    """The files of a commit."""
    found: Files = {}
    listed = git(folder, "-c", "core.quotePath=false", "ls-tree", "-r", "-z", commit)
    for line in filter(None, listed.split("\0")):
        about, name = line.split("\t", 1)
        mode, _, blob = about.split()
        found[name] = (git(folder, "cat-file", "blob", blob).encode(), mode == "100755")
    return found


def merge(base: Files, ours: Files, theirs: Files) -> tuple[Files, list[str]]:
    """Merge files of one line each, as git does: files, and those in conflict."""
    merged, conflicts = dict(ours), []
    for name in {*base, *theirs}:
        was, now, wanted = (files.get(name) for files in (base, ours, theirs))
        if was == wanted or now == wanted:
            continue
        if now == was:
            if wanted is None:
                merged.pop(name, None)
            else:
                merged[name] = wanted
            continue
        parts = None if None in (was, now, wanted) else _merge_parts(was, now, wanted)  # type: ignore[arg-type]
        if parts is None:
            conflicts.append(name)
        else:
            merged[name] = parts
    return merged, conflicts


def _merge_parts(
    was: tuple[bytes, bool], now: tuple[bytes, bool], wanted: tuple[bytes, bool]
) -> tuple[bytes, bool] | None:
    """Content and mode merge apart."""
    text = wanted[0] if now[0] == was[0] else now[0] if wanted[0] in (was[0], now[0]) else None
    runs = wanted[1] if now[1] == was[1] else now[1]
    return None if text is None else (text, runs)


def main() -> int:
    """Runs the programs, and prints what they did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--operations", type=int, default=25, help="of a program")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.programs):
        with tempfile.TemporaryDirectory() as folder:
            try:
                counts += Program(seed, Path(folder)).run(options.operations)
            except BaseException:
                print(f"seed {seed}")
                raise
    print(f"{options.programs} programs: 0 wrong; {dict(sorted(counts.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
