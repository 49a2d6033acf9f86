"""The console: web pages on runs and all that they owe, from which you decide and repair.

It is an ASGI application. ``pgflow web`` serves it on this machine, and any ASGI host mounts it::

    console = pgflow.web.asgi(app, auth=who)
    site.mount("/pgflow", console)      # FastAPI, Starlette

The host identifies the user, by a function of the request. pgflow records that name with everything
they do. Pages work without a script, and never run one from data: texts of workflows, keys and
errors are shown as text.

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
