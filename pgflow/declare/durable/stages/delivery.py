"""Deliveries: files of a workspace, put into the folder that a message names, once.

The files are first put aside under their hashes, so that every attempt delivers the same bytes.
Each file takes its place in one move, and a list of them is written last. So a delivery that is
tried again, by this run or by another, finds the folder and does not deliver twice. A file of
another origin, or one that was edited since, is never overwritten.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

import pgflow
from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.stages.files import Outside, Tree, hash_of, hash_of_file, write_whole

LIST: Final = ".pgflow-delivery.json"
"""File in a folder that says what was delivered there."""


class DeliveryRefused(Exception):
    """Files cannot be delivered there; the message says why."""


pgflow.extensions.register_errors(DeliveryRefused)


class Parcel(BaseModel):
    """Files that are delivered: their hashes by the names that they get.

    Attributes:
        files: The hashes.
    """

    model_config = ConfigDict(extra="forbid")

    files: dict[str, str] = Field(default_factory=dict)


class Delivered(BaseModel):
    """A delivery that was done.

    Attributes:
        folder: Path of the folder in the workspace.
        files: Hashes of the files in it, by name.
    """

    model_config = ConfigDict(extra="forbid")

    folder: str
    files: dict[str, str] = Field(default_factory=dict)


def put_aside(folders: Folders, data: bytes) -> str:
    """Keep a content for a delivery, and answer its hash."""
    digest = hash_of(data)
    path = _kept(folders, digest)
    if not path.exists():
        write_whole(path, data)
    return digest


def deliver(tree: Tree, folders: Folders, location: str, parcel: Parcel) -> Delivered:
    """Put files into a folder.

    Args:
        tree: The folder that the run works in.
        folders: The run's own folders.
        location: The folder to deliver to.
        parcel: The files.

    Raises:
        DeliveryRefused: The target is not a folder, or files of another origin are in the way.
    """
    try:
        folder = tree.target(location)
        places = {name: tree.path(f"{location}/{name}") for name in parcel.files}
    except Outside as error:
        raise DeliveryRefused(str(error)) from None
    known = _listed(folder)
    for name, digest in parcel.files.items():
        there = _hash_at(places[name])
        if there not in (None, digest, known.get(name)):
            raise DeliveryRefused(
                f"{location}/{name} is there, and is not what was delivered: move it away, or "
                "deliver to another folder"
            )
    for name, digest in parcel.files.items():
        if _hash_at(places[name]) != digest:
            write_whole(places[name], _kept(folders, digest).read_bytes())
    if {**known, **parcel.files} != known:
        whole = json.dumps({"files": {**known, **parcel.files}}, indent=2, sort_keys=True)
        write_whole(folder / LIST, f"{whole}\n".encode())
    return Delivered(folder=location, files=parcel.files)


def take_back(tree: Tree, location: str, delivered: Delivered) -> None:
    """Remove the delivered files, except those that were edited since."""
    try:
        folder = tree.target(location)
    except Outside:
        return
    known = _listed(folder)
    for name, digest in delivered.files.items():
        path = folder / name
        if known.pop(name, digest) == digest and _hash_at(path) == digest:
            path.unlink(missing_ok=True)
    if known:
        write_whole(folder / LIST, f"{json.dumps({'files': known}, indent=2)}\n".encode())
    else:
        (folder / LIST).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _kept(folders: Folders, digest: str) -> Path:
    return folders.of_run / "deliveries" / digest


def _hash_at(path: Path) -> str | None:
    """Return the hash of a file; None if nothing is there, and a text that is not a hash for
    anything else.
    """
    if not path.exists() and not path.is_symlink():
        return None
    return hash_of_file(path) if path.is_file() else "no file"


def _listed(folder: Path) -> dict[str, str]:
    """Return the files that were delivered to a folder before."""
    try:
        listed = json.loads((folder / LIST).read_text())
    except (OSError, ValueError):
        return {}
    files = listed.get("files") if isinstance(listed, dict) else None
    return files if isinstance(files, dict) else {}
