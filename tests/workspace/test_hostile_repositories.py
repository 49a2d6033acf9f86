"""Repositories that would have a worker run their programs, or write outside of the folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))

from gitkit import git, make_repository, read_files

from pgflow.workspace import Snapshot, Workspace, WorkspaceError, places
from pgflow.workspace.git import Git, find_address
from pgflow.workspace.pushing import find_branch

HOOKS = """
    applypatch-msg commit-msg fsmonitor-watchman post-applypatch post-checkout post-commit
    post-index-change post-merge post-receive post-rewrite post-update pre-applypatch pre-auto-gc
    pre-commit pre-merge-commit pre-push pre-rebase pre-receive prepare-commit-msg
    proc-receive push-to-checkout reference-transaction sendemail-validate update
"""
FILTER = """
[filter "evil"]
    clean = {0}
    smudge = {0}
[core]
    fsmonitor = {0}
"""


class Scene(NamedTuple):
    """A repository, a folder that is none of its business, and the program of an attack."""

    shop: Path
    outside: Path
    program: Path
    ran: Path

    def set(self, **values: str) -> None:
        """Write the repository's configuration."""
        for name, value in values.items():
            git(self.shop, "config", name.replace("__", "."), value)

    def write(self, path: str, text: str) -> None:
        """Write a file of the folder or of its ``.git``."""
        (self.shop / path).parent.mkdir(parents=True, exist_ok=True)
        (self.shop / path).write_text(text)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    shop = make_repository(tmp_path / "shop", a="1\n2\n3\n", b="b\n")
    outside = make_repository(tmp_path / "outside", a="kept\n", other="kept\n")
    git(tmp_path, "init", "--quiet", "--bare", "remote")
    git(shop, "remote", "add", "origin", str(tmp_path / "remote"))
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\nenv >> {ran}\ncat\n")
    program.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    yield Scene(shop, outside, program, ran)
    assert not ran.exists(), ran.read_text()[:300]


def work(scene: Scene) -> None:
    """All that a run does with a folder; what is refused is done no further."""
    shop, ws = scene.shop, Workspace(str(scene.shop), "run")
    before, refs = read_files(scene.outside), git(scene.outside, "for-each-ref")
    with suppress(WorkspaceError):
        first = ws.save()
        assert first is not None
        for text in ("one\n2\n3\n", "one\n2\nthree\n"):
            with ws.change(text):
                (shop / "a").write_text(text)
                (shop / "c").write_text("c")
        changed = ws.history()[0]
        ws.diff(changed)
        ws.drop(changed)
        ws.conflicts_with("HEAD")
        (shop / "b").unlink(missing_ok=True)
        ws.rewind(first)
        assert (shop / "a").read_text() == "1\n2\n3\n"
        ws.compact(keep=1)
    with suppress(WorkspaceError):
        other = Workspace.in_worktree(shop, "two")
        assert Path(other.path, "b").read_text() == "b\n"
        assert other.git.is_clean()
        other.save()
        other.remove()
    with suppress(WorkspaceError):
        for tip in ws.history()[:1]:
            for branch in ("x", "main"):
                sent = f"{tip.commit}:refs/heads/{branch}"
                ws.git.run("push", "--quiet", "--end-of-options", "origin", sent, may=(1,))
    with suppress(WorkspaceError):
        find_branch(ws.git, "origin", "x")
    assert read_files(scene.outside) == before
    assert git(scene.outside, "for-each-ref") == refs


def filters(scene: Scene) -> None:
    scene.write(".gitattributes", "* filter=evil diff=evil merge=evil ident text eol=crlf\n")
    scene.write(".git/info/attributes", "[attr]own filter=evil\n* own diff=evil merge=evil\n")
    program = str(scene.program)
    scene.set(filter__evil__clean=program, filter__evil__smudge=program)
    scene.set(filter__evil__required="true", diff__evil__textconv=program)
    scene.set(diff__evil__command=program, merge__evil__driver=program, diff__external=program)


def processes(scene: Scene) -> None:
    scene.write(".gitattributes", "* filter=evil\n")
    scene.set(filter__evil__process=str(scene.program), filter__evil__required="true")


def encodings(scene: Scene) -> None:
    scene.write(".gitattributes", "* working-tree-encoding=UTF-16 -text\na ident export-subst\n")


def includes(scene: Scene) -> None:
    filters(scene)
    config = scene.shop / ".git" / "config"
    shutil.move(config, scene.shop / "included")
    path = scene.shop / "included"
    config.write_text(f'[include]\n\tpath = {path}\n[includeIf "gitdir:**"]\n\tpath = {path}\n')


