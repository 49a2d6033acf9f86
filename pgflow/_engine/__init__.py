"""The engine without I/O: a run's journal in, calls out.

An :class:`~pgflow._engine.execution.Execution` is one activation of a run. It replays the journal,
runs the workflow's code between outcomes, keeps what is not yet durable in a buffer, and says
through its host which bodies may start and what must be committed. Nothing here knows a database, a
socket or a clock, so all of it is tested without them.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    # Only the compiler reads what it says: that interpreted classes, those of the tests, may have
    # these for bases.
    def mypyc_attr(**_: Any) -> Any:
        """Nothing."""
        return lambda cls: cls


def is_compiled() -> bool:
    """Return True if the engine runs as machine code. Compiled or not, it behaves the same."""
    found = importlib.util.find_spec("pgflow._engine.execution")
    return found is not None and not str(found.origin).endswith(".py")
