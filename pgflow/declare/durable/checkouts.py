"""Checkouts that a node must leave as they are: ``mutates_checkout: false``.

The files of the git working tree are taken down before the work and after it. Files that git
ignores do not count, and neither do the folders of the run. A node that works at the same time may
be the one that changed a file, so the error names files and no node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pgflow.declare.graph import Node
from pgflow.workspace.git import Git
from pgflow.workspace.places import WorkspaceError

T = TypeVar("T")

_MOST_NAMED = 10


class CheckoutChanged(Exception):
    """A node changed files that it must not change; the message names them."""


async def keeping(node: Node, folder: str, work: Callable[[], Awaitable[T]]) -> T:
    """Do the work of a node, and check that the checkout is the same after it.

    Args:
        node: The node.
        folder: Working folder of the run. Outside a git working tree nothing is checked.
        work: Its work.

    Raises:
        CheckoutChanged: It says ``mutates_checkout: false``, and files were changed.
    """
    if not node.keeps_checkout:
        return await work()
    before = await asyncio.to_thread(_tree_of, folder)
    done = await work()
    if before is not None and (changed := await asyncio.to_thread(_changed, folder, before)):
        more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        raise CheckoutChanged(
            f"node '{node.id}' says mutates_checkout: false and changed "
            f"{', '.join(changed[:_MOST_NAMED])}{more}"
        )
    return done


def _tree_of(folder: str) -> str | None:
    """Return the git tree of all files of a checkout; None if the folder is in none."""
    try:
        git = Git(folder)
        if git.place.top is None:
            return None
    except WorkspaceError:
        return None
    with git.index("%kept") as index:
        git.take_in(":/", index=index)
        return git.ask("write-tree", index=index)


def _changed(folder: str, before: str) -> list[str]:
    """Return the files of a checkout that are not as they were."""
    after = _tree_of(folder)
    if after is None or after == before:
        return [] if after == before else [folder]
    told = Git(folder).ask("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, after)
    return [name for name in told.split("\0") if name]