def hooks(scene: Scene) -> None:
    for folder in (scene.shop / ".git" / "hooks", scene.shop / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in HOOKS.split():
            shutil.copy(scene.program, folder / name)
    scene.set(core__hooksPath=str(scene.shop / "hooks"))


def programs(scene: Scene) -> None:
    program = str(scene.program)
    scene.set(core__fsmonitor=program, core__sshCommand=program, core__gitProxy=program)
    scene.set(core__editor=program, core__pager=program, core__askPass=program)
    scene.set(credential__helper=program, gpg__program=program, commit__gpgSign="true")
    scene.set(log__showSignature="true", push__gpgSign="true", core__alternateRefsCommand=program)
    scene.set(uploadpack__packObjectsHook=program, interactive__diffFilter=program)
    for command in ("add", "log", "diff", "push", "commit-tree", "read-tree", "worktree"):
        scene.set(**{f"alias__{command}": f"!{program}", f"pager__{command}": program})


def remotes(scene: Scene) -> None:
    program = str(scene.program)
    scene.set(remote__origin__receivepack=program, remote__origin__uploadpack=program)


def helpers(scene: Scene) -> None:
    scene.set(remote__origin__url=f"ext::{scene.program}", protocol__ext__allow="always")


def rewritten(scene: Scene) -> None:
    scene.set(**{f"url__ext::{scene.program} __insteadOf": str(scene.shop.parent)})
    scene.set(protocol__ext__allow="always", remote__origin__vcs="ext")


def hostile_remote(scene: Scene) -> None:
    there = scene.shop.parent / "there"
    git(scene.shop.parent, "clone", "--quiet", str(scene.shop), str(there))
    git(there, "config", "receive.denyCurrentBranch", "updateInstead")
    for name in HOOKS.split():
        shutil.copy(scene.program, there / ".git" / "hooks" / name)
    (there / ".gitattributes").write_text("* filter=evil\n")
    with (there / ".git" / "config").open("a") as config:
        config.write(FILTER.format(scene.program))
    scene.set(remote__origin__url=str(there))


def promised(scene: Scene) -> None:
    scene.set(extensions__partialClone="origin", remote__origin__promisor="true")
    scene.set(core__repositoryformatversion="1", remote__origin__uploadpack=str(scene.program))
    blob = git(scene.shop, "rev-parse", "HEAD:b").strip()
    (scene.shop / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


def worktrees(scene: Scene) -> None:
    scene.set(core__worktree=str(scene.outside))


def worktrees_of_their_own(scene: Scene) -> None:
    scene.set(extensions__worktreeConfig="true", core__repositoryformatversion="1")
    scene.write(".git/config.worktree", f"[core]\n\tworktree = {scene.outside}\n")


def inner_repositories(scene: Scene) -> None:
    inner = make_repository(scene.shop / "inner", a="a")
    scene.write(".gitmodules", '[submodule "inner"]\n\tpath = inner\n\turl = x\n\tignore = none\n')
    (inner / ".gitattributes").write_text("* filter=evil\n")
    with (inner / ".git" / "config").open("a") as config:
        config.write(FILTER.format(scene.program))
    (inner / "a").write_text("b")
    ws = Workspace(str(scene.shop), "earlier")
    for text in ("1", "2", "3"):
        (inner / "a").write_text(text)
        ws.save()


def replaced_objects(scene: Scene) -> None:
    git(scene.shop, "replace", *git(scene.shop, "rev-parse", "HEAD:a", "HEAD:b").split())


def links_to_files(scene: Scene) -> None:
    (scene.shop / "folder").symlink_to(scene.outside)
    (scene.shop / "b").unlink()
    (scene.shop / "b").symlink_to(scene.outside / "a")
    ws = Workspace(str(scene.shop), "run")
    ws.save()
    (scene.shop / "folder").unlink()
    (scene.shop / "folder").mkdir()
    (scene.shop / "folder" / "a").write_text("ours")
    saved = ws.save()
    shutil.rmtree(scene.shop / "folder")
    (scene.shop / "folder").symlink_to(scene.outside)
    assert saved is not None
    ws.rewind(saved)
    assert not (scene.shop / "folder").is_symlink()
    (scene.shop / "b").unlink()
    (scene.shop / "b").write_text("b\n")


def git_is_a_link(scene: Scene) -> None:
    shutil.move(scene.shop / ".git", scene.shop / "moved")
    (scene.shop / ".git").symlink_to(scene.outside / ".git")


def git_is_a_file(scene: Scene) -> None:
    shutil.move(scene.shop / ".git", scene.shop / "moved")
    scene.write(".git", f"gitdir: {scene.outside / '.git'}\n")


def git_is_a_worktree_of_another(scene: Scene) -> None:
    git(scene.outside, "worktree", "add", "--quiet", "../tree")
    shutil.move(scene.shop / ".git", scene.shop / "moved")
    scene.write(".git", f"gitdir: {scene.outside / '.git' / 'worktrees' / 'tree'}\n")


def common_folder_of_another(scene: Scene) -> None:
    scene.write(".git/commondir", f"{scene.outside / '.git'}\n")


def linked(path: str) -> Callable[[Scene], None]:
    """An attack by a link in the place of a part of ``.git``."""

    def attack(scene: Scene) -> None:
        own = scene.shop / ".git" / path
        aside = scene.outside / "aside"
        if own.is_dir():
            shutil.move(own, aside)
        else:
            own.parent.mkdir(parents=True, exist_ok=True)
            own.unlink(missing_ok=True)
            aside.mkdir() if "run" not in path else aside.write_text("kept")
        own.symlink_to(aside)

    return attack


ATTACKS: dict[str, Callable[[Scene], None]] = {
    one.__name__: one
    for one in (
        filters, processes, encodings, includes, hooks, programs, remotes, helpers, rewritten,
        hostile_remote, promised, worktrees, worktrees_of_their_own, inner_repositories,
        replaced_objects, links_to_files, git_is_a_link, git_is_a_file,
        git_is_a_worktree_of_another, common_folder_of_another,
    )
} | {
    f"linked {path}": linked(path)
    for path in (
        "objects", "objects/pack", "refs", "refs/agent", "logs", "logs/refs/agent",
        "logs/refs/agent/run", "refs/agent/run", "worktrees", "pgflow", "packed-refs",
    )
}  # fmt: skip


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(name, marks=() if n < 4 or name == "worktrees" else pytest.mark.full)
        for n, name in enumerate(ATTACKS)
    ],
)
def test_a_hostile_repository_runs_nothing_and_reaches_nothing(attack: str, scene: Scene) -> None:
    ATTACKS[attack](scene)
    work(scene)


