"""Artifacts of nodes with an ``output_type``: each output is a file, with its type in another one
beside it, by which programs and later runs find it.

A node that keeps its session for the next run of its conversation keeps its output for that too, in
a folder that all these runs have. If the session is gone then, the files are what is left of it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pgflow.declare.durable.folders import Folders, quoted_key, write_whole

_FOLDER = "nodes"

log = logging.getLogger("pgflow")


def keep_output(
    folders: Folders, key: str, entry: dict[str, Any], shared: Path | None, text: str
) -> None:
    """Write the output of a node to ``nodes/KEY.md``, and its description to
    ``nodes/KEY.meta.json``.

    Args:
        folders: Folders of the run.
        key: Key of the node, with the rounds around it.
        entry: The node and its type.
        shared: Folder of its conversation, where the output is kept too; None if it has none. The
            last run to write there wins.
        text: Its output.
    """
    _write(Path(folders.artifacts), folders.key, key, entry, text)
    if shared is not None:
        try:
            _write(shared, folders.key, key, entry, text)
        except OSError as error:
            log.warning("%s cannot be written: %s", shared, error.strerror)


def _write(root: Path, run: str, key: str, entry: dict[str, Any], text: str) -> None:
    folder, stem = root / _FOLDER, quoted_key(key)
    folder.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8", "replace")
    about = {**entry, "path": f"{_FOLDER}/{stem}.md", "runId": run, "size": len(data)}
    for name, content in ((f"{stem}.md", data), (f"{stem}.meta.json", json.dumps(about).encode())):
        write_whole(folder / name, content)


def earlier_outputs(shared: Path, run: str) -> list[str]:
    """Return the files that earlier runs of a conversation have left, the newest first, each with
    its type.

    Args:
        shared: Folder of the conversation.
        run: Key of the run that asks, whose own are left out.
    """
    found = []
    for path in (shared / _FOLDER).glob("*.meta.json"):
        try:
            entry = json.loads(path.read_text())
            if entry["runId"] != run:
                line = f"{entry['outputType']} ({entry['nodeId']}): {shared / entry['path']}"
                found.append((path.stat().st_mtime, line))
        except (OSError, ValueError, LookupError, TypeError):
            continue  # it is being replaced, or is another process's
    return [line for _, line in sorted(found, reverse=True)]
