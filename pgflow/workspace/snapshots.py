"""Snapshots: the commits of a run's own reference, each with a record of its origin.

The reference is an append-only journal: going back is a snapshot too, with the files of an older
one. A snapshot that will change the folder is announced by one that begins it, so that a crash in
between is detected, and the folder brought to the state of one of the two.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

Operation = Literal["change", "rewind", "drop", "pick"]
"""Kinds of operations that have a begin and an end."""

Kind = Literal[Operation, "edits", "begin", "left", "back"]
"""Kinds of snapshots.

- ``change``: the files after an act.
- ``edits``: changes that were found, by a person, or a program that lives on.
- ``begin``: the files before a change, rewind, drop or pick that begins now.
- ``left``: the files that an unfinished act has left.
- ``back``: the files as before it.
- ``rewind``, ``drop``, ``pick``: the files of an older one, those without a change, those with one.
"""

Number = Annotated[int, Field(ge=0, lt=2**63)]
ObjectId = Annotated[str, Field(pattern="^[0-9a-f]{40,64}$")]

SEPARATOR = "\n\nPgflow: "


@dataclass(frozen=True)
class Snapshot:
    """The files of a folder at one moment.

    Attributes:
        commit: Id of the commit that has them.
        kind: See `Kind`.
        at: Time of the commit, by the clock of the machine; None of one that was just made.
        note: A line for people.
        key: Idempotency key of the act that made it.
        decision: The decision that the act rests on: its id.
        fence: Fence of the lease of the folder.
        number: Place in the line of snapshots, from 1.
        of: Of ``begin``, ``left`` and ``back``: the kind of the operation that begins, or began.
        tree: Of a rewind, drop or pick that begins: the tree that the folder is to have.
        about: Of a rewind, drop or pick: the commit that it is about.
        keys: Keys of the changes that it replaces, after compaction.
        was: Ids that it and they had before.
    """

    commit: str
    kind: Kind
    at: datetime | None = None
    note: str = ""
    key: str | None = None
    decision: str | None = None
    fence: Number = 0
    number: Number = 0
    of: Operation | None = None
    tree: ObjectId | None = None
    about: ObjectId | None = None
    keys: tuple[str, ...] = ()
    was: tuple[str, ...] = ()

    def message(self) -> str:
        """Returns the text of its commit."""
        record = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("commit", "at", "note") and value not in (None, (), 0)
        }
        title = " ".join(self.note.split()) or self.kind
        return f"{title}{SEPARATOR}{json.dumps(record, sort_keys=True)}\n"

    @staticmethod
    def read(commit: str, at: datetime, message: str) -> Snapshot | None:
        """Return the snapshot of a commit; None if it is not one of ours.

        A writer of the repository may forge a record, whose words become arguments of git.
        """
        title, found, text = message.rpartition(SEPARATOR)
        if not found:
            return None
        try:
            said = {"commit": commit, "at": at, "note": title}
            made = _records().validate_python({**json.loads(text), **said})
        except (ValueError, TypeError, RecursionError):
            return None
        is_open = made.kind in ("begin", "left")
        has_aim = made.of == "change" or (made.of is not None and made.tree is not None)
        return made if has_aim or not is_open else None

    def stands_for(self, key: str) -> bool:
        """Return True if the change of this key is in it."""
        return (self.kind == "change" and self.key == key) or key in self.keys

    def is_named(self, commit: str) -> bool:
        """Return True if this is, or was, the id of it."""
        return commit == self.commit or commit in self.was

    def instead_of(self, others: list[Snapshot]) -> Snapshot:
        """Return a copy of the snapshot that also replaces these earlier ones."""
        every = [*others, self]
        return replace(
            self,
            keys=tuple(
                key
                for one in every
                for key in (*one.keys, *([one.key] if one.kind == "change" and one.key else ()))
            ),
            was=tuple(commit for one in every for commit in (*one.was, one.commit)),
        )


@cache
def _records() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)
