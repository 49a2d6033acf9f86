"""The tools that measure the architecture print what they should."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tools import hops, size

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_size_of_a_room_counts_code_and_no_prose(tmp_path):
    python = '"""Docs."""\n\n# Why.\nx = """a\nb"""\n\n\ndef f():\n    """Docs."""\n'
    write(tmp_path / "pgflow/_engine/a.py", python + "    isinstance(call, int)\n")
    write(tmp_path / "pgflow/_surface.py", '__all__ = ["a", "b"]\n')
    write(tmp_path / "cli/pgflow_cli/a.py", "from pgflow._db import calls\n")
    sql = "-- Why.\nselect a->>1, (b)[2];\n\ncomment on table a\n  is 'it''s a; b';\n"
    write(tmp_path / "sql/runs/a.sql", sql)
    assert {room.name: room.code_lines for room in size.rooms(tmp_path)} == {
        "pgflow/_engine": 4,
        "pgflow/_surface.py": 1,
        "cli/pgflow_cli/a.py": 1,
        "sql/runs": 1,
    }
    assert list(size.counts(tmp_path).values()) == [1, 0, 0, 2, 1, 1, 2, 1, 0]


def test_a_long_function_counts_with_and_without_its_docstring(tmp_path):
    docs = '    """Docs.\n' + "    More.\n" * 60 + '    """\n'
    body = "    x = 1\n" * 61
    write(tmp_path / "pgflow/a.py", f"def f():\n{docs}\n\ndef g():\n{body}")
    write(tmp_path / "pgflow/_surface.py", "__all__ = []\n")
    functions, too_long, without_docstrings, *_ = size.counts(tmp_path).values()
    assert (functions, too_long, without_docstrings) == (2, 2, 1)


def test_a_trip_of_a_run_is_walked(dsn, capsys):
    asyncio.run(hops.measure(dsn))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(int(number) > 10 for line in lines[1:] for number in line.split()[:4])
