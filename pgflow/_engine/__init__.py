"""The engine without I/O: it takes a run's journal and issues calls.

An :class:`~pgflow._engine.execution.Execution` is one activation of a run. It replays the journal,
runs the workflow's code between outcomes and buffers what is not yet durable. Through its host it
starts bodies and requests commits. Nothing here uses a database, a socket or a clock, so unit tests
need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    # Only mypyc reads this attribute: it lets interpreted classes, such as those in tests, inherit
    # from compiled ones.
    def mypyc_attr(**_: Any) -> Any:
        """Return a decorator that changes nothing."""
        return lambda cls: cls
