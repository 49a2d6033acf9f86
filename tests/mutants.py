"""Deliberately broken variants of pgflow, each of which a named test must catch: `python -m tests.mutants [NAME ...]`.

A test that no mutant fails proves little. Each variant is one change of one file, made in a copy of the
repository; the tests named beside it must fail there. Prints a line for each and `mutants caught k/k`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
COPIED = ("pgflow", "cli", "sql", "migrations", "tests", "examples", "bench", "pyproject.toml", "README.md", "docs")
SECONDS = 900


class Mutant(NamedTuple):
    """One variant: in this file this text becomes that, and these tests notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    Mutant(
        "unfenced transaction", "sql/transaction.sql",
        "  if held_token is distinct from token then\n    raise exception using errcode = 'PF004', message = format('run %s is no longer held by this worker', run_id);\n  end if;\n"
        "  -- From here",
        "  -- From here", "tests/test_sql_commit.py",
    ),
    Mutant(
        "unfenced batch", "sql/commit.sql",
        "  if careful or locked_ids is distinct from ids or locked_tokens is distinct from tokens then",
        "  if careful then", "tests/test_sql_commit.py",
    ),
    Mutant(
        "claim that waits", "sql/claim.sql",
        "    select r.ctid from pgflow.ready r where r.ctid = any(heads) and r.lane_id = any(lanes) for update skip locked\n  ) k;\n  if coalesce",
        "    select r.ctid from pgflow.ready r where r.ctid = any(heads) and r.lane_id = any(lanes) for update\n  ) k;\n  if coalesce",
        "tests/test_sql_claim.py tests/test_sql_locks.py",
    ),
    Mutant(
        "suspects claimed in crowds", "sql/claim.sql",
        "    more := pgflow.take_heads_(free_lanes, 1, true,", "    more := pgflow.take_heads_(free_lanes, max, true,", "tests/test_sql_claim.py",
    ),
    Mutant(
        "nudge deleted whatever was seen", "sql/wake.sql",
        "  where n.chain_id = g.chain and n.nudge_id = g.id and g.chain <> all(keep);", "  where n.chain_id = g.chain and n.nudge_id = g.id;",
        "tests/test_sql_wake.py",
    ),
    Mutant(
        "wake that waits for a commit", "sql/wake.sql",
        "where e.run_id = any(mail) order by e.run_id for no key update skip locked", "where e.run_id = any(mail) order by e.run_id for no key update",
        "tests/test_sql_wake.py tests/test_sql_locks.py",
    ),
    Mutant(
        "keys of children in the order of calls", "sql/settle.sql", "  order by r.tenant, g.key\n  on conflict do nothing;", "  on conflict do nothing;",
        "tests/test_sql_wake.py tests/test_sql_locks.py",
    ),
    Mutant(
        "reaper that trusts an old beat", "sql/worker.sql", "  if coalesce(current_beat, -1) is distinct from beat then", "  if false then",
        "tests/test_sql_workers.py",
    ),
    Mutant(
        "second start under a key is another run's", "sql/start.sql", "known.input::jsonb <> insert_run_.input::jsonb", "false",
        "tests/test_sql_start.py",
    ),
    Mutant(
        "lost acknowledgement taken for lost lease", "sql/commit.sql", "  if next_token = p_token then\n    return 'already';\n  end if;\n", "",
        "tests/test_sql_commit.py",
    ),
    Mutant(
        "commit in progress taken for failed", "pgflow/transactions.py", '        if status != "in progress":', "        if True:",
        "tests/test_commit_protocol.py",
    ),
    Mutant(
        "outcomes decided together taken one by one", "pgflow/_engine/release.py", "            if not unit.is_answer:", "            if True:",
        "tests/test_engine_replay.py",
    ),
    Mutant(
        "fence before the last outcome is released", "pgflow/_engine/execution.py",
        "        return self.inflight is None and not (self.locked or self._decided or self._driver.busy)", "        return self.inflight is None and not self.locked",
        "tests/test_engine_order.py",
    ),
    Mutant(
        "licence not written ahead", "pgflow/_engine/requests.py",
        '        if call.spec.effect == "s" and call.number not in self.journal.starts:', "        if False:", "tests/test_engine_order.py tests/test_engine_replay.py",
    ),
    Mutant(
        "tasks in the order of their addresses", "pgflow/_engine/loop.py",
        "    own_context: contextvars.Context\n\n    def __hash__(self) -> int:\n        return self._ordinal",
        "    own_context: contextvars.Context\n\n    def __hash__(self) -> int:\n        return id(self) >> 4",
        "tests/test_determinism.py tests/test_loop.py",
    ),
    Mutant(
        "generators left to the collector", "pgflow/_engine/loop.py",
        "        self._generators.append((generator, task.own_context if isinstance(task, WorkflowTask) else contextvars.copy_context()))", "        del task",
        "tests/test_loop.py",
    ),
    Mutant(
        "step that is no longer asked for is forgotten", "pgflow/_engine/history.py", "        for start in self.journal.open_starts():", "        for start in ():",
        "tests/test_engine_divergence.py",
    ),
    Mutant(
        "contention recorded as an outcome", "pgflow/bodies.py",
        "                if is_infrastructure(error) or is_conflict_on_unit(error):", "                if False:", "tests/test_transactions.py",
    ),
    Mutant(
        "arguments of a started step not compared", "pgflow/_engine/requests.py",
        "        if call.number not in self.journal.ended and call.args_hash != started.args_hash:", "        if False:", "tests/test_engine_divergence.py",
    ),
    Mutant(
        "bodies stopped with their worker recorded as failed", "pgflow/bodies.py", "                if self._stopped or execution.over", "                if execution.over",
        "tests/test_recovery.py",
    ),
]


def is_caught(mutant: Mutant, folder: Path) -> bool:
    """Makes the variant in a copy of the repository, and runs the tests that must notice."""
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
        elif source.exists():
            shutil.copy(source, folder / name)
    file = folder / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has the text {text.count(mutant.old)} times"
    file.write_text(text.replace(mutant.old, mutant.new))
    path = os.pathsep.join([str(folder), str(folder / "cli")])
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--deselect", "tests/test_schema.py", *mutant.tests.split()]
    try:
        tests = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True  # it hangs, where a sound one would not
    assert tests.returncode in (0, 1), f"{mutant.name}: the tests did not run: {tests.stdout[-2000:]}{tests.stderr[-2000:]}"
    return tests.returncode == 1


def main() -> int:
    wanted = [m for m in MUTANTS if m.name in sys.argv[1:]] if len(sys.argv) > 1 else MUTANTS
    tests = " ".join(sorted({test for mutant in wanted for test in mutant.tests.split()}))
    with tempfile.TemporaryDirectory(prefix="pgflow-mutant-") as folder:
        if is_caught(Mutant("nothing changed", "README.md", "# pgflow\n\n", "# pgflow\n\n", tests), Path(folder)):
            print("the tests fail where nothing is changed: that they fail for a mutant would say nothing")
            return 2
    caught = 0
    for mutant in wanted:
        with tempfile.TemporaryDirectory(prefix="pgflow-mutant-") as folder:
            found = is_caught(mutant, Path(folder))
        caught += found
        print(f"{'caught ' if found else 'ALIVE  '} {mutant.name:<52} {mutant.file:<28} {mutant.tests}", flush=True)
    print(f"mutants caught {caught}/{len(wanted)}")
    return 0 if caught == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
