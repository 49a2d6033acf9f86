"""Deliveries of files: one folder, however often they are tried, and nobody's files overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.stages.delivery import (
    LIST,
    DeliveryRefused,
    Parcel,
    deliver,
    put_aside,
    take_back,
)
from pgflow.declare.durable.stages.files import Outside, Tree, write_whole


def packed(root: Path, run: str = "r", **texts: str) -> tuple[Tree, Folders, Parcel]:
    folders = Folders(str(root), run)
    kept = {f"{name}.md": put_aside(folders, text.encode()) for name, text in texts.items()}
    return Tree(str(root)), folders, Parcel(files=kept)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_delivery_that_is_tried_again_finds_its_folder(tmp_path):
    tree, folders, parcel = packed(tmp_path, one="1", two="2")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/two.md").write_text("2")  # as if a try had died after it
    (tmp_path / "out/.one.md.7.part").write_text("half")
    first = deliver(tree, folders, "out", parcel)
    assert deliver(tree, folders, "out", parcel) == first
    assert names(tmp_path / "out") == [LIST, "one.md", "two.md"]
    assert names(tmp_path) == [".pgflow", "out"]


def test_another_run_renews_what_was_delivered_and_not_what_a_person_has_edited(tmp_path):
    deliver(*packed(tmp_path, one="1", two="2")[:2], "out", packed(tmp_path, one="1", two="2")[2])
    tree, folders, parcel = packed(tmp_path, "s", one="1b", two="2")
    deliver(tree, folders, "out", parcel)
    assert (tmp_path / "out/one.md").read_text() == "1b"
    (tmp_path / "out/one.md").write_text("mine")
    with pytest.raises(DeliveryRefused, match=r"out/one\.md is there"):
        deliver(tree, folders, "out", parcel)
    assert (tmp_path / "out/one.md").read_text() == "mine"


def test_what_was_delivered_is_taken_back_but_for_edited_files(tmp_path):
    tree, folders, parcel = packed(tmp_path, one="1", two="2")
    done = deliver(tree, folders, "out", parcel)
    (tmp_path / "out/two.md").write_text("mine")
    take_back(tree, "out", done)
    assert names(tmp_path / "out") == ["two.md"]
    (tmp_path / "out/two.md").unlink()
    take_back(tree, "out", deliver(tree, folders, "out", parcel))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("location", ["/etc", "../x", "a/../../x", "~", "C:/x", "a\0b", "", "link"])
def test_a_path_that_leads_out_is_refused(tmp_path, location):
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    with pytest.raises(Outside):
        Tree(str(inside)).path(location)
    assert Tree(str(inside)).hash(location) is None


def test_a_file_takes_its_place_whole(tmp_path):
    path = tmp_path / "a/b.md"
    write_whole(path, b"1")
    write_whole(path, b"2")
    assert (path.read_bytes(), names(path.parent)) == (b"2", ["b.md"])
