"""Agent SOPs: Markdown files of steps with RFC 2119 constraints, read as their authors mean them
and compiled to the graph.

`page` sorts the lines of a Markdown file; `steps`, `parameters` and `constraints` find those three
in it, and `outline` puts them together. `lint` warns as the format's validator would; `prompts`
composes an agent's prompt for a step, `chaining` finds the other SOPs that a text names, and
`compiling` makes the graph. `reading` is the way through all of them.
"""

from pgflow.declare.sop.reading import read_file, read_text

__all__ = ["read_file", "read_text"]