@pytest.mark.parametrize("attack", ["git_is_a_link", "git_is_a_file", "common_folder_of_another"])
def test_a_repository_that_does_not_know_the_folder_is_refused(attack: str, scene: Scene) -> None:
    ATTACKS[attack](scene)
    with pytest.raises(WorkspaceError):
        Workspace(str(scene.shop), "run").save()


@pytest.mark.parametrize("name", ["..", ".git", ".GIT", "git~1", "."])
def test_a_forged_snapshot_cannot_name_files_outside(scene: Scene, name: str) -> None:
    ws = Workspace(str(scene.shop), "run")
    ws.save()
    inner = git(scene.shop, "rev-parse", "HEAD^{tree}").strip()
    raw = f"40000 {name}\0".encode() + bytes.fromhex(inner)
    (scene.shop.parent / "raw").write_bytes(raw)
    write = ("hash-object", "-t", "tree", "-w", "--literally", "../raw")
    tree = git(scene.shop, *write).strip()
    begun = Snapshot("", "begin", of="rewind", tree=tree, number=9).message()
    forged = git(scene.shop, "commit-tree", inner, "-p", "refs/agent/run", "-m", begun).strip()
    git(scene.shop, "update-ref", "refs/agent/run", forged)
    before = (read_files(scene.shop.parent), (scene.shop / ".git" / "config").read_text())
    with pytest.raises(WorkspaceError):
        ws.save()
    assert (read_files(scene.shop.parent), (scene.shop / ".git" / "config").read_text()) == before


def forge(scene: Scene, record: str) -> None:
    """Write a commit that looks like a snapshot of the run as its newest one."""
    Workspace(str(scene.shop), "run").save()
    words = ("-p", "refs/agent/run", "-m", f"* * *\n\n\nPgflow: {record}\n")
    forged = git(scene.shop, "commit-tree", "refs/agent/run^{tree}", *words).strip()
    git(scene.shop, "update-ref", "refs/agent/run", forged)


TREE = "a" * 40


@pytest.mark.parametrize(
    "record",
    [
        '{"kind": "edits", "number": "-output=../outside/a"}',
        '{"kind": "edits", "number": "-output=../outside/planted"}',
        '{"kind": "edits", "number": -5}',
        '{"kind": "edits", "number": 9' + "9" * 40 + "}",
        '{"kind": "edits", "number": 1' + "0" * 5000 + "}",
        '{"kind": "edits", "number": null}',
        '{"kind": "edits", "fence": "x", "number": 2}',
        '{"kind": "begin", "of": "rewind", "number": 2}',
        f'{{"kind": "begin", "number": 2, "tree": "{TREE}"}}',
        '{"kind": "begin", "of": "rewind", "number": 2, "tree": "--index-output=../outside/a"}',
        f'{{"kind": "left", "of": "merge", "number": 2, "tree": "{TREE}"}}',
        '{"kind": "edits", "number": 2, "keys": 5}',
        '{"kind": {}, "number": 2}',
        '{"number": 2}',
        "[1]",
        "[" * 100_000,
    ],
)
def test_a_forged_record_is_refused_in_one_line(scene: Scene, record: str) -> None:
    forge(scene, record)
    before = read_files(scene.outside)
    ws = Workspace(str(scene.shop), "run")
    for ask in (ws.save, ws.history, lambda: ws.rewind(TREE), ws.base, ws.compact):
        with pytest.raises(WorkspaceError, match="is not a snapshot of a run"):
            ask()
    assert read_files(scene.outside) == before


