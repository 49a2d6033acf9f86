"""Watching of files: repeats a command whenever a file has changed.

It compares times and sizes, one look at each file. That needs no kernel service, and works on
network folders and in containers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from pgflow.console.output import note, shown
from pgflow.errors import PgflowError
from pgflow_cli.look.failures import Ended, Mistake

LOOK_SECONDS = 0.5
"""Time between looks."""

_NOT_LOOKED_INTO = frozenset({"node_modules", "__pycache__"})
_LAYOUT = ".archon"

Sign = tuple[str, int, int, int]
"""Path of a file, when it was changed, its size, and its number on the disk."""


def again_and_again(paths: list[Path], play: Callable[[], None]) -> NoReturn:
    """Call a function now, and again whenever a file has changed, until Ctrl-C. Print mistakes and
    go on.

    Args:
        paths: Files and folders to watch. A file is watched with all of its folder.
        play: The function.
    """
    seen = None
    while True:
        signs = frozenset(sign for path in paths for sign in signatures(root_of(path)))
        if seen is None or signs != seen:
            if seen is not None:
                note(f"--- changed at {datetime.now().astimezone():%H:%M:%S}")
            seen = signs
            _play(play)
        time.sleep(LOOK_SECONDS)


def _play(play: Callable[[], None]) -> None:
    try:
        play()
    except (Mistake, PgflowError) as error:
        note(f"pgflow: {shown(str(error))}")
    except Ended:
        return  # its output is already printed


def root_of(path: Path) -> Path:
    """Return the folder with everything that a file can name, since commands are beside
    workflows.
    """
    folder = Path(os.path.realpath(path if path.is_dir() else path.parent))
    parts = folder.parts
    return Path(*parts[: parts.index(_LAYOUT) + 1]) if _LAYOUT in parts else folder


def signatures(root: Path) -> Iterator[Sign]:
    """Signs of each file below a folder, by which a change of it is noticed. Hidden folders, but
    for that of workflows, are left out.
    """
    for folder, names, files in os.walk(root, followlinks=False):
        names[:] = [
            name
            for name in names
            if name not in _NOT_LOOKED_INTO and (name == _LAYOUT or not name.startswith("."))
        ]
        for name in files:
            path = os.path.join(folder, name)  # noqa: PTH118 - thousands of them, at each look
            try:
                found = os.stat(path)  # noqa: PTH116
            except OSError:
                continue
            yield path, found.st_mtime_ns, found.st_size, found.st_ino
