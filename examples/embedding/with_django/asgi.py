"""The site and the console in one ASGI application: ``uvicorn asgi:application``, in this folder.

The console at ``/pgflow`` uses the session of Django. A staff member with the permission
``pgflow.view_run`` may look; a superuser may do everything.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
site: Callable[..., Awaitable[None]] = get_asgi_application()

from django.conf import settings  # noqa: E402  once Django is set up
from django.contrib.auth import get_user  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.http import HttpRequest  # noqa: E402

import pgflow.django  # noqa: E402
import pgflow.web  # noqa: E402


@sync_to_async
def staff(request: HTTPConnection) -> pgflow.web.Principal | None:
    """Return the principal of a request: the user who is logged in to the admin."""
    asked = HttpRequest()
    asked.session = SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
    user = get_user(asked)
    if not (user.is_active and user.is_staff and user.has_perm("pgflow.view_run")):
        return None
    return pgflow.web.Principal(user.get_username(), ["admin" if user.is_superuser else "view"])


@asynccontextmanager
async def lifespan(_: Starlette) -> Any:
    """Open the app that the console queries."""
    with pgflow.django.app:
        yield


application = Starlette(
    routes=[
        Mount("/pgflow", pgflow.web.asgi(pgflow.django.app, auth=staff)),
        Mount("/", site),
    ],
    lifespan=lifespan,
)
