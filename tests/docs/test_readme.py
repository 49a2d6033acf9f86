"""README's figures are those of the benchmark, and installing is described in one place."""

from __future__ import annotations

import json
import re

import servers

README = (servers.REPOSITORY / "README.md").read_text()
ROWS = {
    "steps, with 128 runs at once": "steps_per_second_at_128",
    "steps of a single run": "steps_per_second_at_1",
    "transactional steps of a single run": "transactional_steps_per_second",
    "no-op runs": "noop_runs_per_second",
}
MOST_WORDS = 750


def test_the_table_has_the_ratios_that_were_measured():
    records = json.loads((servers.REPOSITORY / "bench" / "results.json").read_text())
    ratios = {(r["metric"], r["engine"]): r["ratio_to_pgflow"] for r in records}
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in README.splitlines()
        if line.startswith("|")
    ]
    engines = [name.lower() for name in table[0][1:]]
    assert [row[0] for row in table[2:]] == list(ROWS)
    for name, *cells in table[2:]:
        for engine, cell in zip(engines, cells, strict=True):
            ratio = ratios.get((ROWS[name], engine))
            assert cell == ("" if ratio is None else f"{1 / ratio:.2g}"), (name, engine)


def test_it_is_one_screen_with_its_two_commands():
    assert len(README.split()) <= MOST_WORDS
    commands = re.findall(r"^\$ (pip install .*)$", README, re.MULTILINE)
    assert commands == [
        'pip install ".[embedded]" && pgflow demo',
        'pip install -e ".[test]" && pytest',
    ]


def test_only_one_page_says_how_to_install():
    places = [servers.REPOSITORY / "examples", servers.REPOSITORY / "docs"]
    found = {
        path.relative_to(servers.REPOSITORY).as_posix()
        for place in places
        for pattern in ("*.md", "*.yml", "*.yaml")
        for path in place.rglob(pattern)
        if re.search(r"pip install ['\"]?(pgflow|\.\[)", path.read_text())
    }
    # The index and the tutorial begin in a checkout, as README does.
    assert found == {"docs/install.md", "docs/index.md", "docs/tutorial.md"}
