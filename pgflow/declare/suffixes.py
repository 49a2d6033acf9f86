"""Ends of the names of workflow files, in a module of their own: a command that is given a Python
module imports nothing else for files.
"""

from typing import Final

YAML_SUFFIXES: Final = (".yaml", ".yml")
SOP_SUFFIXES: Final = (".sop.md", ".script.md")
STUBS_SUFFIXES: Final = (".stubs.yaml", ".stubs.yml")
"""Outputs for dry runs, which authors keep beside their workflows."""
