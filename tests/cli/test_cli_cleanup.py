"""`pgflow cleanup`: what ended runs of files have left goes; what somebody may need stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clikit import Answer, pgflow
from gitkit import git, make_repository

from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.leftovers import Leftovers, keys_of
from pgflow.declare.durable.processes import close_keeper
from pgflow.declare.durable.worktrees import make_worktree

WORK = """\
name: work
description: Does what it is told.
nodes:
  - {id: work, bash: 'echo art > "$ARTIFACTS_DIR/art"; eval "$ARGUMENTS"'}
"""
COMMIT = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m more"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(make_repository(tmp_path / "repository", **{"work.yaml": WORK}))
    yield
    close_keeper()
    os.chdir(before)


def run(dsn: str, key: str, does: str = "true", *more: str) -> Answer:
    return pgflow(dsn, "run", "work.yaml", does, "--key", key, *more)


def cleanup(dsn: str, *more: str) -> Answer:
    return pgflow(dsn, "cleanup", "--older-than", "0", "--json", *more)


def kept(said: Answer) -> dict[str, str]:
    return {one["key"]: one["why"] for one in said.data["kept"]}


def left() -> set[str]:
    return {path.name for path in Path(".pgflow").glob("[rw]*/*")}


@pytest.mark.full
def test_what_ended_runs_have_left_is_counted_asked_about_and_removed(dsn: str) -> None:
    assert run(dsn, "a b.c").code == 0
    assert run(dsn, "fails", "exit 1", "--worktree").code == 1
    assert run(dsn, "open", "true", "--detach").code == 0
    Path(".pgflow/runs/open").mkdir()
    assert kept(pgflow(dsn, "cleanup", "--dry-run", "--json")) == {
        "a b.c": "recent",
        "fails": "recent",
        "open": "open",
    }
    refused = cleanup(dsn)
    assert (
        refused.code,
        "Remove 2 folders, 1 worktree and 1 branch of 2 runs? Cannot ask" in refused.err,
    ) == (2, True)
    denied = pgflow(dsn, "cleanup", "--older-than", "0", "--table", tty=True, typed="n\n")
    assert (denied.code, "of 2 runs? [y/N]" in denied.err) == (1, True), denied
    assert left() == {"a%20b.c", "fails", "open"}
    said = pgflow(dsn, "cleanup", "--older-than", "0", "--table", tty=True, typed="y\n")
    assert said.out.strip() == "2 folders, 1 worktree and 1 branch of 2 runs removed", said
    assert "kept: open has not ended" in said.err
    assert left() == {"open"}
    assert Path(".pgflow/state").is_dir()
    assert "pgflow/fails" not in git(".", "branch")


@pytest.mark.full
def test_what_git_would_lose_is_kept_unless_force_is_used(dsn: str) -> None:
    assert run(dsn, "dirty", "echo new > made", "--worktree").code == 0
    assert run(dsn, "commits", f"{COMMIT}; exit 1", "--worktree").code == 1
    said = cleanup(dsn, "--yes")
    assert said.code == 0, said
    assert kept(said) == {"dirty": "uncommitted", "commits": "commits"}
    assert left() == {"dirty"}
    assert git(".", "branch", "--list", "--format", "%(refname:lstrip=3)", "pgflow/*").split() == [
        "commits",
        "dirty",
    ]
    said = cleanup(dsn, "--yes", "--force")
    assert [said.data[kind] for kind in ("runs", "folders", "worktrees", "branches")] == [
        2,
        1,
        1,
        2,
    ]
    assert not left()
    assert "pgflow/" not in git(".", "branch")


@pytest.mark.full
def test_what_no_run_of_this_folder_has_left_is_kept_unless_it_is_asked_for(
    dsn: str, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run(dsn, "there", "true", "--cwd", str(elsewhere)).code == 0
    for name in ("there", "stray", "not one of ours", "%"):
        Path(".pgflow/runs", name).mkdir(parents=True)
    make_worktree(".", Folders(str(Path.cwd()), "apart"))
    assert kept(cleanup(dsn, "--yes")) == dict.fromkeys(("apart", "stray", "there"), "unknown")
    said = pgflow(dsn, "cleanup", "--orphans", "--yes", "--json")
    assert kept(said) == dict.fromkeys(("apart", "stray", "there"), "recent")
    assert cleanup(dsn, "--yes", "--orphans").data["runs"] == 3
    assert left() == {"not one of ours", "%"}
    assert (elsewhere / ".pgflow/runs/there").is_dir()


@pytest.mark.full
def test_a_symbolic_link_is_neither_followed_nor_removed(dsn: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "linked").mkdir(parents=True)
    assert run(dsn, "linked").code == 0
    place = Path(".pgflow/runs/linked")
    (place / "artifacts" / "out").symlink_to(outside)
    kept_aside = place.rename("aside")
    place.symlink_to(outside / "linked")
    assert cleanup(dsn, "--yes", "--orphans").data["runs"] == 0
    place.unlink()
    place.parent.rmdir()
    place.parent.symlink_to(outside)
    assert cleanup(dsn, "--yes", "--orphans").data["runs"] == 0
    place.parent.unlink()
    place.parent.mkdir()
    kept_aside.rename(place)
    assert cleanup(dsn, "--yes").data["runs"] == 1
    assert (outside / "linked").is_dir()


@pytest.mark.full
def test_children_are_kept_while_their_parent_is_open(dsn: str) -> None:
    Path("parent.yaml").write_text(
        "name: parent\ndescription: Calls.\nnodes:\n  - {id: kid, workflow: work}\n"
        "  - {id: ask, approval: {message: Go on}, depends_on: [kid]}\n"
    )
    assert pgflow(dsn, "run", "parent.yaml", "--key", "parent").code == 4
    (kid,) = left() - {"parent"}
    assert kept(cleanup(dsn, "--yes")) == {kid: "open", "parent": "open"}
    assert pgflow(dsn, "cancel", "parent", "--force", "--yes").code == 0
    assert cleanup(dsn, "--yes").data["folders"] == 2
    assert not left()


@pytest.mark.parametrize("key", ["a", "a b", "..", "a.b", "%", "☺", "a/b%2e", "\U0001f600x", "-"])
def test_the_key_of_a_run_is_read_from_the_names_that_it_makes(key: str) -> None:
    folders = Folders("", key)
    assert key in keys_of(folders.of_run.name)
    assert key in keys_of(folders.worktree.name)


def test_what_is_no_name_of_a_run_has_no_key(tmp_path: Path) -> None:
    assert [keys_of(name) for name in ("", "%", "a b", "%zz", "%2", "%2600" * 40)] == [[]] * 6
    assert Leftovers(tmp_path).names() == []


def test_a_folder_that_is_not_there_is_a_mistake(dsn: str) -> None:
    said = pgflow(dsn, "cleanup", "nowhere")
    assert (said.code, "nowhere is not a directory" in said.err) == (2, True), said
