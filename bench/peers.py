"""The peers: which versions of them, and a virtual environment for each.

Environments live in the user's cache, named by the version, and are made when they are first needed. A peer
that cannot be installed is skipped, and said to be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

FILE = Path(__file__).with_name("peers.toml")
INSTALL_SECONDS = 600


class NotInstalled(Exception):
    """Why a peer cannot take part."""


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
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "pgflow-bench" / f"{self.name}-{self.version}"

    def interpreter(self) -> str:
        """The Python of its environment, which is made if there is none.

        Raises:
            NotInstalled: With what pip had to say.
        """
        python = self.folder / "bin" / "python"
        stamp = self.folder / "installed"
        if not stamp.exists() or stamp.read_text() != "\n".join(self.requires):
            shutil.rmtree(self.folder, ignore_errors=True)
            self._install(python)
            stamp.write_text("\n".join(self.requires))
        return str(python)

    def _install(self, python: Path) -> None:
        base = self._base()
        make = [base, "-m", "venv", "--without-pip", str(self.folder)]
        fill = [base, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet", *self.requires]
        for command in (make, fill):
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            except subprocess.CalledProcessError as error:
                said = [line for line in (error.stderr + error.stdout).splitlines() if line.strip() and not line.startswith("WARNING")]
                raise NotInstalled(said[-1] if said else f"exit code {error.returncode}") from error
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NotInstalled(str(error)) from error

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
        raise NotInstalled(f"needs Python {self.python}, and this is {sys.version_info.major}.{sys.version_info.minor}")


def _runs(python: Path) -> bool:
    """Whether it is one, that may be run, and no shim of a version that is not installed."""
    try:
        return subprocess.run([python, "-c", "import venv"], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def read_peers() -> dict[str, Peer]:
    """Every peer, by name."""
    return {
        name: Peer(name, p["version"], tuple(p["requires"]), p.get("python", ""), p.get("shares", {}))
        for name, p in tomllib.loads(FILE.read_text()).items()
    }  # fmt: skip
