"""``pgflow rotate``: wrapping data keys with the present key of an app."""

from __future__ import annotations

from typing import Annotated

from pgflow.console.output import many, progress
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import FAILED, Ended
from pgflow_cli.look.options import Answer
from pgflow_cli.look.targets import load_app


def rotate(
    target: Annotated[str, arg(metavar="MODULE[:APP]")],
    *,
    pages: Annotated[int, opt(min=1)] = 128,
    db: Answer,
) -> None:
    """Wraps the keys of stored values with an app's present key.

    Values, seals and replays stay as they are, and workers go on. Once it has ended, no stored
    value needs an earlier key. The exit code is 1 if one still does, because the codec does not
    have that key.

    Args:
        target: The app, whose codec has the keys.
        pages: So many pages of a table in one transaction.
    """
    app = load_app(target, db.given)
    done = db.client.rotate_keys(
        app.definitions.envelopes, pages=pages, progress=progress("row", "so far")
    )
    answer = {"rows": done.rows, "unknown": list(done.unknown), "busy": done.busy}
    text = f"{many(done.rows, 'row')} now wrapped with the present key"
    if done.busy:
        text += "; others were locked: run it again"
    if done.unknown:
        text += f"; some need keys that the codec does not have: {', '.join(done.unknown)}"
    db.answer(answer, text)
    if done.unknown or done.busy:
        raise Ended(FAILED)
