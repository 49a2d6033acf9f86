"""Few modules are imported where few are needed: counted, since a clock would measure the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

HEAVY = {"pydantic", "pydantic_core", "rich", "sqlglot", "psycopg_pool"}
OF_SHAPES = {"dataclasses", "inspect", "importlib.resources", "zipfile"}
"""Modules of Python that cost `pgflow --version` as much as all that it needs."""
OF_PROBES = 22
"""Most modules of pgflow that `pgflow health` needs."""
OTHERS_THAN_DAGS = (
    "pgflow.declare.sop.",
    "pgflow.declare.durable.stages.plans",
    "pgflow.documents",
    "pgflow.embedded",
    "pgflow.schema._install",
    "pgflow.workspace.folder",
)
FLOWS = (
    "import pgflow\n\n\n@pgflow.step\ndef double(n: int) -> int:\n    return 2 * n\n\n\n"
    "@pgflow.workflow\ndef hello(n: int) -> int:\n    return double(n)\n"
)


def imported(code: str, **variables: str) -> set[str]:
    """Return the modules that are there when a program has ended."""
    program = f"import json, sys\n{code}\nprint('\\n' + json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "pgflow"}


def command(*words: str) -> str:
    return f"from pgflow_cli.commands import run; assert run({list(words)}) == 0"


def test_the_package_alone_imports_nothing_and_its_first_name_all_of_it():
    alone = imported("import pgflow; assert pgflow.__version__")
    assert ours(alone) == {"pgflow", "pgflow._version"}
    assert not tops(alone) & {"psycopg", *HEAVY}
    used = imported(
        "import pgflow; pgflow.App; before = set(sys.modules)\n"
        "assert set(pgflow.__all__) <= set(dir(pgflow))\n"
        "[getattr(pgflow, name) for name in pgflow.__all__]\n"
        "assert set(sys.modules) == before"
    )
    assert "pgflow._worker.worker" in used


def test_the_version_is_said_without_driver_and_engine():
    for code in (
        "from pgflow_cli.commands import run; run(['--version'])",
        "sys.argv = ['pgflow', '--version']; from pgflow_cli import main; main()",
    ):
        there = imported(code)
        assert ours(there) == {"pgflow", "pgflow.assets", "pgflow._engine", "pgflow._version"}
        assert not tops(there) & {"psycopg", *HEAVY}
    assert not there & {"typer", *OF_SHAPES}


def test_a_probe_needs_the_driver_and_little_of_pgflow(dsn):
    there = imported(command("health"), PGFLOW_DSN=dsn)
    assert len(ours(there)) <= OF_PROBES, sorted(ours(there))
    assert not tops(there) & HEAVY


def test_a_list_reads_its_options_and_rows_without_models_and_engine(dsn):
    there = imported(
        command("list", "--limit", "5", "--status", "failed", "--since", "2h"), PGFLOW_DSN=dsn
    )
    assert not tops(there) & {"pydantic", "pydantic_core", "sqlglot", "psycopg_pool"}
    assert not {name for name in ours(there) if name.startswith(("pgflow._engine", "pgflow._flow"))}
    assert not there & {"rich.markup", "rich._emoji_codes"}


def test_the_lint_needs_no_engine_and_no_driver(tmp_path):
    (tmp_path / "flows.py").write_text(FLOWS)
    there = imported(command("check", str(tmp_path / "flows.py")))
    assert {name for name in ours(there) if not name.startswith("pgflow.lint")} <= {
        "pgflow", "pgflow._lazy", "pgflow._version", "pgflow.console", "pgflow.console.output",
        "pgflow.inspect", "pgflow.inspect._homes",
    }  # fmt: skip
    assert not tops(there) & {"psycopg", *HEAVY}


def test_a_run_of_code_needs_nothing_of_files(dsn, tmp_path):
    (tmp_path / "flows.py").write_text(FLOWS)
    there = imported(command("run", str(tmp_path / "flows.py"), "n:=21"), PGFLOW_DSN=dsn)
    assert {name for name in there if name.startswith("pgflow.declare.")} == {
        "pgflow.declare.suffixes"
    }
    assert not tops(there) & {"ruamel", "markdown_it", "rich", "sqlglot"}


def test_a_run_of_a_dag_needs_no_other_family_no_installer_and_no_documents(dsn, tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text("name: one\ndescription: One.\nnodes:\n- {id: a, bash: 'true'}\n")
    there = imported(
        command("run", str(file), "--cwd", str(tmp_path)), PGFLOW_DSN=dsn, PATH=os.defpath
    )
    assert not {name for name in there if name.startswith(OTHERS_THAN_DAGS)}
    assert not tops(there) & {"markdown_it", "rich", "sqlglot"}


def test_a_command_ends_without_a_last_walk_over_what_was_imported():
    there = imported(
        "import atexit, gc\n"
        "atexit.register(lambda: print('\\n' + json.dumps([str(gc.get_freeze_count() > 0)])))\n"
        "sys.argv = ['pgflow', 'check', '--help']\n"
        "from pgflow_cli import main; main()"
    )
    assert there == {"True"}


WITHOUT_FILES = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ruamel", "markdown_it"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from pgflow_cli.commands import run
sys.exit(run(sys.argv[1:]))
"""


def without_files(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run a command where the extra `files` is not installed."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{WITHOUT_FILES}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_workflows_in_code_need_no_parser_of_files(dsn, tmp_path):
    (tmp_path / "flows.py").write_text(FLOWS)
    for target in ("flows.py:hello", "flows:hello", "flows"):
        done = without_files(
            "--dsn", dsn, "run", target, "n:=21", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
        )
        assert (done.returncode, done.stdout.strip()[-2:]) == (0, "42"), done.stderr


def test_a_signal_needs_no_parser_of_files(dsn):
    done = without_files("--dsn", dsn, "start", "ship", "--new", "--key", "order-7")
    assert done.returncode == 0, done.stderr
    done = without_files("--dsn", dsn, "signal", "order-7", "paid", "500")
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_a_line_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "review.yaml").write_text("name: review\nnodes: []\n")
    (tmp_path / "plan.sop.md").write_text("# Plan\n\n## Steps\n\n### 1. Look\n")
    for file in ("review.yaml", "plan.sop.md"):
        done = without_files("validate", file, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.strip().endswith('pip install "pgflow-engine[files]"')
        assert len(done.stderr.splitlines()) == 1
