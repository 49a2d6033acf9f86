"""Artifacts of nodes with an ``output_type``: each output is a file, with its type in another one
beside it, by which programs and later runs find it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pgflow.declare.durable.bodies import Folders, quoted_key, write_whole

_FOLDER = "nodes"


def keep_output(folders: Folders, key: str, told: dict[str, Any], text: str) -> None:
    """Write the output of a node to ``nodes/KEY.md``, and what it is to ``nodes/KEY.meta.json``.

    Args:
        folders: Folders of the run.
        key: Key of the node, with the rounds around it.
        told: The node and its type.
        text: Its output.
    """
    folder, stem = Path(folders.artifacts, _FOLDER), quoted_key(key)
    folder.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8", "replace")
    about = {**told, "path": f"{_FOLDER}/{stem}.md", "runId": folders.key, "size": len(data)}
    for name, content in ((f"{stem}.md", data), (f"{stem}.meta.json", json.dumps(about).encode())):
        write_whole(folder / name, content)
