"""The read side: typed readers of pgflow's views, for sync and async code.

A reader makes a question, and :func:`ask` or :func:`ask_async` puts it to an app or to a
connection. Answers are frozen rows, one class for each view; long lists come in pages. The command
line, the Prometheus endpoint and your own dashboards read here. Nothing here writes.

Values are returned as stored. A value that a codec has encoded stays encoded; :func:`readable` puts
a placeholder in its place.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgflow.inspect._surface import *  # noqa: F403 - they are listed there


def __getattr__(name: str) -> Any:
    """Import the readers when the first of them is used, so that a command which asks nothing
    starts at once.
    """
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'pgflow.inspect' has no attribute {name!r}")
    import pgflow.inspect._surface as surface

    ours = globals()
    for one in surface.__all__:
        ours.setdefault(one, vars(surface)[one])
    ours["__all__"] = surface.__all__
    if name not in ours:
        raise AttributeError(f"module 'pgflow.inspect' has no attribute {name!r}")
    return ours[name]


def __dir__() -> list[str]:
    """Names that are offered, loaded or not."""
    return sorted({*globals(), *__getattr__("__all__")})
