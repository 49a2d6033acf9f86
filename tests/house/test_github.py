""".github/: workflows and forms are sound, CI is `.ci/run`, and a release needs no stored secret."""

from __future__ import annotations

import os
from typing import Any

import servers
from ruamel.yaml import YAML

FOLDER = servers.REPOSITORY / ".github"


def load(name: str) -> Any:
    """A file of YAML 1.2, in which `on` is a word."""
    return YAML(typ="safe", pure=True).load((FOLDER / name).read_text())


def commands(flow: Any) -> list[str]:
    """What the steps of all jobs run."""
    return [step["run"] for job in flow["jobs"].values() for step in job["steps"] if "run" in step]


def test_ci_runs_what_every_machine_may_run():
    flow = load("workflows/ci.yml")
    assert commands(flow) == [".ci/run"]
    assert os.access(servers.REPOSITORY / ".ci" / "run", os.X_OK)
    assert flow["permissions"] == {"contents": "read"}


def test_a_release_is_tried_before_it_is_published_by_a_trusted_publisher():
    flow = load("workflows/release.yml")
    assert ".ci/wheels" in commands({"jobs": {"build": flow["jobs"]["build"]}})
    assert flow["jobs"]["publish"]["needs"] == "build"
    assert flow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (FOLDER / "workflows" / "release.yml").read_text()


def test_forms_have_what_github_asks_of_them():
    for name in ("bug.yml", "idea.yml"):
        form = load(f"ISSUE_TEMPLATE/{name}")
        assert {"name", "description", "body"} <= set(form)
        for part in form["body"]:
            assert part["type"] == "textarea"
            assert {"id", "attributes"} <= set(part)
