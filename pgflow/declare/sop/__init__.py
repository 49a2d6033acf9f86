"""Agent SOPs: Markdown files of steps with RFC 2119 constraints, read as their authors mean them
and compiled to the graph.

`page` sorts the lines of a Markdown file; `steps`, `parameters` and `constraints` find those three
in it, and `outline` puts them together. `lint` warns as the format's validator would; `prompts`
composes an agent's prompt for a step, `chaining` finds the other SOPs that a text names, and
`compiling` makes the graph. `reading` is the way through all of them.
"""

from typing import TYPE_CHECKING

from pgflow._lazy import importer

if TYPE_CHECKING:
    from pgflow.declare.sop.reading import read_file, read_text
else:
    __getattr__ = importer(
        globals(), dict.fromkeys(("read_file", "read_text"), "pgflow.declare.sop.reading")
    )

__all__ = ["read_file", "read_text"]
