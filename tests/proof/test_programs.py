"""The oracle of random programs itself: what they are made of, and what its judge finds. The gate
plays them under harm.
"""

from __future__ import annotations

import programs
import psycopg

PROGRAMS = range(60)


def test_every_kind_of_part_is_in_these_programs():
    kinds = {
        part.kind
        for seed in PROGRAMS
        for tree in programs.program_of(seed)
        for part in programs.every(tree)
    }
    assert kinds == {*programs.LEAVES, *programs.BRANCHES, "signal"}
    assert any(len(programs.program_of(seed)) == 3 for seed in PROGRAMS)


def test_the_judge_finds_what_is_missing_doubled_and_unasked(conn: psycopg.Connection) -> None:
    conn.execute(programs.SCHEMA)
    seed, path = next(
        (seed, part.path)
        for seed in PROGRAMS
        for part in programs.every(programs.program_of(seed)[0])
        if part.kind == "transaction"
    )
    programs.start(conn, [seed])
    said = programs.judge(conn, [seed])
    assert any(line.startswith(f"p{seed}: (queued,") for line in said)
    assert f"{path}: not in written" in said
    conn.execute("insert into fuzz.written values (%s, 'a'), (%s, 'a'), ('x', 'b')", (path, path))
    said = programs.judge(conn, [seed])
    assert f"{path}: 2 rows, 1 keys in written" in said
    assert "x: nobody asked for it" in said
