"""The engine compiled: a build that is told to makes machine code of it, which behaves as the text
does; any other makes none.

Wheels are built in an environment of their own, and installed where everything else is that of this
one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import servers

from bench import ourselves

pytestmark = pytest.mark.full

ENGINE_TESTS = (
    "engine/test_engine_objects.py",
    "engine/test_engine_offers.py",
    "engine/test_engine_order.py",
    "engine/test_engine_divergence.py",
)
LONG_TESTS = "locking or giving_up_writes or forget_a_step"
"""Those of them that play many changed programs, by the words that choose them."""
TRY_WHEEL = str(Path(__file__).parents[1] / "wheel.py")
WHICH = "import pgflow._engine, pgflow.assets; print(pgflow._engine.__file__, pgflow.assets.is_compiled())"


def run(*command: str, **variables: str) -> str:
    """Run a program and return its output; fail with its errors."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST_", "HATCH_"))
    }
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=servers.REPOSITORY,
        env={**environment, **variables},
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path, **variables: str) -> Path:
    """The wheel that is made of this repository; nothing that is compiled is left beside the
    text.
    """
    source = folder / "source"
    ourselves.copy_sources(source)
    # How fast the code is does not matter here, and this compiles in half the time.
    project = source / "pyproject.toml"
    project.write_text(project.read_text().replace('opt_level = "3"', 'opt_level = "0"'))
    # In an environment of its own, which uv makes in a fifth of the time that pip takes.
    uv = (sys.executable, "-m", "uv", "build", "--wheel", "--quiet")
    run(*uv, "--out-dir", str(folder), str(source), **variables)
    assert project.exists()
    assert list(source.rglob("*.so")) == []
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> str:
    """The Python of an environment with this wheel, in which the rest comes from ours."""
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps")
    run(*uv, "--python", str(python), str(wheel))
    (packages,) = (folder / "lib").glob("python*/site-packages")
    rest = [path for path in sys.path if path.endswith("-packages")]
    (packages / "rest.pth").write_text("".join(f"{path}\n" for path in [*rest, servers.REPOSITORY]))
    return str(python)


def try_wheel(python: str, wheel: Path, folder: Path) -> None:
    """Try what is installed on a server of its own: that of the user has the schema of another
    version.
    """
    said = run(python, "-P", TRY_WHEEL, wheel.name, XDG_DATA_HOME=str(folder / "data"))
    assert "Everything that was started is stopped." in said


@pytest.mark.skipif(ourselves.compiler() is None, reason="there is no C compiler")
def test_the_compiled_engine_passes_the_tests_of_the_engine(tmp_path: Path):
    # Nobody reads the warnings about what mypyc has made, and they take more time than the rest.
    wheel = build(tmp_path, HATCH_BUILD_HOOKS_ENABLE="1", CFLAGS="-w")
    names = zipfile.ZipFile(wheel).namelist()
    assert not wheel.name.endswith("-any.whl")
    for module in ("pgflow/_model/units", "pgflow/_model/codecs", "pgflow/_engine/execution"):
        assert f"{module}.py" in names
        assert any(name.startswith(f"{module}.") and name.endswith(".so") for name in names)
    python = install(wheel, tmp_path / "venv")
    where, answer = run(python, "-P", "-c", WHICH).split()
    assert (Path(where).is_relative_to(tmp_path), answer) == (True, "True")
    assert run(python, "-P", "-m", "pgflow_cli", "--version").endswith("(compiled)\n")
    # Without the repository in `pythonpath`, which would come before what is installed.
    said = run(
        python,
        "-P",
        "-m",
        "pytest",
        "-o",
        "pythonpath=tests/kits tests/apps",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        *(f"tests/{name}" for name in ENGINE_TESTS),
        "-k",
        f"not ({LONG_TESTS})",
    )
    assert f"engine: compiled, {Path(where).parent}\n" in said


def test_any_other_build_needs_no_compiler_and_has_none_of_it(tmp_path: Path):
    wheel = build(tmp_path, CC="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert [
        name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".c"))
    ] == []
    python = install(wheel, tmp_path / "venv")
    where, answer = run(python, "-P", "-c", WHICH).split()
    assert (Path(where).is_relative_to(tmp_path), answer) == (True, "False")
    try_wheel(python, wheel, tmp_path)
