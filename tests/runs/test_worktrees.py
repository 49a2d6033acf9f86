"""Worktrees of runs: work apart from the folder, on a branch of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from runkit import play, write

from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.worktrees import make_worktree, remove_worktree

COMMIT = "git -c user.name=a -c user.email=a@b commit -qm"


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-qb", "main")
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "file").write_text("old")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return tmp_path


async def test_a_run_works_in_a_worktree_and_leaves_its_commits_on_a_branch(aflow, repository):
    nodes = f"""
    - id: change
      bash: "echo new > file; {COMMIT} changed -a; echo art > $ARTIFACTS_DIR/a; git branch --show-current"
    """
    path = write(repository, nodes, "worktree: {enabled: true}")
    run = await play(aflow, path, key="one", cwd=str(repository / "part"))
    assert run.output == "pgflow/one", run
    assert (repository / "part" / "file").read_text() == "old"
    assert git(repository, "show", "pgflow/one:part/file") == "new"
    assert (repository / "part/.pgflow/runs/one/artifacts/a").read_text() == "art\n"
    assert not list((repository / "part/.pgflow/worktrees").iterdir())


@pytest.mark.full
async def test_a_worktree_is_kept_if_the_run_fails_or_leaves_something_uncommitted(
    aflow, repository
):
    fails = write(repository, "- {id: a, bash: exit 1}")
    assert (await play(aflow, fails, key="fails", worktree=True)).status == "failed"
    dirty = write(repository, "- {id: a, bash: echo new > made}")
    assert (await play(aflow, dirty, key="dirty", worktree=True)).status == "completed"
    assert await play(aflow, write(repository, "- {id: a, bash: pwd}"), key="clean", worktree=True)
    kept = {place.name for place in (repository / ".pgflow/worktrees").iterdir()}
    assert kept == {"fails", "dirty"}
    assert "pgflow/clean" not in git(repository, "branch")


@pytest.mark.full
async def test_children_with_isolation_work_apart_from_each_other(aflow, repository):
    write(repository, "- {id: a, bash: echo $ARGUMENTS > made; cat made}", name="kid")
    path = write(
        repository,
        """
        - id: kids
          workflow: kid
          isolation: worktree
          fan_out: {items: '["1", "2"]'}
        """,
    )
    run = await play(aflow, path)
    assert run.status == "completed", run
    assert len(list((repository / ".pgflow/worktrees").iterdir())) == 2
    assert not (repository / "made").exists()


def test_a_worktree_whose_making_was_cut_off_is_made_anew(repository):
    folders = Folders(str(repository), "a..b/c.lock")
    place = Path(make_worktree(str(repository), folders))
    (place / "part" / "file").unlink()
    own = Path(git(place, "rev-parse", "--absolute-git-dir"))
    (own / "locked").write_text("initializing")
    assert make_worktree(str(repository), folders) == str(place)
    assert (place / "part" / "file").read_text() == "old"
    assert make_worktree(str(repository), folders) == str(place)
    assert remove_worktree(folders)
    assert remove_worktree(folders)
