"""The read side: typed readers of pgflow's views, for sync and async code.

A reader makes a question, and :func:`ask` or :func:`ask_async` puts it to an app or to a
connection. Answers are frozen rows, one class for each view; long lists come in pages. The command
line, the Prometheus endpoint and your own dashboards read here. Nothing here writes.

Values are returned as stored. A value that a codec has encoded stays encoded; :func:`readable` puts
a placeholder in its place.
"""

from typing import TYPE_CHECKING

from pgflow._lazy import importer
from pgflow.inspect._homes import HOMES

if TYPE_CHECKING:
    from pgflow.inspect._surface import *  # noqa: F403 - they are listed there
else:
    __all__ = list(HOMES)
    __getattr__ = importer(globals(), HOMES)


def __dir__() -> list[str]:
    """Names that are offered, loaded or not."""
    return sorted({*globals(), *HOMES})
