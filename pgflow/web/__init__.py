"""The console: pages where people see, decide and mend.

It is an ASGI application. ``pgflow web`` serves it on this machine, and any ASGI host mounts it::

    console = pgflow.web.asgi(app, auth=who)
    site.mount("/pgflow", console)      # FastAPI, Starlette

The host says who somebody is, by a function of the request. pgflow records that name with whatever
they do. Pages work without a script, and none is ever run: what workflows, keys and errors say is
shown as text.

Needs ``pip install "pgflow-engine[web]"``.
"""

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError(
        f'pgflow.web needs {error.name}: pip install "pgflow-engine[web]"', name=error.name
    ) from error

from pgflow.web.console import asgi
from pgflow.web.oidc import Oidc
from pgflow.web.principals import Auth, Local, Principal, Role, Tokens

__all__ = ["Auth", "Local", "Oidc", "Principal", "Role", "Tokens", "asgi"]
