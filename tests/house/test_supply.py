"""Sets of packages: what CI installs is pinned with hashes, and an installation says what is in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import servers
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((servers.REPOSITORY / "pyproject.toml").read_text())["project"]


def wanted(*extras: str) -> list[Requirement]:
    """Return what the project and some of its extras ask for."""
    named = list(PROJECT["dependencies"])
    for extra in extras:
        named += PROJECT["optional-dependencies"][extra]
    found: list[Requirement] = []
    for requirement in map(Requirement, named):
        own = requirement.name == PROJECT["name"]
        found += wanted(*requirement.extras) if own else [requirement]
    return found


@pytest.mark.parametrize(
    ("lock", "extras"), [("test", ["test"]), ("adapters", ["test", "adapters"])]
)
def test_what_ci_installs_is_pinned_with_hashes_and_fits_the_project(
    lock: str, extras: list[str]
) -> None:
    text = (servers.REPOSITORY / ".ci" / f"{lock}.txt").read_text()
    pins = [line for line in text.splitlines() if re.match(r"[a-z0-9]", line)]
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins) > 100
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in text
    versions: dict[str, list[str]] = {}
    for pin in pins:
        name, version = pin.split()[0].split("==")
        versions.setdefault(canonicalize_name(name), []).append(version)
    for name in ("hatchling", "editables", "uv"):  # with which the rest is installed
        assert name in versions
    unfit = [
        str(requirement)
        for requirement in wanted(*extras)
        if not any(
            requirement.specifier.contains(version)
            for version in versions.get(canonicalize_name(requirement.name), [])
        )
    ]
    assert unfit == [], "make lock"


@pytest.mark.full
def test_one_command_prints_what_is_installed_with_versions_and_licences() -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    said = subprocess.run(
        ["make", "sbom"],
        cwd=servers.REPOSITORY,
        env={"PATH": path, "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        check=True,
    )
    bill = json.loads(said.stdout)
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == (
        "CycloneDX",
        "pgflow-engine",
    )
    parts = {part["name"]: part for part in bill["components"]}
    assert parts["pydantic"]["licenses"][0]["license"]["id"] == "MIT"
    assert {canonicalize_name(requirement.name) for requirement in wanted()} <= {
        canonicalize_name(name) for name in parts
    }
