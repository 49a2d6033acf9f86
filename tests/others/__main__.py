"""Whether users of other engines find what they rely on: `python -m tests.others [SUITE ...]`.

It runs the suites of this room, prints a table and names what failed. Suites with an adapter fetch their
peer from its package registry, once, into a cache outside of the tree; the others need nothing.
`--page` writes docs/compare.md from the tables of the suites, and runs nothing.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))

from ownserver import OwnServer

from tests.others import environments
from tests.others.page import PAGE, page
from tests.others.suites import TESTS, Suite, suites

HEAD = ("suite", "cases", "pass", "excused", "fail", "read from")


@dataclass
class Result:
    """Counts of a suite.

    Attributes:
        suite: The suite.
        cases: Its behaviours, or the peer's tests that pass on the peer's own parts.
        passed: Those that hold.
        excused: Those with a reason why they do not apply.
        failures: The others, a line each.
    """

    suite: Suite
    cases: int
    passed: int = 0
    excused: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        counts = self.cases, self.passed, self.excused, len(self.failures)
        return (self.suite.facts["title"], *map(str, counts), self.suite.facts["peer"])


def of_table(suite: Suite, outcomes: dict[str, str]) -> Result:
    """Judge a suite by how its tests went; those with parameters, by all of these."""
    result = Result(suite, len(suite.cases))
    for case in suite.cases:
        if case.reason:
            result.excused += 1
            continue
        found = {how for node, how in outcomes.items() if _is_of(node, case.node)}
        if found and found <= {"passed", "skipped"} and "passed" in found:
            result.passed += 1
        else:
            how = ", ".join(sorted(found)) or "not run"
            result.failures.append(f"{suite.name} {case.number}: {how}: {case.node}")
    return result


def _is_of(played: str, node: str) -> bool:
    """Return True if a test that was played is the one of a case, or one of it with parameters."""
    return played in (node, node.partition("[")[0]) or played.partition("[")[0] == node


def play_tables(suites: list[Suite], processes: str) -> list[Result]:
    """Run the tests of suites with tables: once in each environment that they need."""
    results = []
    by_python: dict[Path, list[Suite]] = {}
    for suite in suites:
        by_python.setdefault(environments.python_of(suite), []).append(suite)
    for python, those in by_python.items():
        cases = [case for suite in those for case in suite.cases]
        nodes = sorted({case.node.partition("[")[0] for case in cases if case.node})
        arguments = ["-m", "", "-n", processes, "-p", "no:cacheprovider", *nodes]
        outcomes = environments.outcomes_of(python, arguments, TESTS.parent, [])
        results += [of_table(suite, outcomes) for suite in those]
    return results


def of_adapter(suite: Suite, server: str) -> Result:
    """Run the peer's tests on our parts, and what fails there on the peer's own, for comparison."""
    python = environments.python_of(suite)
    folder = environments.source_of(suite, suite.facts["source"])

    def play(which: str, tests: list[str]) -> dict[str, str]:
        arguments = ["-p", "adapter", *suite.facts["arguments"], *tests]
        names = {"PGFLOW_OTHERS_AS": which, "PGFLOW_OTHERS_SERVER": server}
        return environments.outcomes_of(python, arguments, folder, [suite.folder], **names)

    ours = play("ours", suite.facts["files"].split())
    failed = [node for node, how in ours.items() if how == "failed"]
    theirs = play("theirs", failed) if failed else {}
    result = Result(suite, len(ours), passed=sum(how == "passed" for how in ours.values()))
    for node in failed:
        if not suite.excuse(node) and theirs.get(node) == "passed":
            result.failures.append(f"{suite.name}: fails on ours only: {node}")
    result.excused = result.cases - result.passed - len(result.failures)
    if not result.passed:
        result.failures.append(f"{suite.name}: nothing ran")
    return result


def main() -> int:
    """Run the suites that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", help="names of folders; all by default")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} and run nothing")
    parser.add_argument("--processes", default="2", help="processes of pytest")
    asked = parser.parse_args()
    chosen = suites(asked.suites)
    if asked.page:
        PAGE.write_text(page())
        return 0
    flaws = [flaw for suite in chosen for flaw in suite.flaws()]
    tables = [suite for suite in chosen if suite.cases and not flaws]
    results = play_tables(tables, asked.processes)
    adapted = [suite for suite in chosen if suite.has_adapter]
    if adapted:
        with OwnServer(fsync="off", max_connections="300") as server:
            address = server.dsn.removesuffix("postgres")
            results += [of_adapter(suite, address) for suite in adapted]
    _print([HEAD, *(result.row for result in results)])
    failures = flaws + [line for result in results for line in result.failures]
    print("\n".join(failures))
    return 1 if failures else 0


def _print(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
