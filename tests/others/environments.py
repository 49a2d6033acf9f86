"""Environments of the peers, outside of the tree: their packages at a fixed version, and the tests that
their source distributions bring.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.others.suites import ROOM, TESTS, Suite

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pgflow-others"


def python_of(suite: Suite) -> Path:
    """Return the interpreter that has the packages of a suite, and pgflow of this tree: this one if the
    suite names none.
    """
    if "packages" not in suite.facts:
        return Path(sys.executable)
    place = CACHE / suite.name
    extras = suite.facts.get("extras", "embedded")
    wanted = json.dumps([suite.facts["packages"], str(TESTS.parent), extras])
    python, mark = place / "venv" / "bin" / "python", place / "installed"
    if not mark.exists() or mark.read_text() != wanted:
        run = _quietly
        run(["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(place / "venv")])
        packages = [*suite.facts["packages"], "-e", f"{TESTS.parent}[{extras}]"]
        run(["uv", "pip", "install", "--quiet", "--python", str(python), *packages])
        mark.write_text(wanted)
    return python


def source_of(suite: Suite, package: str) -> Path:
    """Return the unpacked source distribution of one of the packages of a suite."""
    name, _, version = package.partition("==")
    place = CACHE / suite.name / f"{name.replace('-', '_')}-{version}"
    if not place.exists():
        with tempfile.TemporaryDirectory() as folder:
            options = ["--no-deps", "--no-binary", name, "--dest", folder]
            _quietly([sys.executable, "-m", "pip", "download", "--quiet", *options, package])
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(place.parent, filter="data")
    return place


def _quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def outcomes_of(
    python: Path, arguments: list[str], folder: Path, importable: list[Path], **more: str
) -> dict[str, str]:
    """Run pytest in a folder, and return how each test went.

    Args:
        python: The interpreter that has it.
        arguments: Its arguments.
        folder: The folder.
        importable: Folders of modules, beside that of the plugin `outcomes`.
        **more: Variables of the environment.
    """
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        paths = os.pathsep.join(map(str, [ROOM, *importable]))
        own = {"PGFLOW_OTHERS_OUTCOMES": file.name, "PYTHONPATH": paths}
        command = [str(python), "-m", "pytest", "-q", "-p", "outcomes", *arguments]
        subprocess.run(
            command, cwd=folder, env=os.environ | own | more, check=False, stdout=sys.stderr
        )
        return dict(json.loads(file.read() or "{}"))
