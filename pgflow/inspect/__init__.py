"""The read side: typed readers of pgflow's views, for sync and async code.

A reader makes a question, and :func:`ask` or :func:`ask_async` puts it to an app or to a
connection. Answers are frozen rows, one class for each view; long lists come in pages. The command
line, the Prometheus endpoint and your own dashboards read here. Nothing here writes.

Values are returned as stored. A value that a codec has encoded stays encoded; :func:`readable` puts
a placeholder in its place.
"""

import ast
import importlib
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgflow.inspect._surface import *  # noqa: F403 - they are listed there

_homes: dict[str, str] = {}
"""The module of each name, once a name was used."""


def __getattr__(name: str) -> Any:
    """Import the module of a reader when it is first used: a command that asks for one list need
    not import the others.
    """
    if name == "__all__":
        from pgflow.inspect._surface import __all__ as names

        globals()[name] = names
        return names
    if not (_homes or name.startswith("_")):
        _homes.update(_read_homes())
    if name not in _homes:
        raise AttributeError(f"module 'pgflow.inspect' has no attribute {name!r}")
    home = importlib.import_module(_homes[name])  # noqa: TID251 - from a table in the code
    found = globals()[name] = getattr(home, name)
    return found


def _read_homes() -> dict[str, str]:
    """Read the module of each name from the imports of `_surface`, without importing them."""
    source = resources.files(__name__).joinpath("_surface.py").read_bytes()
    return {
        alias.name: statement.module or ""
        for statement in ast.parse(source).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def __dir__() -> list[str]:
    """Names that are offered, loaded or not."""
    return sorted({*globals(), *__getattr__("__all__")})
