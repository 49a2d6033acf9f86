"""Programs that tests need and pip does not bring."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import servers


def test_a_program_of_administrators_is_found_by_an_ordinary_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = next(
        entry.name
        for folder in ("/usr/sbin", "/sbin")
        if Path(folder).is_dir()
        for entry in Path(folder).iterdir()
        if os.access(entry, os.X_OK)
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(servers.find_program(name, "any")).name == name


def test_a_program_that_is_nowhere_skips_its_test_or_fails_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PGFLOW_TEST_NEEDS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt install ponies"):
        servers.find_program("pony-server", "ponies")
    monkeypatch.setenv("PGFLOW_TEST_NEEDS", "pgbouncer pony-server")
    with pytest.raises(pytest.fail.Exception, match="needs pony-server"):
        servers.find_program("pony-server", "ponies")
