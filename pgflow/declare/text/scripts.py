"""Script nodes: they carry their program or name a file of one."""

from __future__ import annotations

import re

_PROGRAM = re.compile("[\n;(){}&|<>$`\"' ]")


def is_inline(script: str) -> bool:
    """Return True if ``script`` is program text rather than the name of a file.

    Args:
        script: The ``script`` of a node, as written.

    Returns:
        True if it has a line feed, a blank, or any of ``;(){}&|<>$`"'``, which no name of a script
        file has.
    """
    return _PROGRAM.search(script) is not None
