"""Changes of files as effects of runs: done once, whatever dies between the files and the unit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from coder_jobs import coder
from gitkit import git, make_repository
from processes import worker
from records import SOON
from servers import HANG_SECONDS
from sqlkit import rows

import pgflow
from pgflow import RunFailed, workflow
from pgflow.errors import DefinitionError
from pgflow.testing import set_clock
from pgflow.workspace import NotChanged, PushRefused, Workspace, change, lease, push
from pgflow.workspace.git import Git

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness, Harness


@change()
def append(ws: Workspace, name: str, text: str) -> None:
    path = Path(ws.path) / name
    path.write_text((path.read_text() if path.exists() else "") + text)


@change()
def fail(ws: Workspace) -> None:
    (Path(ws.path) / "b").write_text("half")
    raise KeyError("no such file")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "shop", b="b")


@pytest.fixture
def ws(folder: Path) -> Workspace:
    return Workspace(str(folder), "run-1")


@pytest.mark.full
async def test_an_effect_returns_the_snapshot_of_what_it_has_done(
    aflow: AsyncHarness, conn: psycopg.Connection, ws: Workspace, folder: Path
) -> None:
    @workflow
    async def code(ws: Workspace) -> str:
        done = await append.aio(ws, "b", "+1")
        await append.aio(ws, "b", "+2")
        return done.commit

    aflow.include(code)
    commit = await (await aflow.start(code, ws)).result(SOON)
    assert (folder / "b").read_text() == "b+1+2"
    found = ws.find(commit)
    assert found is not None
    assert found.note == "append"
    keys = rows(conn, "select effect from pgflow.effects order by seq")
    assert found.key == keys[0]
    assert [snapshot.kind for snapshot in ws.history()][::-1] == [
        "edits",
        "begin",
        "change",
        "begin",
        "change",
    ]


@pytest.mark.full
async def test_a_change_that_fails_fails_in_the_workflow_and_leaves_the_files(
    aflow: AsyncHarness, ws: Workspace, folder: Path
) -> None:
    @workflow
    async def code(ws: Workspace) -> str:
        try:
            await fail.aio(ws)
        except NotChanged as error:
            return str(error)
        return "done"

    aflow.include(code)
    assert await (await aflow.start(code, ws)).result(SOON) == "KeyError: 'no such file'"
    assert (folder / "b").read_text() == "b"


@pytest.mark.full
async def test_a_failed_run_takes_its_changes_back_and_leaves_those_of_people(
    aflow: AsyncHarness, ws: Workspace, folder: Path
) -> None:
    @pgflow.step
    async def by_hand() -> None:
        (folder / "a").write_text("by a person")

    @workflow
    async def code(ws: Workspace) -> None:
        async with pgflow.effects.saga():
            await append.aio(ws, "b", "+1")
            await by_hand()
            await append.aio(ws, "c", "c")
            raise ValueError("red tests")

    aflow.include(code)
    with pytest.raises(RunFailed, match="red tests"):
        await (await aflow.start(code, ws)).result(SOON)
    assert (folder / "b").read_text() == "b"
    assert (folder / "a").read_text() == "by a person"
    assert not (folder / "c").exists()


def test_def_workflows_change_files_too(flow: Harness, ws: Workspace, folder: Path) -> None:
    @workflow
    def code(ws: Workspace) -> int:
        with pgflow.workspace.sync.lease(ws) as mine:
            append(mine, "b", "+1")
            return mine.fence

    flow.include(code)
    assert flow.start(code, ws).result(SOON) == 1
    assert (folder / "b").read_text() == "b+1"
    assert ws.history()[0].fence == 1


@pytest.mark.full
async def test_two_runs_never_work_in_one_folder(
    aflow: AsyncHarness, ws: Workspace, folder: Path
) -> None:
    @workflow
    async def code(ws: Workspace, name: str) -> None:
        async with lease(ws) as mine:
            await append.aio(mine, "b", f"<{name}")
            await pgflow.sleep(60)
            await append.aio(mine, "b", f"{name}>")

    aflow.include(code)
    handles = [await aflow.start(code, ws, name) for name in "xy"]
    for _ in handles:
        await aflow.until_idle()
        await aflow.skip(timedelta(minutes=2))
    for handle in handles:
        await handle.result(SOON)
    assert (folder / "b").read_text() in ("b<xx><yy>", "b<yy><xx>")


@pytest.mark.full
@pytest.mark.parametrize(
    "place", ["in the act", "before the snapshot counts", "behind the snapshot"]
)
def test_a_death_between_the_files_and_the_unit_leaves_one_truth(
    dsn: str,
    ws: Workspace,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    monkeypatch.setenv("CODER_DIES_AT", place)
    monkeypatch.setenv("CODER_RECORD", str(tmp_path / "record"))
    with pgflow.App(dsn) as app, worker(dsn, module="coder_jobs") as victim:
        handle = app.start(coder, ws)
        victim.process.wait(HANG_SECONDS)
        set_clock(dsn, timedelta(minutes=3))  # nothing of it is under way any more
        with worker(dsn, module="coder_jobs"):
            commit = handle.result(HANG_SECONDS)
    assert (tmp_path / "record").read_text() == place
    assert (folder / "b").read_text() == "b+1+2"
    assert not (folder / "scratch").exists()
    found = ws.find(commit)
    assert found is not None
    assert found.kind == "change"
    kinds = [snapshot.kind for snapshot in ws.history()]
    assert kinds.count("change") == 2
    assert kinds.count("left") == (place != "behind the snapshot")


# ---------------------------------------------------------------- pushing


@pytest.fixture
def remote(tmp_path: Path, folder: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--bare", "remote")
    git(folder, "push", "--quiet", str(tmp_path / "remote"), "HEAD:refs/heads/main")
    return tmp_path / "remote"


def shown(remote: Path, name: str) -> str:
    return git(remote, "show", name)


@pytest.mark.full
async def test_a_push_sends_the_files_as_one_commit_and_is_taken_back(
    aflow: AsyncHarness, ws: Workspace, folder: Path, remote: Path
) -> None:
    @workflow
    async def code(ws: Workspace, branch: str, good: bool) -> None:
        async with pgflow.effects.saga():
            await append.aio(ws, "b", f"+{branch}")
            await push.aio(ws, str(remote), branch, "Add a line")
            if not good:
                raise ValueError("red tests")

    aflow.include(code)
    await (await aflow.start(code, ws, "feature", True)).result(SOON)
    assert shown(remote, "feature:b") == "b+feature"
    assert git(remote, "rev-list", "--count", "main..feature").strip() == "1"
    for branch in ("other", "main"):
        before = git(remote, "for-each-ref")
        with pytest.raises(RunFailed, match="red tests"):
            await (await aflow.start(code, ws, branch, False)).result(SOON)
        assert git(remote, "for-each-ref") == before


@pytest.mark.full
async def test_a_branch_that_has_moved_on_refuses_a_push(
    aflow: AsyncHarness, ws: Workspace, folder: Path, remote: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", "--branch", "main", str(remote), "theirs")
    git(tmp_path / "theirs", "commit", "--quiet", "--allow-empty", "--message", "theirs")
    git(tmp_path / "theirs", "push", "--quiet", "origin", "HEAD")

    @workflow
    async def code(ws: Workspace) -> str:
        try:
            await push.aio(ws, str(remote), "main", "mine")
        except PushRefused:
            return "refused"
        return "pushed"

    aflow.include(code)
    assert await (await aflow.start(code, ws)).result(SOON) == "refused"
    assert git(remote, "log", "-1", "--format=%s", "main") == "theirs\n"


@pytest.mark.full
async def test_a_push_is_not_taken_back_over_the_work_of_others(
    aflow: AsyncHarness, ws: Workspace, remote: Path, tmp_path: Path
) -> None:
    @pgflow.step
    async def others_push() -> None:
        git(tmp_path, "clone", "--quiet", "--branch", "feature", str(remote), "theirs")
        git(tmp_path / "theirs", "commit", "--quiet", "--allow-empty", "--message", "theirs")
        git(tmp_path / "theirs", "push", "--quiet", "origin", "HEAD")

    @workflow
    async def code(ws: Workspace) -> None:
        async with pgflow.effects.saga():
            await push.aio(ws, str(remote), "feature", "Add")
            await others_push()
            raise ValueError("red tests")

    aflow.include(code)
    handle = await aflow.start(code, ws)
    await aflow.until_idle()
    assert await handle.status() == "waiting"
    assert git(remote, "log", "-1", "--format=%s", "feature") == "theirs\n"


@pytest.mark.full
async def test_a_push_whose_reply_is_lost_is_found_at_the_remote(
    aflow: AsyncHarness, ws: Workspace, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, replies = Git.run, iter(["lost"])

    def losing(self: Git, *arguments: str, **options: Any) -> Any:
        done = run(self, *arguments, **options)
        if arguments[0] == "push" and next(replies, None):
            raise ConnectionResetError("no reply")
        return done

    monkeypatch.setattr(Git, "run", losing)

    @workflow
    async def code(ws: Workspace) -> str:
        return (await push.aio(ws, str(remote), "feature", "Add")).after

    aflow.include(code)
    after = await (await aflow.start(code, ws)).result(SOON)
    assert git(remote, "rev-parse", "feature").strip() == after


# ---------------------------------------------------------------- declaring


def test_a_change_is_a_def_that_returns_nothing() -> None:
    with pytest.raises(DefinitionError, match="write it with def"):

        @change()
        async def waits(ws: Workspace) -> None: ...  # type: ignore[arg-type]

    with pytest.raises(DefinitionError, match="must return None"):

        @change()
        def tells(ws: Workspace) -> int:  # type: ignore[arg-type]
            return 1
