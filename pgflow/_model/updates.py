"""Answers to updates of a running workflow."""

from __future__ import annotations

from typing import Final


class UpdateStatus:
    """Codes of answers to updates, as ``pgflow.run_update`` has them."""

    DONE: Final = "done"
    FAILED: Final = "failed"
    """Its handler raised."""
    REJECTED: Final = "rejected"
    """Its validator raised, or the code has no such handler."""
    REFUSED: Final = "refused"
    """The run ended before it was answered."""
