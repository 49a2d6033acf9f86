"""The Claude Agent SDK on pgflow: ``pip install 'pgflow-engine[claude-agent-sdk]'``.

The SDK keeps the transcript of a session in a file of the machine. ``PgflowSessionStore`` keeps it
in the database too, so that a turn goes on from the turn before wherever the run is. The turn
itself is a step of yours: ``docs/how-to/claude-agent-sdk.md`` shows it.
"""

from __future__ import annotations

from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
)

from pgflow import AsyncApp
from pgflow.documents import AsyncDocuments, Put

ENTRIES = "claude_sdk.entry"
SEEN = "claude_sdk.uuid"
SESSIONS = "claude_sdk.session"
SUBKEYS = "claude_sdk.subkey"
MAIN = "."
"""The transcript of the session itself, among those of its sub-agents."""


class PgflowSessionStore(SessionStore):
    """Transcripts of sessions, each entry a document.

    An entry that comes again, as the SDK does after an error, is kept once. An entry of more than
    1 MiB is refused: the SDK goes on without it, and says so in a ``MirrorErrorMessage``.

    Args:
        app: The app whose database has them, and whose codec seals them.

    Example::

        options = ClaudeAgentOptions(session_store=PgflowSessionStore(app), resume=session_id)
    """

    def __init__(self, app: AsyncApp) -> None:
        self._documents = AsyncDocuments(app)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Adds entries to the end of a transcript, all of them or none.

        Args:
            key: Project, session, and the sub-agent if it is the transcript of one.
            entries: The entries.

        Raises:
            NotStorable: An entry is longer than 1 MiB.
        """
        if not entries:
            return
        place = _place(key)
        known = await self._documents.get(
            SEEN, [(*place, uuid) for entry in entries if (uuid := entry.get("uuid"))]
        )
        last = await self._documents.list(ENTRIES, place, descending=True, most=1)
        number = int(last[0].path[-1]) if last else 0
        puts = [Put(SESSIONS, place[:2], {})] if place[2] == MAIN else [Put(SUBKEYS, place, {})]
        for entry in entries:
            uuid = entry.get("uuid")
            if uuid and (*place, uuid) in known:
                continue
            number += 1
            puts.append(Put(ENTRIES, (*place, f"{number:012}"), entry))
            if uuid:
                puts.append(Put(SEEN, (*place, uuid), {}))
        await self._documents.put(puts)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return a transcript; None if it does not exist."""
        found = [entry.value async for entry in self._documents.walk(ENTRIES, _place(key))]
        return found or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Returns the sessions of a project, each with the time of its last entry."""
        return [
            {
                "session_id": session.path[1],
                "mtime": int(session.updated_at.timestamp() * 1000),
            }
            async for session in self._documents.walk(SESSIONS, (project_key,))
        ]

    async def delete(self, key: SessionKey) -> None:
        """Deletes a session with the transcripts of its sub-agents, or one of those."""
        place = _place(key)
        if place[2] == MAIN:
            await self._documents.delete(SESSIONS, [place[:2]])
            folder: tuple[str, ...] = place[:2]
            await self._documents.delete_folder(SUBKEYS, folder)
        else:
            folder = place
            await self._documents.delete(SUBKEYS, [place])
        for collection in (ENTRIES, SEEN):
            await self._documents.delete_folder(collection, folder)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Returns the sub-agents of a session that have transcripts."""
        folder = (key["project_key"], key["session_id"])
        return [found.path[2] async for found in self._documents.walk(SUBKEYS, folder)]


def _place(key: SessionKey) -> tuple[str, str, str]:
    return key["project_key"], key["session_id"], key.get("subpath") or MAIN
