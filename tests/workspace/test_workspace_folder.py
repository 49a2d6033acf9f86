"""Workspaces: snapshots of a folder beside the user's own git."""

from __future__ import annotations

from pathlib import Path

import pytest
from gitkit import git, make_repository, of_the_user, read_files

from pgflow.workspace import Conflict, Fenced, Moved, Workspace, WorkspaceError
from pgflow.workspace.git import Git


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "shop", a="one\ntwo\nthree\nfour\nfive\n", b="b")


@pytest.fixture
def ws(folder: Path) -> Workspace:
    return Workspace(str(folder), "run-1")


def kinds(ws: Workspace) -> list[str]:
    return [one.kind for one in reversed(ws.history())]


def append(ws: Workspace, key: str, name: str, text: str, decision: str | None = None) -> str:
    with ws.change(key, decision=decision) as change:
        if change.done is None:
            path = Path(ws.path) / name
            path.write_text((path.read_text() if path.exists() else "") + text)
    assert change.done is not None
    return change.done.commit


def test_a_snapshot_has_the_files_and_leaves_what_is_the_users(ws: Workspace, folder: Path) -> None:
    (folder / "a").write_text("staged")
    git(folder, "add", "a")
    (folder / "a").write_text("and changed again")
    (folder / "new").write_text("untracked")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    before, files = of_the_user(folder), read_files(folder)
    first = ws.save("as found")
    for path in folder.iterdir():
        if path.name != ".git":
            path.unlink()
    (folder / "other").mkdir()
    (folder / "other" / "x").write_text("x")
    assert first is not None
    ws.rewind(first)
    assert read_files(folder) == files
    assert of_the_user(folder) == before
    assert kinds(ws) == ["edits", "edits", "begin", "rewind"]
    assert "refs/agent" not in git(folder, "branch", "--all")
    assert "as found" not in git(folder, "log", "--format=%s", "HEAD")


def test_nothing_changed_is_no_snapshot(ws: Workspace) -> None:
    first = ws.save()
    assert first is not None
    again = ws.save()
    assert again is not None
    assert again.commit == first.commit


def test_a_change_is_made_once_a_key(ws: Workspace, folder: Path) -> None:
    done = append(ws, "k1", "b", "+1")
    assert append(ws, "k1", "b", "+1") == done
    assert (folder / "b").read_text() == "b+1"
    assert append(ws, "k2", "b", "+2") != done
    assert (folder / "b").read_text() == "b+1+2"


def test_what_a_failed_change_has_left_is_put_aside(ws: Workspace, folder: Path) -> None:
    (folder / "b").write_text("by hand")
    with pytest.raises(ValueError, match="half"), ws.change("k1"):
        (folder / "b").write_text("by the act")
        (folder / "c").write_text("half of it")
        raise ValueError("half of it is there")
    assert (folder / "b").read_text() == "by hand"
    assert not (folder / "c").exists()
    assert kinds(ws) == ["edits", "begin", "left", "back"]
    left = ws.history()[1]
    ws.rewind(left)
    assert (folder / "c").read_text() == "half of it"


@pytest.mark.full
def test_edits_of_people_are_snapshots_of_their_own(ws: Workspace, folder: Path) -> None:
    append(ws, "k1", "b", "+1")
    (folder / "a").write_text("by a person")
    append(ws, "k2", "b", "+2")
    assert kinds(ws) == ["edits", "begin", "change", "edits", "begin", "change"]
    assert "by a person" not in ws.diff(ws.history()[0])
    assert "by a person" in ws.diff(ws.history()[2])


def test_one_change_is_dropped_and_the_later_ones_stay(ws: Workspace, folder: Path) -> None:
    first = append(ws, "k1", "c", "c")
    append(ws, "k2", "b", "+2")
    ws.drop(first)
    assert not (folder / "c").exists()
    assert (folder / "b").read_text() == "b+2"


def test_a_change_that_others_rest_on_is_not_dropped(ws: Workspace, folder: Path) -> None:
    first = append(ws, "k1", "b", "+1")
    append(ws, "k2", "b", "+2")
    before, line = read_files(folder), kinds(ws)
    with pytest.raises(Conflict) as raised:
        ws.drop(first)
    assert raised.value.paths == ["b"]
    assert read_files(folder) == before
    assert kinds(ws) == line


