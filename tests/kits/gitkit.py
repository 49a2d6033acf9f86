"""Repositories for tests, and their files as a dictionary."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

Files = dict[str, tuple[bytes, bool]]
"""Path -> content, and whether it may be executed."""


def git(folder: Path | str, *arguments: str) -> str:
    """Runs git as the user would."""
    done = subprocess.run(
        ["git", "-c", "user.name=ann", "-c", "user.email=ann@example.org", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def make_repository(folder: Path, **files: str) -> Path:
    """Makes a repository whose first commit has these files."""
    git(folder.parent, "init", "--quiet", "--initial-branch", "main", str(folder))
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "begin")
    return folder


def read_files(folder: Path | str) -> Files:
    """All files of a folder, but for git's own."""
    found: Files = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] == ".git" or path.is_dir():
            continue
        found[str(name)] = (path.read_bytes(), os.access(path, os.X_OK))
    return found


def of_the_user(folder: Path | str) -> str:
    """Things of the user in a repository: HEAD, references, index, stash and configuration."""
    own = "\n".join(
        line for line in git(folder, "for-each-ref").splitlines() if "refs/agent" not in line
    )
    head = Path(git(folder, "rev-parse", "--absolute-git-dir").strip()) / "HEAD"
    return f"{own}\n{head.read_text()}\n{git(folder, 'ls-files', '--stage')}"
