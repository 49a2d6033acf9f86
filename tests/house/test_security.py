"""SECURITY.md: each line of its list of threats names a test that exists."""

from __future__ import annotations

import re

import servers

LINE = re.compile(r"^\| (S\d+) \| .+ \| `(\S+\.py)::(test_\w+)` \|$", re.MULTILINE)


def test_each_threat_has_a_test_by_name() -> None:
    page = (servers.REPOSITORY / "SECURITY.md").read_text()
    lines = LINE.findall(page)
    assert [name for name, _, _ in lines] == [f"S{number}" for number in range(1, 28)]
    missing = [
        f"{name}: {path}::{test}"
        for name, path, test in lines
        if f"def {test}(" not in (servers.REPOSITORY / path).read_text()
    ]
    assert missing == []


def test_each_file_of_tests_that_the_page_names_exists() -> None:
    page = (servers.REPOSITORY / "SECURITY.md").read_text()
    paths = {path.rstrip("/") for path in re.findall(r"`(tests/[\w/.]+)", page)}
    assert [path for path in sorted(paths) if not (servers.REPOSITORY / path).exists()] == []