def test_ignored_files_stay_unless_they_are_named(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    (folder / "build").mkdir()
    ws = Workspace(str(folder), "r", include=("build",), live=("shop.db",))
    for name in ("x.log", "build/out", "shop.db"):
        (folder / name).write_text("then")
    first = ws.save()
    assert first is not None
    for name in ("x.log", "build/out", "shop.db"):
        (folder / name).write_text("now")
    ws.rewind(first)
    found = {name: text.decode() for name, (text, _) in read_files(folder).items()}
    assert (found["x.log"], found["build/out"], found["shop.db"]) == ("now", "then", "now")


def test_commits_and_branches_of_the_user_go_on_beside(ws: Workspace, folder: Path) -> None:
    first = ws.save()
    assert first is not None
    git(folder, "switch", "--quiet", "--create", "feature")
    (folder / "a").write_text("feature")
    git(folder, "commit", "--quiet", "--all", "--message", "feature")
    second = ws.save()
    assert second is not None
    git(folder, "switch", "--quiet", "main")
    before = of_the_user(folder)
    ws.rewind(second)
    assert (folder / "a").read_text() == "feature"
    ws.rewind(first)
    assert (folder / "a").read_text().startswith("one")
    assert of_the_user(folder) == before


def test_hooks_of_the_user_do_not_run(ws: Workspace, folder: Path) -> None:
    for name in ("post-index-change", "reference-transaction", "post-checkout", "pre-push"):
        hook = folder / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\ntouch ran\nexit 1\n")
        hook.chmod(0o755)
    append(ws, "k1", "b", "+1")
    Workspace.in_worktree(folder, "r2").save()
    assert not (folder / "ran").exists()


@pytest.mark.full
def test_each_run_has_a_working_tree_of_its_own(folder: Path) -> None:
    one, two = (Workspace.in_worktree(folder, run) for run in ("order/1 ä", "order/2"))
    assert Workspace.in_worktree(folder, "order/1 ä") == one
    done = append(one, "k", "c", "one")
    append(two, "k", "b", "+two")
    assert not (folder / "c").exists()
    assert not (Path(two.path) / "c").exists()
    two.pick(done)
    assert (Path(two.path) / "c").read_text() == "one"
    assert two.conflicts_with(one.reference) == []
    append(one, "k2", "b", "+one")
    assert two.conflicts_with(one.reference) == ["b"]
    with pytest.raises(Conflict):
        two.pick(one.history()[0])
    one.remove()
    assert not Path(one.path).exists()
    assert git(folder, "for-each-ref", "refs/agent").count("\n") == 2
    with pytest.raises(WorkspaceError, match="remove it yourself"):
        Workspace(str(folder), "r").remove()


def test_a_working_tree_that_was_half_made_is_made_anew(folder: Path) -> None:
    ws = Workspace.in_worktree(folder, "r")
    own = Path(Git(ws.path).ask("rev-parse", "--absolute-git-dir"))
    (own / "locked").write_text("initializing")
    (Path(ws.path) / "a").unlink()
    assert (Path(Workspace.in_worktree(folder, "r").path) / "a").exists()


def test_who_has_lost_the_lease_makes_no_snapshot(ws: Workspace, folder: Path) -> None:
    old, new = ws.fenced(1), ws.fenced(2)
    append(old, "k1", "b", "+1")
    append(new, "k2", "b", "+2")
    with pytest.raises(Fenced):
        append(old, "k3", "b", "+3")
    assert (folder / "b").read_text() == "b+1+2"


def test_a_frozen_act_that_goes_on_does_not_count(ws: Workspace, folder: Path) -> None:
    with pytest.raises(Moved), ws.change("k1"):
        append(ws, "k2", "b", "+2")
        (folder / "b").write_text("late")
    assert ws.find_change("k1") is None
    assert ws.find_change("k2") is not None


@pytest.mark.full
def test_old_snapshots_are_joined_at_decisions(ws: Workspace, folder: Path) -> None:
    ids = [append(ws, f"k{n}", "b", f"+{n}", decision=f"d{n // 3}") for n in range(9)]
    files = read_files(folder)
    before = len(ws.history())
    assert ws.compact(keep=4) > 0
    line = ws.history()
    assert len(line) < before
    assert read_files(folder) == files
    assert [one.number for one in reversed(line)] == list(range(1, len(line) + 1))
    for n, commit in enumerate(ids):
        found, by_key = ws.find(commit), ws.find_change(f"k{n}")
        assert found is not None
        assert found == by_key
    assert append(ws, "k3", "b", "+again") != ids[3]
    assert read_files(folder) == files
    ws.rewind(ids[2])
    assert (folder / "b").read_text() == "b+0+1+2"
    assert ws.compact(keep=100) == 0


@pytest.mark.parametrize("run", ["a/b", "..", "x.lock", "~^:?*[", "é", "@{", "-", " "])
def test_any_key_names_a_run(folder: Path, run: str) -> None:
    ws = Workspace(str(folder), run)
    assert ws.save() is not None
    assert Workspace.in_worktree(folder, run).save() is not None
    assert git(folder, "fsck", "--no-dangling") == ""


def test_a_folder_without_a_commit_or_a_file_is_one_too(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "empty")
    ws = Workspace(str(tmp_path / "empty"), "r")
    assert ws.save() is None
    append(ws, "k", "a", "1")
    ws.rewind(ws.history()[-1])
    assert read_files(ws.path) == {}


def test_what_is_no_repository_is_refused_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(WorkspaceError) as raised:
            Workspace(str(path), "r").save()
        assert "\n" not in str(raised.value)


def test_the_variables_of_a_hook_do_not_lead_elsewhere(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other", z="z")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    saved = ws.save()
    monkeypatch.undo()
    assert saved is not None
    assert git(other, "for-each-ref", "refs/agent") == ""


@pytest.mark.full
def test_links_are_kept_as_links(ws: Workspace, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("outside")
    (folder / "link").symlink_to(outside)
    first = ws.save()
    assert first is not None
    (folder / "link").unlink()
    (folder / "link").write_text("a file")
    ws.rewind(first)
    assert (folder / "link").readlink() == outside
    assert outside.read_text() == "outside"
