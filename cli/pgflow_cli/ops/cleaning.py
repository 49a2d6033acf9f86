"""``pgflow cleanup``: removing what runs of files that have ended left in a folder; and ``pgflow
reset-sessions``: forgetting the sessions of agents in a conversation.

Whether a run has ended is read from the database. A run that it does not know, or that worked in
another folder, may be one of another database, so it is left alone unless that is asked for.

Nodes with ``persist_session`` keep sessions (`pgflow.declare.durable.conversations`). To reset all
conversations of a workflow you must confirm.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pgflow import inspect
from pgflow.console.output import many, note, shown
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.options import Answer, Yes, confirm
from pgflow_cli.look.parsing import parse_duration
from pgflow_cli.look.selection import OPEN
from pgflow_cli.runs.declared import WORKFLOW

if TYPE_CHECKING:
    from pgflow.declare.durable.leftovers import Leftover, Leftovers


_NOUNS = {"folders": "folder", "worktrees": "worktree", "branches": "branch"}
_GOES = ("", "commits")
_KEPT = {
    "open": "has not ended, or belongs to one that has not",
    "recent": "ended not so long ago",
    "unknown": "is not known to have worked here: --orphans removes what such runs left",
    "uncommitted": "has something uncommitted in its worktree: --force removes it",
    "commits": "has a branch with commits of its own: --force removes it",
    "refused": "is refused by git or the file system",
}
"""Reasons to keep something, by code; the subject is a run."""


def cleanup(
    folder: Annotated[Path, arg(metavar="FOLDER")] = Path(),
    *,
    older_than: Annotated[str, opt(metavar="DURATION")] = "7d",
    orphans: bool = False,
    force: bool = False,
    yes: Yes = False,
    dry_run: bool = False,
    db: Answer,
) -> None:
    """Removes what ended runs of files left in a folder.

    That is their folders in .pgflow/runs, their worktrees, and their branches pgflow/KEY. A
    worktree with something uncommitted is kept, and a branch with commits that no other has.
    Artifacts go with the folder of their run, so a failed run that lost them cannot be retried in
    full. $STATE_DIR stays.

    Args:
        folder: Folder in which the runs were started.
        older_than: Least time since the runs ended.
        orphans: Also of runs that the database does not know.
        force: Also what is not committed, and commits of a branch alone.
        dry_run: Show what would be removed, and remove nothing.
    """
    from pgflow.declare.durable.leftovers import Leftovers

    age = parse_duration(older_than, "--older-than")
    if not folder.is_dir():
        raise Mistake(f"{folder} is not a directory: name the folder that the runs were started in")
    left = Leftovers(folder)
    look = Look(db, left, db.now - age, age, orphans, force)
    items = look.all()
    going = [item for item in items if item.going]
    if going and not (dry_run or yes):
        confirm(f"Remove {_parts(_numbers(going))} of {many(len(going), 'run')}?")
    if not dry_run:
        items = [_remove(look, item) if item.going else item for item in items]
    kept = [item for item in items if item.why]
    report: dict[str, Any] = {
        "folder": left.folder,
        "removed": not dry_run,
        "runs": sum(1 for item in items if item.going),
        **_numbers(items),
        "kept": [{"key": item.left.key, "why": item.why} for item in kept],
    }
    of_runs = f" of {many(report['runs'], 'run')}" if report["runs"] else ""
    verb = "would be removed" if dry_run else "removed"
    db.answer(report, f"{_parts(report)}{of_runs} {verb}")
    _print_kept(kept)
    if not dry_run and any(item.why == "refused" for item in kept):
        raise Ended(FAILED)


@dataclass(frozen=True)
class Item:
    """Leftover of one run, and the part of it that may go.

    Attributes:
        left: Its parts.
        why: Code of the reason why it is kept, or a part of it; empty for none.
        going: Parts that can be removed, or have been.
    """

    left: Leftover
    why: str
    going: frozenset[Path | str] = frozenset()


@dataclass(frozen=True)
class Look:
    """A look at what runs have left, and at their state in the database.

    Attributes:
        db: The database.
        left: Finds and removes it.
        ended_before: Time before which the runs must have ended, by the database's clock.
        age: Time from then to now.
        orphans: True for what runs have left that it does not know.
        force: True for what git would lose.
    """

    db: Database
    left: Leftovers
    ended_before: datetime
    age: timedelta
    orphans: bool
    force: bool

    def all(self) -> list[Item]:
        """Everything that runs have left, each with what may go."""
        from pgflow.declare.durable.leftovers import keys_of

        names = [keys_of(name) for name in self.left.names()]
        known = self._runs(key for keys in names for key in keys)
        orphans = {keys[0] for keys in names if keys and not any(key in known for key in keys)}
        items = [self._item(key, known.get(key, [])) for key in (*known, *sorted(orphans))]
        kept = {part for item in items if item.why not in _GOES for part in item.left.parts}
        return [
            # Two keys may have one folder.
            replace(item, why="open", going=frozenset()) if item.going & kept else item
            for item in items
            if item.left.parts
        ]

    def again(self, item: Item) -> Item:
        """Return the item as it is now: its run may have been retried meanwhile."""
        return self._item(item.left.key, self._runs([item.left.key]).get(item.left.key, []))

    def _runs(self, keys: Iterable[str]) -> dict[str, list[inspect.RunRow]]:
        """Return the runs with these keys, of every tenant."""
        chosen = sorted(set(keys))
        found: dict[str, list[inspect.RunRow]] = {}
        if chosen:
            for run in self.db.ask(inspect.list_runs(inspect.RunFilter(keys=chosen), limit=None)):
                found.setdefault(run.key, []).append(run)
        return {key: found[key] for key in chosen if key in found}

    def _item(self, key: str, runs: list[inspect.RunRow]) -> Item:
        from pgflow.workspace import WorkspaceError

        left = self.left.find(key)
        try:
            why = self._why(left, runs)
        except (WorkspaceError, OSError):
            why = "refused"
        parts = left.parts - ({left.branch} if why == "commits" else set())
        return Item(left, why, frozenset(parts if why in _GOES else ()))

    def _why(self, left: Leftover, runs: list[inspect.RunRow]) -> str:
        """Code of the reason why a leftover is kept, or its branch; empty if all of it may go."""
        if any(run.status in OPEN for run in runs):
            return "open"
        here = [run for run in runs if run.workflow == WORKFLOW and self._was_here(run)]
        if not here and not self.orphans:
            return "unknown"
        ends = [run.finished_at for run in here]
        if any(at is None or at >= self.ended_before for at in ends):
            return "recent"
        if not here and self.left.touched(left) > time.time() - self.age.total_seconds():
            return "recent"
        if any(self._has_open_parent(run) for run in here):
            return "open"
        return "" if self.force else self.left.why_kept(left)

    def _was_here(self, run: inspect.RunRow) -> bool:
        """True for a run that was started in this folder."""
        given = self.db.ask(inspect.find_detail(run.key, tenant=run.tenant)).input
        settings = (given or {}).get("settings")
        if not isinstance(settings, dict):
            return False
        folder = settings.get("home") or settings.get("cwd")
        return isinstance(folder, str) and os.path.realpath(folder) == self.left.folder

    def _has_open_parent(self, run: inspect.RunRow) -> bool:
        """True for a child whose parent, or the parent of that, has not ended or is not known."""
        while run.parent_run_id is not None:
            key = self.db.ask(inspect.find_key(run.parent_run_id))
            if key is None:
                return True
            run = self.db.ask(inspect.find_run(key, tenant=run.tenant))
            if run.status in OPEN:
                return True
        return False


def _remove(look: Look, item: Item) -> Item:
    """Remove what a run has left, if that may still go."""
    from pgflow.workspace import WorkspaceError

    now = look.again(item)
    if now.going != item.going:
        return replace(now, going=frozenset())
    try:
        return replace(now, going=frozenset(look.left.remove(now.left, force=look.force)))
    except (WorkspaceError, OSError) as error:
        note(f"pgflow: {shown(str(error))}")
        return replace(now, why="refused", going=frozenset())


def _numbers(items: list[Item]) -> dict[str, int]:
    """Number of the parts of each kind that go."""
    kinds = Counter(
        "branches"
        if part == item.left.branch
        else "worktrees"
        if part == item.left.worktree
        else "folders"
        for item in items
        for part in item.going
    )
    return {kind: kinds[kind] for kind in _NOUNS}


def _parts(numbers: dict[str, Any]) -> str:
    """``2 folders, 1 worktree and 1 branch``."""
    texts = [
        f"{numbers[kind]:,} {noun if numbers[kind] == 1 else kind}"
        for kind, noun in _NOUNS.items()
        if numbers[kind]
    ]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]])) or "nothing"


def _print_kept(kept: list[Item]) -> None:
    """Print what is kept and why, with the runs by name if you may want to look at them."""
    for why, text in _KEPT.items():
        keys = [shown(item.left.key) for item in kept if item.why == why]
        if not keys:
            continue
        named = ", ".join(keys[:5]) + (f" and {len(keys) - 5:,} more" if len(keys) > 5 else "")
        note(f"kept: {named} {text}")


def reset_sessions(
    workflow: Annotated[str, arg(metavar="WORKFLOW")],
    db: Answer,
    conversation: Annotated[str | None, opt(metavar="NAME")] = None,
    node: Annotated[str | None, opt(metavar="NODE")] = None,
    yes: Annotated[bool, opt()] = False,
) -> None:
    """Forgets the sessions that agents keep between runs.

    The next run of the conversation begins anew. What agents keep of a session on their own disk
    stays.

    Args:
        workflow: Name of the workflow.
        conversation: Of this conversation only.
        node: Of this node of the conversation only.
        yes: Without --conversation: of all conversations.
    """
    from pgflow.declare.durable.conversations import SESSIONS
    from pgflow.documents import Documents

    if conversation is None and node is not None:
        raise Mistake("--node requires --conversation NAME")
    if conversation is None and not yes:
        raise Mistake("every conversation would lose its sessions: pass --conversation, or --yes")
    folder = [name for name in (workflow, conversation, node) if name is not None]
    count = Documents(db.connection).delete_folder(SESSIONS, folder)
    db.answer({"forgotten": count}, f"{many(count, 'session')} forgotten")
