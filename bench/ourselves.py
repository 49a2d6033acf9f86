"""pgflow as it is measured: as `pip install` makes it, and compiled, as HATCH_BUILD_HOOKS_ENABLE=1
makes it.

Each is in a virtual environment of its own like the peers', kept beside theirs and made anew when
something of it has changed. `bench` itself is found behind its packages.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.peers import NotInstalled, cache, make_environment

REPOSITORY = Path(__file__).parents[1]
SOURCES = (
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "LICENSE",
    "pgflow",
    "cli",
    "sql",
    "migrations",
)
"""All that a wheel is made of."""
MADE = {".so", ".pyc"}


def source_files() -> Iterator[Path]:
    """Yield the files that a wheel is made of."""
    for name in SOURCES:
        path = REPOSITORY / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and file.suffix not in MADE)


def copy_sources(folder: Path) -> None:
    """Copies them: a build writes beside what it builds from, and hides its pyproject.toml
    meanwhile.
    """
    for file in source_files():
        copy = folder / file.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def compiler() -> str | None:
    """The C compiler that extensions are built with, if there is one."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(command.split()[0])


def interpreter(*, compiled: bool) -> str:
    """The Python of an environment with this repository's pgflow.

    Raises:
        NotInstalled: With what pip had to say, or there is no compiler.
    """
    if compiled and compiler() is None:
        raise NotInstalled("there is no C compiler")
    name = "pgflow-compiled" if compiled else "pgflow"
    folder = cache() / f"{name}-{hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:12]}"
    with tempfile.TemporaryDirectory(prefix="pgflow-bench-") as copy:
        python = make_environment(
            folder,
            sys.executable,
            _stamp(),
            f"{copy}[binary]",
            prepare=lambda: copy_sources(Path(copy)),
            HATCH_BUILD_HOOKS_ENABLE=str(int(compiled)),
        )
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "bench.pth").write_text(f"{REPOSITORY}\n")
    return python


def _stamp() -> str:
    """Return a hash of its files and of the Python that makes it."""
    digest = hashlib.sha256(sys.version.encode())
    for file in source_files():
        digest.update(f"\0{file.relative_to(REPOSITORY)}\0".encode() + file.read_bytes())
    return digest.hexdigest()
