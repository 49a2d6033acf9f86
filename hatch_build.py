"""What the build does after the compiler: it takes away the modules that it has compiled into the
tree, once they are in the wheel.

Left there they would be imported in place of the text beside them, whatever somebody has changed in
it since. An editable install is asked for them, and keeps them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TakeAway(BuildHookInterface):
    """See the module."""

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - the hook's signature
        """After the wheel."""
        root = Path(self.root)
        if version == "standard":
            for compiled in (*root.glob("*__mypyc.*.so"), *root.glob("pgflow/**/*.so")):
                compiled.unlink()
