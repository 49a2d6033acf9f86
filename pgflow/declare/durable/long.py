"""Long outputs: the journal has the beginning of what is too long for it, and a file has all of it.

The file is named by its hash, and the journal claims that it exists (`pgflow.effects.Ref`). So a
run that goes on asks for it first: a shell or program whose file is gone or was changed is run
again, and a run that would have to repeat an agent's turn or an act is held instead. References
read the file, up to a bound. Beyond that it is there for people and programs, by its path.
"""

from __future__ import annotations

import codecs
import json
import os
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, JsonValue

import pgflow
from pgflow.declare.durable.stages.files import hash_of
from pgflow.declare.text.javascript import json_text
from pgflow.declare.text.outputs import Beyond
from pgflow.effects import Ref

KIND: Final = "pgflow.output"
"""Kind of the Refs to these files."""

IN_JOURNAL: Final = 32 << 10
"""Bytes of an output that the journal has."""

READABLE: Final = 4 << 20
"""Bytes of an output that a reference gives."""

MOST: Final = 256 << 20
"""Bytes that a program may print."""


class OutputLost(Exception):
    """The file of an output is gone or has changed since the run was asked for it."""


pgflow.extensions.register_errors(OutputLost)


class Long(BaseModel):
    """File with all of an output.

    Attributes:
        file: Claim that it exists; its id is the path, which ends in the hash.
        size: Bytes of it that are the output.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    file: Ref
    size: int

    @property
    def beyond(self) -> Beyond | None:
        """The file that is too long for a reference; None if one gives all of it."""
        return Beyond(self.file.id, self.size) if self.size > READABLE else None


def is_there(ref: Ref) -> bool:
    """Return True if the file of an output exists and is unchanged. For an output that references
    cannot give, only its existence and size are checked.
    """
    path = Path(ref.id)
    try:
        return path.stat().st_size > READABLE or hash_of(path.read_bytes()) == path.name
    except (FileNotFoundError, NotADirectoryError):
        return False


def beginning(data: bytes | bytearray) -> str:
    """Return the part of an output that the journal has: no character of it is cut."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(bytes(data[:IN_JOURNAL]))


def shortened(
    folder: Path, text: str, value: JsonValue, *, has_value: bool, most: int = IN_JOURNAL
) -> tuple[str, JsonValue, Long | None]:
    """Return an output as the journal has it: its text, its value, and the file with all of it if
    it is too long.

    Args:
        folder: Folder for the file.
        text: The text.
        value: The value, if ``has_value``; the text is its JSON then.
        has_value: True if it is a value.
        most: Longest output in bytes that the journal has as it is.
    """
    data = (json.dumps(value) if has_value else text).encode("utf-8", "replace")
    if len(data) <= most:
        return text, value, None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hash_of(data)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    return beginning(data), None, Long(file=Ref(KIND, str(path)), size=len(data))


def restored(text: str, long: Long, *, has_value: bool) -> tuple[str, JsonValue]:
    """Return an output as references give it: text and value. Of one that none gives, the text is
    its beginning with a note that names the file.

    Raises:
        OutputLost: The file is gone or was changed.
    """
    path = Path(long.file.id)
    if long.size > READABLE:
        return f"{text}\n[... {long.size} bytes in all: {path}]", None
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    if hash_of(data) != path.name:
        raise OutputLost(f"an output is gone or was changed: put {path} back")
    said = data[: long.size].decode("utf-8", "replace")
    if not has_value:
        return said, None
    value: JsonValue = json.loads(said)
    return json_text(value), value
