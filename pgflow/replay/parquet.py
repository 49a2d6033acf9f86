"""Runs as Parquet: a row for each generation of a run, with its journal as a list.

It is made of the lines of an export, so both have the same facts. Inputs, results and payloads stay
the recorded JSON text, which a codec may have encoded. Times are timestamps in UTC.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgflow._model.kinds import KIND_NAMES

GROUP_BYTES = 16 << 20
"""Text of the lines of a row group; the writer holds one group in memory."""

_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = (
    "key", "tenant", "root", "workflow", "queue", "version", "status", "reason", "input", "output",
    "error",
)  # fmt: skip
_NUMBERS = ("run_id", "generation", "priority")
_TIMES = ("created", "run_at", "deadline", "ended", "exported")
_OBJECTS = ("parent", "labels", "metadata")
_UNIT: tuple[tuple[str, Any], ...] = (
    ("seq", pa.int32()), ("call", pa.int32()), ("kind", pa.string()), ("name", pa.string()),
    ("payload", pa.string()), ("starts", pa.string()), ("at", _TIME), ("due_at", _TIME),
    ("recorded_at", _TIME),
)  # fmt: skip
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.int64()) for name in _NUMBERS),
        *((f"{name.removesuffix('_at')}_at", _TIME) for name in _TIMES),
        *((name, pa.string()) for name in _OBJECTS),
        ("units", pa.list_(pa.struct(_UNIT))),
    ]
)


class ParquetRuns:
    """A file of runs: takes the text of an export, and is complete once it is closed."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._line: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, text: str, /) -> None:
        """Take a line, or a part of one."""
        self._line.append(text)
        self._bytes += len(text)
        if text.endswith("\n"):
            self._rows.append(_row(json.loads("".join(self._line))))
            self._line.clear()
            if self._bytes >= GROUP_BYTES:
                self._flush()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, SCHEMA))
        self._rows.clear()
        self._bytes = 0


def _row(history: dict[str, Any]) -> dict[str, Any]:
    row = {name: history[name] for name in (*_TEXTS, *_NUMBERS)}
    row |= {f"{name.removesuffix('_at')}_at": history[f"{name}_us"] for name in _TIMES}
    row |= {name: _text(history[name]) for name in _OBJECTS}
    row["units"] = [_unit(*unit[:9]) for unit in history["units"]]
    return row


def _unit(seq: int, call: int, kind: str, *rest: Any) -> dict[str, Any]:
    name, payload, starts, *times = rest
    word = KIND_NAMES.get(kind, kind).replace(" ", "_")
    values = (seq, call, word, name, payload, _text(starts), *times)
    return dict(zip((field for field, _ in _UNIT), values, strict=True))


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
