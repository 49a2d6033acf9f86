"""The programs of examples/other-languages, each where its tools are: they start a run, answer its
gate, send it a signal and read its result, by the contract only.

That of TypeScript needs node, and its packages where node finds them: ``npm install`` in its folder,
or ``NODE_PATH``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
from servers import HANG_SECONDS

from pgflow import App

EXAMPLES = servers.REPOSITORY / "examples" / "other-languages"
ENDED = "completed: order-1 is on its way"
GO_ENDED = 'completed: "order-1 is on its way"'
pytestmark = pytest.mark.full


@pytest.fixture
def shop(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a program, while a worker serves its workflow."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sys.modules.pop("shop", None)
    import shop

    with App(dsn, include=[shop.fulfil]) as app, app.worker():
        yield {**os.environ, "PGFLOW_DSN": dsn}
    sys.modules.pop("shop", None)


def lines(command: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    """Run a program and return the lines that it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line]


def test_a_script_of_psql(shop, dsn):
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("psql is not installed")
    command = [psql, "-X", "-v", "ON_ERROR_STOP=1", "-v", "order=order-1", "-f", "order.sql", dsn]
    found = lines(command, shop, EXAMPLES / "psql")
    assert found == ["started order-1", "approved approve-order of 25000 cents", ENDED]
    assert lines(command, shop, EXAMPLES / "psql") == ["started order-1 before", ENDED]


def test_a_program_in_typescript(shop, tmp_path):
    folder = EXAMPLES / "typescript"
    places = [str(folder / "node_modules"), os.environ.get("NODE_PATH", "")]
    shop["NODE_PATH"] = os.pathsep.join(places)
    find = "console.log(require.resolve('typescript/bin/tsc'), require.resolve('pg'))"
    node = shutil.which("node")
    found = node and subprocess.run(
        [node, "-e", find], env=shop, capture_output=True, text=True, check=False
    )
    if not node or not found or found.returncode:
        pytest.skip("node, or its packages pg and typescript, are not installed")
    tsc = Path(found.stdout.split()[0])
    for name in ("main.ts", "pgflow.ts", "tsconfig.json"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(tsc.parents[2])
    lines([node, str(tsc), "-p", "."], shop, tmp_path)
    program = [node, "out/main.js", "order-1"]
    assert lines(program, shop, tmp_path) == [
        "started order-1",
        "approved approve-order of 25000 cents",
        ENDED,
        "PF003",
    ]
    assert lines(program, shop, tmp_path) == ["started order-1 before", ENDED, "PF003"]


def test_a_program_in_go(shop):
    go = shutil.which("go")
    shop["GOFLAGS"] = "-mod=mod"
    folder = EXAMPLES / "go"
    fetch = [go or "go", "mod", "download"]
    if not go or subprocess.run(fetch, cwd=folder, env=shop, check=False).returncode:
        pytest.skip("go is not installed, or cannot fetch its modules")
    program = [go, "run", ".", "order-1"]
    first = ["started order-1, new: true", "approved approve-order", GO_ENDED]
    assert lines(program, shop, folder) == first
    assert lines(program, shop, folder) == ["started order-1, new: false", GO_ENDED]
