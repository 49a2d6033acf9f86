"""``pgflow migrate-from``: a first draft of workflows that were written for another engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from pgflow.console.output import many, note
from pgflow_cli.look.declaring import arg
from pgflow_cli.look.failures import Mistake

Peer = Literal["dbos", "temporal"]


def migrate_from(peer: Peer, source: Annotated[Path, arg(metavar="SRC")]) -> None:
    """Drafts pgflow code from code for DBOS or Temporal.

    It reads the code and runs none of it. The draft goes to standard output, notes on what it could
    not translate to standard error, a line each: file, line, code, advice.

    Args:
        peer: The engine that the code was written for.
        source: A file, or a folder of them.
    """
    from libcst import ParserSyntaxError

    from pgflow.peers import translate

    if not source.exists():
        raise Mistake(f"{source} does not exist")
    files = sorted(source.rglob("*.py")) if source.is_dir() else [source]
    drafts = []
    for file in files:
        try:
            draft = translate(peer, file.read_text())
        except (ParserSyntaxError, UnicodeDecodeError) as error:
            raise Mistake(f"{file} is not Python: {error}") from None
        if draft is not None:
            drafts.append((file, draft))
    if not drafts:
        raise Mistake(
            f"{source} has no file that imports {'temporalio' if peer == 'temporal' else peer}"
        )
    for file, draft in drafts:
        head = f"# {file}\n" if len(drafts) > 1 else ""
        sys.stdout.write(f"{head}{draft.code}")
        for left in draft.notes:
            note(f"{file}:{left.line}: {left.what}: {left.advice}")
    done = sum(draft.translated for _, draft in drafts)
    open_ = sum(len(draft.notes) for _, draft in drafts)
    note(f"{many(done, 'use')} translated in {many(len(drafts), 'file')}, {many(open_, 'note')}")
