"""The peers: which versions of them, and a virtual environment for each.

Environments live in the user's cache, named by the version, and are made when they are first
needed. A peer that cannot be installed is skipped, and said to be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).with_name("peers.toml")
INSTALL_SECONDS = 600

_REASON = re.compile(r"(?i)\berror: (?!subprocess-exited|metadata-generation|failed)")
"""Pattern of the line in pip's output that says why."""


class NotInstalled(Exception):
    """Reason why a peer cannot take part."""


@dataclass(frozen=True)
class Peer:
    """One section of peers.toml."""

    name: str
    version: str
    requires: tuple[str, ...]
    python: str = ""
    shares: dict[str, float] = field(default_factory=dict, hash=False)

    @property
    def folder(self) -> Path:
        return cache() / f"{self.name}-{self.version}"

    def interpreter(self) -> str:
        """The Python of its environment, which is made if there is none.

        Raises:
            NotInstalled: With what pip had to say.
        """
        return make_environment(self.folder, self._base(), "\n".join(self.requires), *self.requires)

    def _base(self) -> str:
        """A Python that is new enough for it; ours, if that is."""
        if not self.python or sys.version_info >= tuple(map(int, self.python.split("."))):
            return sys.executable
        oldest = int(self.python.split(".")[1])
        for minor in range(oldest, oldest + 4):
            for folder in os.get_exec_path():
                candidate = Path(folder) / f"python3.{minor}"
                if _runs(candidate):
                    return str(candidate)
        raise NotInstalled(
            f"needs Python {self.python}, and this is "
            f"{sys.version_info.major}.{sys.version_info.minor}"
        )


def cache() -> Path:
    """Return the folder of environments."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgflow-bench"


def make_environment(
    folder: Path,
    base: str,
    stamp: str,
    *requires: str,
    prepare: Callable[[], None] = lambda: None,
    **variables: str,
) -> str:
    """The Python of an environment, which is made if there is none with this stamp.

    Args:
        folder: Folder of it.
        base: The Python that it is made with.
        stamp: Hash of its ingredients.
        requires: Requirements that are installed.
        prepare: Called before that.
        variables: Of pip's environment.

    Raises:
        NotInstalled: With what pip had to say.
    """
    python, stamped = folder / "bin" / "python", folder / "installed"
    if not stamped.exists() or stamped.read_text() != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        prepare()
        _run(base, "-m", "venv", "--without-pip", str(folder))
        _run(
            base,
            "-m",
            "pip",
            "--python",
            str(python),
            "--disable-pip-version-check",
            "install",
            "--quiet",
            *requires,
            **variables,
        )
        stamped.write_text(stamp)
    return str(python)


def _run(*command: str, **variables: str) -> None:
    environment = {**os.environ, **variables}
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            env=environment,
        )
    except subprocess.CalledProcessError as error:
        said = [
            line.strip()
            for line in (error.stderr + error.stdout).splitlines()
            if line.strip() and not line.startswith("WARNING")
        ]
        reasons = (
            [line for line in said if _REASON.search(line)]
            or said[-1:]
            or [f"exit code {error.returncode}"]
        )
        raise NotInstalled(reasons[-1]) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error


def _runs(python: Path) -> bool:
    """Return True if it is a Python that may be run, and no shim of a version that is not
    installed.
    """
    try:
        return (
            subprocess.run(
                [python, "-c", "import venv"], capture_output=True, timeout=30, check=False
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def read_peers() -> dict[str, Peer]:
    """Every peer, by name."""
    return {
        name: Peer(
            name, p["version"], tuple(p["requires"]), p.get("python", ""), p.get("shares", {})
        )
        for name, p in tomllib.loads(FILE.read_text()).items()
    }
