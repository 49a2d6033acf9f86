"""pgflow: durable execution with nothing but the Postgres you already have.

This module names what you use every day. ``pgflow.authority``, ``pgflow.decisions``,
``pgflow.effects``, ``pgflow.entities``, ``pgflow.errors``, ``pgflow.events``,
``pgflow.extensions``, ``pgflow.queues`` and ``pgflow.updates`` hold the rest, ``pgflow.sync`` the
twins for sync workflows; ``import pgflow`` brings them along. ``pgflow.inspect`` has the readers of
the database, ``pgflow.testing`` the testing kit, ``pgflow.sqlalchemy`` and ``pgflow.django``
the integrations.
"""

from typing import TYPE_CHECKING, Any

from pgflow._version import __version__ as __version__

if TYPE_CHECKING:
    from pgflow import _surface
    from pgflow._surface import *  # noqa: F403 - they are listed there

    __all__ = ["__version__"]
    __all__ += _surface.__all__  # type: ignore[has-type]  # mypy reads it before it types it


def __getattr__(name: str) -> Any:
    """Import all that is offered when the first of it is asked for, so that a command that needs
    none of it starts at once. Everything comes together: a workflow that runs must import nothing.
    """
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'pgflow' has no attribute {name!r}")
    if name == "inspect":  # `from pgflow import inspect` asks for it here first
        import pgflow.inspect

        return pgflow.inspect
    import pgflow._surface as surface

    ours = globals()
    for one in surface.__all__:
        if one in vars(surface):  # not yet, while it is being imported
            ours.setdefault(one, vars(surface)[one])
    ours["__all__"] = sorted([*surface.__all__, "__version__"])
    if name not in ours:
        raise AttributeError(f"module 'pgflow' has no attribute {name!r}")
    return ours[name]


def __dir__() -> list[str]:
    """Names that are offered, loaded or not."""
    return sorted({*globals(), *__getattr__("__all__")})
