"""examples/github-actions: the workflow is sound, and its steps run here as a runner would run
them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import servers
from ruamel.yaml import YAML

FOLDER = servers.REPOSITORY / "examples" / "github-actions"
TEXT = (FOLDER / "drain.yml").read_text()


def load() -> Any:
    """The workflow, as YAML 1.2 has it: `on` is a word there."""
    return YAML(typ="safe", pure=True).load(TEXT)


@pytest.fixture(scope="module")
def flow():
    return load()


def test_every_key_is_one_that_github_knows(flow):
    assert set(flow) <= {
        "name", "on", "permissions", "concurrency", "jobs", "env", "defaults", "run-name",
    }  # fmt: skip
    for job in flow["jobs"].values():
        assert set(job) <= {
            "runs-on", "timeout-minutes", "env", "defaults", "steps", "if", "needs", "permissions",
            "strategy", "name",
        }  # fmt: skip
        for step in job["steps"]:
            assert set(step) <= {
                "name", "id", "uses", "with", "run", "env", "if", "working-directory", "shell",
                "timeout-minutes",
            }  # fmt: skip
            assert ("uses" in step) != ("run" in step)


def test_the_schedule_is_off_the_hour_and_not_too_often(flow):
    (schedule,) = flow["on"]["schedule"]
    minutes = schedule["cron"].split()[0]
    first, step = re.fullmatch(r"(\d+)-59/(\d+)", minutes).groups()
    assert int(first) % int(step) != 0
    assert int(step) >= 5


def test_one_at_a_time_and_none_is_cancelled(flow):
    assert flow["concurrency"] == {"group": "pgflow-drain", "cancel-in-progress": False}


def test_a_tick_ends_before_the_job_does(flow):
    (job,) = flow["jobs"].values()
    tick = next(step for step in job["steps"] if "pgflow tick" in step.get("run", ""))
    default = re.search(r"'(\d+)m'", tick["env"]["MAX_RUNTIME"])[1]
    assert int(default) < job["timeout-minutes"]


def test_secrets_and_inputs_reach_scripts_through_the_environment_only(flow):
    (job,) = flow["jobs"].values()
    assert job["env"]["PGFLOW_DSN"] == "${{ secrets.PGFLOW_DSN }}"
    assert [step for step in job["steps"] if "${{" in step.get("run", "")] == []
    assert flow["permissions"] == {"contents": "read"}


def test_outputs_that_are_read_are_outputs_of_a_step_before(flow):
    (job,) = flow["jobs"].values()
    seen: set[str] = set()
    for step in job["steps"]:
        for name, output in re.findall(r"steps\.(\w+)\.outputs\.(\w+)", json.dumps(step)):
            assert name in seen
            assert output == "next_wake_at"
        seen |= {step["id"]} if "id" in step else set()


# ---------------------------------------------------------------- as a runner would


def value_of(expression: str, dsn: str) -> str:
    """Return the value that an expression of this workflow has on a schedule."""
    return {
        "${{ secrets.PGFLOW_DSN }}": dsn,
        "${{ inputs.max_runtime || '10m' }}": "10m",
        "${{ steps.tick.outputs.next_wake_at }}": "",
    }.get(expression, expression)


def run_steps(
    job: Any, dsn: str, files: dict[str, str]
) -> list[tuple[str, subprocess.CompletedProcess[str]]]:
    """Runs the scripts of a job, in bash as GitHub does; what is installed is this checkout."""
    done = []
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for step in job["steps"]:
        if "run" not in step or step["run"].startswith("pip install"):
            continue
        variables = {
            name: value_of(text, dsn)
            for name, text in {**job["env"], **step.get("env", {})}.items()
        }
        env = {**os.environ, **variables, **files, "PATH": path, "GITHUB_ACTIONS": "true"}
        folder = servers.REPOSITORY / job["defaults"]["run"]["working-directory"]
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done.append(
            (
                step["name"],
                subprocess.run(
                    command, env=env, cwd=folder, capture_output=True, text=True, check=False
                ),
            )
        )
    return done


@pytest.mark.full
def test_its_steps_run_again_and_again_and_each_report_is_made_once(flow, empty_dsn, tmp_path):
    import psycopg

    files = {
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    (job,) = flow["jobs"].values()
    done = "select workflow, count(*) from pgflow.runs where status = 'completed' group by 1 order by 1"
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        for times in range(3):
            for name, step in run_steps(job, empty_dsn, files):
                assert step.returncode == 0, f"{name}: {step.stderr}"
                assert "::error" not in step.stderr
            if times == 0:
                # GitHub has dropped a slot: nobody has looked for a day.
                conn.execute(
                    "update pgflow.schedule set upcoming = '{}', due_at = null, last_slot_at = null, "
                    "look_at = now(), after_at = now() - interval '24 hours'"
                )
        assert conn.execute(done).fetchall() == [("daily", 1), ("report", 1)]
        assert conn.execute("select * from pgflow.check()").fetchall() == []
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("### pgflow tick: idle after") == 3
    assert re.search(r"next_wake_at=\d{4}-", (tmp_path / "output").read_text())
