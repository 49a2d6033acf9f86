"""A folder that an agent works in: a working tree of git, and the snapshots of one run of it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pgflow.workspace.git import Conflict, Fenced, Git, Moved
from pgflow.workspace.places import WorkspaceError
from pgflow.workspace.snapshots import Operation, Snapshot

REFERENCES = "refs/agent/"
"""Folder of the references of runs: neither branches nor tags, so no list of these shows them."""


@dataclass
class Change:
    """A change under way.

    Attributes:
        done: Its snapshot, if it was made before; then there is nothing to do.
    """

    done: Snapshot | None = None


@dataclass(frozen=True)
class Workspace:
    """A working tree of git, and the snapshots that one run makes of it.

    It may be an argument of workflows and steps. Snapshots are commits under ``refs/agent/<run>``.
    They have each file that git does not ignore, whatever the user has staged, committed or
    switched to, and touch neither their index nor their branches.

    Attributes:
        path: Top folder of the working tree.
        run: Name of the run: each has a reference of its own.
        include: Paths that git ignores, and snapshots have all the same.
        live: Paths that no snapshot has and no rewind touches: a local database, say.
        fence: Fence of the lease of the folder; see `lease`.
    """

    path: str
    run: str
    include: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    fence: int = 0

    # ------------------------------------------------------------ making

    @classmethod
    def in_worktree(
        cls,
        repository: str | Path,
        run: str,
        *,
        base: str = "HEAD",
        include: Sequence[str] = (),
        live: Sequence[str] = (),
    ) -> Workspace:
        """Give a run a working tree of its own, beside those of others; the same one if it has it.

        Args:
            repository: Folder of a repository.
            run: Name of the run.
            base: Commit whose files it begins with.
            include: See `Workspace`.
            live: See `Workspace`.

        Raises:
            WorkspaceError: If the repository or commit does not exist.
        """
        git = Git(str(repository))
        folder = git.common_folder() / "pgflow" / "worktrees" / quoted(run)
        if not git.has_worktree(folder):
            if git.find(base) is None:
                raise WorkspaceError(f"{repository} has no commit {base}")
            git.add_worktree(folder, base, "--detach")
        return cls(str(folder), run, tuple(include), tuple(live))

    def remove(self) -> None:
        """Removes a working tree that `in_worktree` has made. Its snapshots stay."""
        folder = Path(self.path)
        if folder.parent.name != "worktrees" or folder.parent.parent.name != "pgflow":
            raise WorkspaceError(f"{self.path} is a folder of yours: remove it yourself")
        if folder.exists():
            self.git.remove_worktree(folder, is_locked=True)

    def fenced(self, fence: int) -> Workspace:
        """Return the same, worked in under a lease. A run with a smaller fence than the newest is
        refused.
        """
        return replace(self, fence=fence)

    @property
    def reference(self) -> str:
        """The reference of its snapshots."""
        return REFERENCES + quoted(self.run)

    # ------------------------------------------------------------ snapshots

    def save(self, note: str = "") -> Snapshot | None:
        """Make a snapshot of the changes since the last one.

        Args:
            note: A line for people.

        Returns:
            It, or the last one if nothing is different; None if there is none and no file either.

        Raises:
            Moved: If another process has worked here for this run meanwhile.
        """
        return self._save(self._carry_on(), note)

    @contextmanager
    def change(self, key: str, *, note: str = "", decision: str | None = None) -> Iterator[Change]:
        """Make a snapshot of the block's changes to the files: once for one key.

        If it was made before, `Change.done` is that snapshot, and the block must do nothing.
        Leftovers of an earlier try are put aside, as a snapshot, and the folder is as before it. So
        are those of a block that raises.

        Args:
            key: Idempotency key of the act.
            note: A line for people.
            decision: Id of the decision that it rests on.

        Raises:
            Moved: If another process has worked here for this run meanwhile: the snapshot is not
                made, and the change does not count.
        """
        found = self.find_change(key)
        if found is not None:
            yield Change(found)
            return
        tip = self._save(self._carry_on(), "")
        begun = self._add(
            Snapshot("", "begin", note=note, key=key, decision=decision, of="change"),
            self._tree(tip),
            tip,
        )
        change = Change()
        try:
            yield change
        except BaseException:
            self._put_back(begun)
            raise
        made = Snapshot("", "change", note=note, key=key, decision=decision)
        change.done = self._add(made, self._look(), begun)

    def rewind(self, to: Snapshot | str) -> Snapshot:
        """Gives the folder the files of an older snapshot. What is changed by hand is saved before.

        Args:
            to: The snapshot, or the id of its commit.
        """
        target = self._known(to)
        return self._become("rewind", target, lambda _: self.git.tree_of(target.commit))

    def drop(self, change: Snapshot | str) -> Snapshot:
        """Takes one change back, and keeps those after it.

        Args:
            change: Its snapshot, or the id of its commit.

        Raises:
            Conflict: If a later one has changed the same lines. Nothing is changed then.
        """
        target = self._known(change)
        before, after = self._trees(target)
        return self._become("drop", target, lambda now: self.git.merge(after, now, before))

    def pick(self, change: Snapshot | str) -> Snapshot:
        """Does one change of another run, of the same repository, here too.

        Args:
            change: Its snapshot, or the id of its commit.

        Raises:
            Conflict: If the same lines are different here. Nothing is changed then.
        """
        target = change if isinstance(change, Snapshot) else self._read(change)
        before, after = self._trees(target)
        return self._become("pick", target, lambda now: self.git.merge(before, now, after))

    # ------------------------------------------------------------ looking

    def history(self) -> list[Snapshot]:
        """Lists the snapshots, the newest first."""
        return list(self._snapshots())

    def find(self, commit: str) -> Snapshot | None:
        """Finds a snapshot by the id of its commit, also one of before a compaction."""
        return next((one for one in self._snapshots() if one.is_named(commit)), None)

    def find_change(self, key: str) -> Snapshot | None:
        """Finds the snapshot of the act that had a key."""
        return next((one for one in self._snapshots() if one.stands_for(key)), None)

    def base(self) -> str | None:
        """Returns the commit that the first snapshot was made on: None where there was none."""
        first = next(iter(self.history()[::-1]), None)
        return self.git.find("HEAD" if first is None else f"{first.commit}^")

    def diff(self, snapshot: Snapshot | str, *, since: Snapshot | str | None = None) -> str:
        """Returns the difference that a snapshot makes, as a patch.

        Args:
            snapshot: It.
            since: Compared with this one; with the one before it if not given.
        """
        target = self._known(snapshot)
        before = self._trees(target)[0] if since is None else self._known(since).commit
        return self.git.ask(
            "diff", "--no-color", "--no-ext-diff", "--no-textconv", before, target.commit
        )

    def conflicts_with(self, other: str) -> list[str]:
        """Lists the files that both this run and a branch, or another run's reference, have changed
        since they parted, so that a merge needs a person; without any it is a merge of git's own.

        Args:
            other: Name of a commit.
        """
        tip = self._tip()
        if tip is None:
            return []
        try:
            self.git.merge_commits(tip.commit, self.git.find(other) or other)
        except Conflict as conflict:
            return conflict.paths
        return []

    # ------------------------------------------------------------ compaction

    def compact(self, keep: int = 50) -> int:
        """Join old snapshots: the newest are kept as they are, and of the older ones the last of
        each decision. Ids and keys of removed ones find the snapshot that replaces them.

        Args:
            keep: Number of the newest ones that are kept.

        Returns:
            Number of snapshots that are gone.
        """
        tip = self._carry_on()
        if tip is None:
            return 0
        every = self.history()[::-1]
        cut = max(len(every) - keep, 0)
        old, new = every[:cut], every[cut:]
        kept: list[Snapshot] = []
        joined: list[Snapshot] = []
        for one, following in zip(old, [*old[1:], None], strict=False):
            if following is None or _ends_decision(one, following):
                kept.append(one.instead_of(joined))
                joined = []
            else:
                joined.append(one)
        if len(kept) == len(old):
            return 0
        parent = self.git.find(f"{every[0].commit}^")
        for number, one in enumerate([*kept, *(one.instead_of([]) for one in new)], 1):
            message = replace(one, number=number).message()
            tree = self.git.tree_of(one.commit)
            parent = self.git.commit(tree, message, [parent] if parent else [])
        assert parent is not None
        self.git.move(self.reference, parent, tip.commit, "compact")
        return len(old) - len(kept)

    # ------------------------------------------------------------ inside

    @property
    def git(self) -> Git:
        """Git in this folder."""
        return Git(self.path)

    def _tip(self) -> Snapshot | None:
        commit = self.git.find(self.reference)
        return None if commit is None else self._read(commit)

    def _read(self, commit: str) -> Snapshot:
        found = next(self._log(commit, "-1"), None)
        if found is None:
            raise WorkspaceError(f"{commit} is not a snapshot of a run")
        return found

    def _snapshots(self) -> Iterator[Snapshot]:
        """Of this run, the newest first: up to the commit that the first one was made on."""
        tip = self._tip()
        if tip is not None:
            yield from self._log(tip.commit, f"-{tip.number}")

    def _log(self, *arguments: str) -> Iterator[Snapshot]:
        shape = "--format=%H%x00%ct%x00%B%x00"
        parts = self.git.ask("log", "--first-parent", shape, *arguments).split("\0")
        for commit, at, text in zip(*[iter(parts)] * 3, strict=False):
            read = Snapshot.read(
                commit.strip(), datetime.fromtimestamp(int(at), UTC), text.rstrip("\n")
            )
            if read is None:
                return
            yield read

    def _known(self, named: Snapshot | str) -> Snapshot:
        commit = named.commit if isinstance(named, Snapshot) else named
        found = self.find(commit)
        if found is None:
            raise WorkspaceError(f"run {self.run} has no snapshot {commit}")
        return found

    def _trees(self, snapshot: Snapshot) -> tuple[str, str]:
        """Return the trees before and after a snapshot."""
        git = self.git
        parent = git.find(f"{snapshot.commit}^")
        before = git.tree_of(parent) if parent else _empty(git)
        return before, git.tree_of(snapshot.commit)

    def _tree(self, snapshot: Snapshot | None) -> str:
        return _empty(self.git) if snapshot is None else self.git.tree_of(snapshot.commit)

    def _carry_on(self) -> Snapshot | None:
        """Return the newest snapshot, after repairing what a crash has left: an unfinished change
        is put back, and an unfinished rewind, drop or pick is done.
        """
        tip = self._tip()
        if tip is not None and tip.fence > self.fence:
            raise Fenced(
                f"the lease of {self.path} is another's: it has fence {tip.fence}, "
                f"and this one {self.fence}"
            )
        if tip is None or tip.kind not in ("begin", "left"):
            return tip
        if tip.of == "change":
            return self._put_back(tip) if tip.kind == "begin" else self._finish_back(tip)
        found = self._look()
        if tip.kind == "begin" and found not in (self.git.tree_of(tip.commit), tip.tree):
            tip = self._add(replace(tip, kind="left"), found, tip)
        return self._finish(tip)

    def _save(self, tip: Snapshot | None, note: str) -> Snapshot | None:
        tree = self._look()
        if tree == self._tree(tip):
            return tip
        return self._add(Snapshot("", "edits", note=note), tree, tip)

    def _put_back(self, begun: Snapshot) -> Snapshot:
        """Put aside the leftovers of an unfinished change."""
        tip = self._tip()
        if tip is None or tip.commit != begun.commit:
            raise Moved(f"another process works in {self.path} for run {self.run}")
        left = self._look()
        if left == self.git.tree_of(begun.commit):
            return self._add(Snapshot("", "back", key=begun.key, of=begun.of), left, begun)
        return self._finish_back(
            self._add(Snapshot("", "left", key=begun.key, of=begun.of), left, begun)
        )

    def _finish_back(self, left: Snapshot) -> Snapshot:
        before = self.git.tree_of(f"{left.commit}^")
        self._write(before)
        return self._add(Snapshot("", "back", key=left.key, of=left.of), before, left)

    def _become(
        self, kind: Operation, target: Snapshot, make_tree: Callable[[str], str]
    ) -> Snapshot:
        """Give the folder the tree made of its present one, which is saved before."""
        tip = self.save()
        now = self._tree(tip)
        begun = Snapshot("", "begin", of=kind, tree=make_tree(now), about=target.commit)
        return self._finish(self._add(begun, now, tip))

    def _finish(self, begun: Snapshot) -> Snapshot:
        assert begun.of is not None
        assert begun.tree is not None
        self._write(begun.tree)
        return self._add(Snapshot("", begun.of, about=begun.about), begun.tree, begun)

    def _look(self) -> str:
        """Return the tree of the files as they are."""
        git = self.git
        with git.index(quoted(self.run)) as index:
            outside = [f":(exclude,top,literal){path}" for path in self.live]
            git.take_in(":/", *outside, index=index)
            there = [path for path in self.include if (Path(self.path) / path).exists()]
            if there:
                named = [f":(top,literal){path}" for path in there]
                git.take_in(*named, *outside, index=index, options=("--force",))
            return git.ask("write-tree", index=index)

    def _write(self, tree: str) -> None:
        """Makes the files those of a tree; what is live or ignored stays."""
        git = self.git
        self._look()  # what is there and not in the tree has to be in the index, to be removed
        with git.index(quoted(self.run)) as index:
            git.run("read-tree", "--reset", "-u", tree, index=index)

    def _add(self, made: Snapshot, tree: str, behind: Snapshot | None) -> Snapshot:
        """Writes a snapshot behind another, which must be the newest still."""
        git = self.git
        number = 1 if behind is None else behind.number + 1
        made = replace(made, fence=self.fence, number=number, at=None)
        parent = behind.commit if behind is not None else git.find("HEAD")
        commit = git.commit(tree, made.message(), [parent] if parent else [])
        git.move(self.reference, commit, behind.commit if behind else None, made.kind)
        return replace(made, commit=commit)


def quoted(run: str) -> str:
    """Return a name as a part of a reference and of a path: any key may be one."""
    return urllib.parse.quote(run, safe="").replace(".", "%2E").replace("~", "%7E") or "%"


def _ends_decision(one: Snapshot, following: Snapshot) -> bool:
    """Return True if the files are in order here, and those of another decision behind it."""
    is_settled = one.kind not in ("begin", "left") and following.kind not in ("left", "back")
    return is_settled and following.decision != one.decision


def _empty(git: Git) -> str:
    return git.run("mktree").stdout.decode().strip()