PIPES = [
    ".gitignore", ".git/config", ".git/packed-refs", ".git/HEAD", ".gitattributes", "a/.gitignore",
    ".git/refs/agent/run", ".git/objects/info/alternates", ".git/index", ".git/commondir",
]  # fmt: skip


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=() if n < 3 else pytest.mark.full) for n, p in enumerate(PIPES)]
)
def test_a_pipe_in_the_place_of_a_file_makes_nobody_wait_for_ever(
    scene: Scene, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = scene.shop / path
    ws = Workspace(str(scene.shop), "run")
    ws.save()
    for one in (pipe.parent, pipe):
        if one.is_file():
            one.unlink()
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    monkeypatch.setattr(places, "MOST_SECONDS", 0.5)
    with pytest.raises(WorkspaceError, match="pipe|borrows"):
        ws.save()
        ws.git.is_clean()


@pytest.mark.parametrize("path", [".git/HEAD", ".git/objects/info/alternates"])
def test_a_device_in_the_place_of_a_file_is_not_read(scene: Scene, path: str) -> None:
    """Git reads /dev/zero until no memory is left."""
    link = scene.shop / path
    link.unlink(missing_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(os.devnull)
    with pytest.raises(WorkspaceError, match="is not a plain file"):
        Workspace(str(scene.shop), "run").save()


def test_a_repository_of_sha_256_is_saved_and_rewound(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    git(tmp_path, "init", "--quiet", "--object-format=sha256", str(shop))
    (shop / "a").write_text("1")
    git(shop, "add", "--all")
    git(shop, "commit", "--quiet", "--message", "begin")
    ws = Workspace(str(shop), "run")
    saved = ws.save()
    (shop / "a").write_text("2")
    ws.save()
    assert saved is not None
    ws.rewind(saved)
    assert read_files(shop) == {"a": (b"1", False)}


def test_a_lock_that_a_killed_git_has_left_is_named(scene: Scene) -> None:
    lock = scene.shop / ".git" / "refs" / "agent" / "run.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    with pytest.raises(WorkspaceError, match=r"agent/run\.lock': File exists. Remove it if no git"):
        Workspace(str(scene.shop), "run").save()


def test_attributes_change_no_byte_of_a_snapshot(scene: Scene) -> None:
    filters(scene)
    ws = Workspace(str(scene.shop), "run")
    (scene.shop / "a").write_bytes(b"1\r\n$Id$\n\xff")
    saved = ws.save()
    assert saved is not None
    (scene.shop / "a").write_bytes(b"2")
    ws.rewind(saved)
    assert (scene.shop / "a").read_bytes() == b"1\r\n$Id$\n\xff"


def test_git_sees_few_variables_of_the_worker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "DATABASE_URL",
        "AWS_SECRET_ACCESS_KEY",
        "GIT_EXTERNAL_DIFF",
        "GIT_SSH_VARIANT",
        "PAGER",
    ):
        monkeypatch.setenv(name, str(scene.program))
    monkeypatch.setenv("SSH_AUTH_SOCK", "sock")
    there = Git(str(scene.shop))
    for command in ("add", "rev-parse", "push"):
        seen = there._environment(command, None)
        assert not {"DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "PAGER"} & seen.keys()
        assert str(scene.program) not in seen.values()
        assert ("SSH_AUTH_SOCK" in seen) == (command == "push")
    work(scene)


def test_an_address_of_the_repository_that_is_a_program_is_refused(scene: Scene) -> None:
    helpers(scene)
    with pytest.raises(WorkspaceError, match="remote origin of .* runs a program: ext::"):
        find_address(Git(str(scene.shop)).place, "origin")


def test_a_lost_folder_of_ours_costs_time_alone(scene: Scene, tmp_path: Path) -> None:
    ws = Workspace(str(scene.shop), "run")
    first = ws.save()
    (scene.shop / "new").write_text("new")
    ws.save()
    shutil.rmtree(tmp_path / "cache")
    assert first is not None
    ws.rewind(first)
    assert not (scene.shop / "new").exists()


def test_folders_of_ours_go_with_their_repositories(scene: Scene, tmp_path: Path) -> None:
    Workspace(str(scene.shop), "run").save()
    shutil.rmtree(scene.shop)
    Workspace(str(make_repository(tmp_path / "new", a="a")), "run").save()
    kept = [one.read_text() for one in (tmp_path / "cache").rglob("repository")]
    assert kept == [str(tmp_path / "new" / ".git")]
