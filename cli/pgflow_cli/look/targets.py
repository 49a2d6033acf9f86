"""Targets in the form ``MODULE[:NAME]``: code to import, the app in it, a workflow in it; and the
options that both faces of the console share.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from pgflow_cli.look.database import find_dsn
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake

if TYPE_CHECKING:
    from pgflow import Workflow
    from pgflow.app import AppBase, AsyncApp


class NoModule(Mistake):
    """No module has that name."""


def load_module(target: str) -> ModuleType:
    """Import a module by its dotted name or by its file, as seen from the working directory.

    Raises:
        Mistake: It does not exist, or its import fails; the message has the place.
    """
    name, folder = _place_of(target)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)  # noqa: TID251 - the command line names it
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise Mistake(
                f"{target} imports {error.name}, which is not installed here{_where(error)}"
            ) from error
        raise NoModule(
            f"no module named {name!r}: pass MODULE or FILE.py, importable from {folder}"
        ) from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise Mistake(f"{target} cannot be imported: {text}{_where(error)}") from error


def _place_of(target: str) -> tuple[str, Path]:
    """Return the dotted name of a module and the folder it is imported from."""
    if not target.endswith(".py") and os.sep not in target:
        return target, Path.cwd()
    path = Path(target).resolve()
    if not path.is_file():
        raise Mistake(f"file {target} does not exist")
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _where(error: BaseException) -> str:
    """File and line of the user's code at which an import failed."""
    import pgflow

    ours = (str(Path(pgflow.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(ours)
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def load_app(target: str, dsn: str | None, *, without_session: bool = False) -> AsyncApp:
    """Return the app of ``MODULE[:APP]``: the one named, the only one of the module, or one made of
    the module's workflows.

    Args:
        target: Text that was typed.
        dsn: The database, if one was named.
        without_session: True if it must do without LISTEN and prepared statements.

    Raises:
        Mistake: The module cannot be imported, or there is nothing in it to work on.
    """
    name, _, attribute = target.partition(":")
    from pgflow.app import twin_of

    app = _pick_app(load_module(name), attribute)
    return twin_of(app, dsn, without_session=without_session)


def _pick_app(module: ModuleType, attribute: str) -> AppBase:
    from pgflow.app import AppBase, AsyncApp

    if attribute:
        found = getattr(module, attribute, None)
        if isinstance(found, AppBase):
            return found
        hint = did_you_mean(attribute, _apps(module))
        raise Mistake(f"{module.__name__}:{attribute} is not an App or AsyncApp{hint}")
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if apps:
        raise Mistake(
            f"module {module.__name__} holds {len(apps)} apps: name one, as in "
            f"{module.__name__}:{next(iter(apps))}"
        )
    if _workflows(module):
        return AsyncApp(include=[module])
    raise Mistake(f"module {module.__name__} holds no App, AsyncApp or @workflow")


def load_workflow(target: str, dsn: str | None) -> tuple[AsyncApp, Workflow[..., Any]]:
    """Return the workflow of ``MODULE[:WORKFLOW]``, and the app it belongs to.

    Raises:
        Mistake: The module cannot be imported, or it does not say which workflow.
    """
    from pgflow.app import AsyncApp, twin_of

    name, _, wanted = target.partition(":")
    module = load_module(name)
    known = _workflows(module)
    if not wanted and len(known) == 1:
        workflow = next(iter(known.values()))
    elif wanted in known:
        workflow = known[wanted]
    elif not known:
        raise Mistake(f"module {module.__name__} holds no @workflow")
    elif not wanted:
        has = f"{module.__name__} has {', '.join(known)}"
        raise Mistake(f"which workflow? {has}: say {name}:{next(iter(known))}")
    else:
        hint = did_you_mean(wanted, known)
        raise Mistake(f"module {module.__name__} has no workflow {wanted!r}{hint}")
    holding = [app for app in _apps(module).values() if workflow.name in app.definitions.workflows]
    return twin_of(holding[0] if holding else AsyncApp(include=[module]), dsn), workflow


def _apps(module: ModuleType) -> dict[str, AppBase]:
    from pgflow.app import AppBase

    return {name: value for name, value in vars(module).items() if isinstance(value, AppBase)}


def _workflows(module: ModuleType) -> dict[str, Workflow[..., Any]]:
    """By the name in the module and by the name in the database; those of the module's apps too."""
    from pgflow import Workflow

    here = {name: value for name, value in vars(module).items() if isinstance(value, Workflow)}
    of_apps = {
        name: w for app in _apps(module).values() for name, w in app.definitions.workflows.items()
    }
    named = {w.name: w for w in here.values()}
    has_several = len({id(w) for w in (*of_apps.values(), *here.values())}) > 1
    return {**of_apps, **named, **here} if has_several else here or of_apps


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message on a word that is not known."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1)
    if close:
        return f": did you mean {close[0]}?"
    return f": it has {', '.join(known)}" if known else ""


Target = Annotated[
    str | None,
    arg("Module or file with an app whose codec and approvers count here.", metavar="MODULE[:APP]"),
]
Roles = Annotated[
    list[str] | None,
    opt("A role of yours that gates ask for; more than once for more.", "--as", metavar="ROLE"),
]


def check_roles(roles: Iterable[str] | None) -> None:
    """Refuse a role name that is empty or holds a NUL.

    Raises:
        Mistake: One of them does.
    """
    for role in roles or ():
        if not role.encode() or "\0" in role:
            raise Mistake(f"--as takes the name of a role, not {role!r}")


def open_target(target: str | None, dsn: str | None, *, listen: bool) -> AsyncApp:
    """Return the app of a target; without one, an app that knows no workflows.

    Args:
        target: Module or file, perhaps with the app's name.
        dsn: The database.
        listen: True if an app without workflows listens for notifications.
    """
    from pgflow.app import AsyncApp

    if target is None:
        return AsyncApp(find_dsn(dsn), listen=listen)

    return load_app(target, find_dsn(dsn) if os.environ.get("PGFLOW_TENANT") else dsn)
