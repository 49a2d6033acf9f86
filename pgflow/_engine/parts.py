"""The parts of one execution, by class, and what the parts for kinds of calls have in common.

A part owns its state and refers to other parts only: never to this table, which would be a cycle
for the garbage collector. Its constructor takes from the table what it calls. A part is made on
first use, because most runs need few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pgflow._model.claims import Claim
from pgflow._model.codecs import Codec

P = TypeVar("P")


class Parts(dict[type[Any], Any]):
    """The parts of one execution, by class. A dict, so that finding a part calls no function."""

    def __init__(
        self,
        claim: Claim,
        result: Codec[Any],
        code_hash: str,
        *,
        is_undoing: bool,
    ) -> None:
        super().__init__()
        self.claim = claim
        self.result = result
        """Type of the workflow's result."""
        self.code_hash = code_hash
        self.is_undoing = is_undoing
        """True if the code takes effects of a dropped part back, instead of the workflow."""
        self.in_flushes: list[Any] = []
        """Parts for kinds of calls that add to flushes and read answers; see
        :class:`pgflow._engine.kind.KindOfCall`.
        """

    if TYPE_CHECKING:

        def __getitem__(self, part: type[P]) -> P: ...

    def __missing__(self, part: type[P]) -> P:
        """Make a part on first use."""
        made = self[part] = part(self)  # type: ignore[call-arg]  # every part takes the table
        return made
