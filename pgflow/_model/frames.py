"""Frames of pgflow's own files, which say nothing of the code that it runs."""

from __future__ import annotations

import os
from pathlib import Path

_HOME = f"{Path(__file__).absolute().parents[1]}{os.sep}"
_COMPILED = f"pgflow{os.sep}_"
"""Beginning of the file name of a compiled frame, as passed to the compiler."""


def is_own(filename: str) -> bool:
    """Return True for a file of this package, as a frame names it."""
    return filename.startswith((_HOME, _COMPILED))
