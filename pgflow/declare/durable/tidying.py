"""Parts of the leftovers in a folder that may go, by the state of their runs.

Whether a run has ended is read from the database. A run that it does not know, or that worked in
another folder, may be one of another database, so it is left alone unless that is asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pgflow import inspect
from pgflow.declare.durable import declared
from pgflow.declare.durable.leftovers import Leftover, Leftovers, keys_of
from pgflow.workspace import WorkspaceError

_GOES = ("", "commits")
"""Reasons to keep a branch at most."""


@dataclass(frozen=True)
class Item:
    """Leftover of one run, and the part of it that may go.

    Attributes:
        left: Its parts.
        why: Code of the reason why it is kept, or a part of it; empty for none.
        going: Parts that can be removed, or have been.
        trouble: Words of git or the file system, if it was refused.
    """

    left: Leftover
    why: str
    going: frozenset[Path | str] = frozenset()
    trouble: str = ""


@dataclass(frozen=True)
class Look:
    """A look at what runs have left, and at their state in the database.

    Attributes:
        ask: Asks the database.
        left: Finds and removes it.
        ended_before: Time before which the runs must have ended, by the database's clock.
        age: Time from then to now.
        orphans: True for what runs have left that it does not know.
        force: True for what git would lose.
    """

    ask: Callable[[inspect.Question[Any]], Any]
    left: Leftovers
    ended_before: datetime
    age: timedelta
    orphans: bool
    force: bool

    def all(self) -> list[Item]:
        """Everything that runs have left, each with what may go."""
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

    def remove(self, item: Item) -> Item:
        """Remove what a run has left, if that may still go."""
        now = self.again(item)
        if now.going != item.going:
            return replace(now, going=frozenset())
        try:
            gone = self.left.remove(now.left, force=self.force)
        except (WorkspaceError, OSError) as error:
            return replace(now, why="refused", going=frozenset(), trouble=str(error))
        return replace(now, going=frozenset(gone))

    def _runs(self, keys: Iterable[str]) -> dict[str, list[inspect.RunRow]]:
        """Return the runs with these keys, of every tenant."""
        chosen = sorted(set(keys))
        found: dict[str, list[inspect.RunRow]] = {}
        if chosen:
            for run in self.ask(inspect.list_runs(inspect.RunFilter(keys=chosen), limit=None)):
                found.setdefault(run.key, []).append(run)
        return {key: found[key] for key in chosen if key in found}

    def _item(self, key: str, runs: list[inspect.RunRow]) -> Item:
        left = self.left.find(key)
        try:
            why = self._why(left, runs)
        except (WorkspaceError, OSError):
            why = "refused"
        parts = left.parts - ({left.branch} if why == "commits" else set())
        return Item(left, why, frozenset(parts if why in _GOES else ()))

    def _why(self, left: Leftover, runs: list[inspect.RunRow]) -> str:
        """Code of the reason why a leftover is kept, or its branch; empty if all of it may go."""
        if any(run.finished_at is None for run in runs):
            return "open"
        here = [run for run in runs if run.workflow == declared.name and self._was_here(run)]
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
        given = self.ask(inspect.find_detail(run.key, tenant=run.tenant)).input
        settings = (given or {}).get("settings")
        if not isinstance(settings, dict):
            return False
        folder = settings.get("home") or settings.get("cwd")
        return isinstance(folder, str) and os.path.realpath(folder) == self.left.folder

    def _has_open_parent(self, run: inspect.RunRow) -> bool:
        """True for a child whose parent, or the parent of that, has not ended or is not known."""
        while run.parent_run_id is not None:
            key = self.ask(inspect.find_key(run.parent_run_id))
            if key is None:
                return True
            run = self.ask(inspect.find_run(key, tenant=run.tenant))
            if run.finished_at is None:
                return True
        return False
