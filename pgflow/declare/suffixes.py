"""Ends of the names of workflow files. Beside them is no code, so that a command that is given a
module imports none for files.
"""

from typing import Final

YAML_SUFFIXES: Final = (".yaml", ".yml")
SOP_SUFFIXES: Final = (".sop.md", ".script.md")
STUBS_SUFFIXES: Final = (".stubs.yaml", ".stubs.yml")
"""Outputs for dry runs, which authors keep beside their workflows."""
