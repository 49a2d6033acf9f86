"""The same code takes the same course: thirty times in one process, in every process, and in every
Python.

Other interpreters are those of ``PGFLOW_TEST_PYTHONS`` (paths, separated as in ``PATH``), else what
is found as python3.11, python3.12 and python3.13; they need pgflow's dependencies. Each records the
example workflows in the same seeded orders, and replays what every other has recorded.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from enginekit import Worker, replay, saw
from enginestore import Store
from exampleflows import EXAMPLES, Declined, add, charge, look_up, paid
from servers import HANG_SECONDS

from pgflow import workflow


@workflow
async def using_everything() -> list[Any]:
    heard: list[Any] = []

    async def chain(i: int) -> int:
        size = (await look_up("x" * i))["size"]
        return await add(size, i)

    async def pages() -> Any:
        try:
            for i in range(3):
                yield await add(i, 1)
        finally:
            saw("pages end")

    heard.append(await asyncio.gather(*(chain(i) for i in range(12))))
    done, pending = await asyncio.wait(
        {asyncio.create_task(chain(i)) for i in range(20)}, return_when=asyncio.FIRST_COMPLETED
    )
    heard.append([len(done), len(pending)])
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    try:
        async with asyncio.TaskGroup() as group:
            for i in range(9):
                group.create_task(chain(i))
                group.create_task(paid.wait())
            await charge(1000)
    except* Declined as errors:
        heard.append(len(errors.exceptions))
    try:
        async with asyncio.timeout(0.2):
            await asyncio.gather(*(paid.wait() for _ in range(9)))
    except TimeoutError:
        heard.append("late")
    async for page in pages():
        heard.append(page)
        break
    victim = asyncio.create_task(chain(5))
    await asyncio.sleep(0)
    victim.cancel()
    heard.append((await asyncio.gather(victim, return_exceptions=True))[0].__class__.__name__)
    return heard


def course(seed: int) -> tuple[Any, ...]:
    """Return the requests of the code, its end, and everything durable, in one seeded order of
    events.
    """
    store = Store(using_everything)
    run = store.start(using_everything)
    worker = Worker(store, seed=seed)
    worker.finish_at_random()
    assert run.status == "completed", run
    assert replay(run).history.divergence is None
    return (
        worker.attempts[0].events() if run.attempt == 1 else None,
        run.shape(),
        run.output,
        [u.payload for u in run.units if u.kind == "c"],
    )


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_thirty_executions_in_one_process_take_one_course(seed):
    first = course(seed)
    ballast: list[Any] = []
    for i in range(29):
        ballast.append([object() for _ in range(i * 37)])  # other addresses, other reuse of memory
        assert course(seed) == first


SEEDS = 4
LOOK = "import sys, pydantic, psycopg, psycopg_pool; print('%d.%d' % sys.version_info[:2])"
TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join(
    map(str, (Path(__file__).parent, *(TESTS / room for room in ("kits", "apps", ".."))))
)


def candidates() -> list[str]:
    given = os.environ.get("PGFLOW_TEST_PYTHONS")
    return (
        given.split(os.pathsep)
        if given
        else [p for v in ("3.11", "3.12", "3.13") if (p := shutil.which(f"python{v}"))]
    )


def version_of(python: str) -> str | None:
    """The version of an interpreter that has what pgflow needs."""
    try:
        found = subprocess.run(
            [python, "-c", LOOK], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


@pytest.fixture(scope="module")
def pythons() -> dict[str, str]:
    """Interpreters by version: this one, and others that are fit."""
    found = {".".join(map(str, sys.version_info[:2])): sys.executable}
    for python in candidates():
        version = version_of(python)
        if version is not None:
            found.setdefault(version, python)
    if len(found) < 2:
        pytest.skip(
            "no other Python with pgflow's dependencies among "
            f"{candidates() or 'python3.11, 3.12, 3.13'}: set PGFLOW_TEST_PYTHONS"
        )
    return found


def ask_all(orders: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Has the examples recorded or replayed by other processes, each with an order of sets of its
    own; answers by name of the order.
    """
    running = {}
    for seed, (name, (python, order)) in enumerate(orders.items()):
        environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHONHASHSEED": str(seed)}
        command = [python, "-c", "import exampleflows; exampleflows.obey()"]
        running[name] = (
            subprocess.Popen(
                command, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
            ),
            json.dumps(order),
        )
    answers = {}
    for name, (process, order) in running.items():
        output, errors = process.communicate(order)
        assert process.returncode == 0, errors[-2000:]
        answers[name] = json.loads(output)
    return answers


RECORDABLE = [e.name for e in EXAMPLES]


@pytest.fixture(scope="module")
def histories(pythons: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Record the histories of each Python, by name and seed of the example."""
    order = {"record": RECORDABLE, "seeds": SEEDS}
    return ask_all({version: (python, order) for version, python in pythons.items()})


@pytest.fixture(scope="module")
def divergences(pythons: dict[str, str], histories: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """By the Python that replays: what it finds in the histories of the others."""
    orders = {}
    for version, python in pythons.items():
        foreign = {
            f"{other}: {name}": h
            for other, recorded in histories.items()
            if other != version
            for name, h in recorded.items()
        }
        orders[version] = (python, {"replay": foreign})
    return ask_all(orders)


def outline(history: Any) -> Any:
    """Units of all runs without the texts of errors and of delays, which Pythons write
    differently.
    """
    return [
        [[*u[:4], u[4] if u[2] not in ("f", "a", "K", "t") else None] for u in run["units"]]
        for run in history
    ]


def test_every_python_records_the_same_history(histories):
    (first, expected), *others = histories.items()
    for version, recorded in others:
        assert recorded.keys() == expected.keys()
        for name, history in recorded.items():
            assert outline(history) == outline(expected[name]), (
                f"{name}: {first} and {version} differ"
            )


@pytest.mark.parametrize("by", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("recorded_on", ["3.11", "3.12", "3.13"])
def test_what_one_python_has_recorded_another_replays(request, pythons, recorded_on, by):
    for version in (recorded_on, by):
        if version not in pythons:
            pytest.skip(
                f"there is no Python {version} with pgflow's dependencies here: set "
                "PGFLOW_TEST_PYTHONS"
            )
    found = request.getfixturevalue("divergences")[by]
    assert {name: d for name, d in found.items() if name.startswith(f"{recorded_on}:")} == {}
