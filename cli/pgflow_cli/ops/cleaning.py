"""``pgflow cleanup``: removing what runs of files that have ended left in a folder; and ``pgflow
reset-sessions``: forgetting the sessions of agents in a conversation.

Nodes with ``persist_session`` keep sessions (`pgflow.declare.durable.conversations`). To reset all
conversations of a workflow you must confirm.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pgflow.console.output import many, note, shown
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.options import Answer, Yes, confirm
from pgflow_cli.look.parsing import parse_duration

if TYPE_CHECKING:
    from pgflow.declare.durable.tidying import Item


_NOUNS = {"folders": "folder", "worktrees": "worktree", "branches": "branch"}
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
    from pgflow.declare.durable.tidying import Look

    age = parse_duration(older_than, "--older-than")
    if not folder.is_dir():
        raise Mistake(f"{folder} is not a directory: name the folder that the runs were started in")
    left = Leftovers(folder)
    look = Look(db.ask, left, db.now - age, age, orphans, force)
    items = look.all()
    going = [item for item in items if item.going]
    if going and not (dry_run or yes):
        confirm(f"Remove {_parts(_numbers(going))} of {many(len(going), 'run')}?")
    if not dry_run:
        items = [look.remove(item) if item.going else item for item in items]
    for item in items:
        if item.trouble:
            note(f"pgflow: {shown(item.trouble)}")
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
