"""First drafts of workflows that were written for DBOS or Temporal.

A draft is for a person to go on with. What has a counterpart with the same meaning is replaced.
Every other use of the peer stays as it is, and becomes a note with its line and the next action. A
dialect is a table of names, and a maker for each call whose arguments differ. It runs no code.
"""

from __future__ import annotations

import libcst as cst
from libcst.metadata import MetadataWrapper

from pgflow.peers.base import Draft
from pgflow.peers.dbos import Dbos
from pgflow.peers.temporal import Temporal

DIALECTS = {"dbos": Dbos, "temporal": Temporal}


def translate(peer: str, source: str) -> Draft | None:
    """Translate a module; return None if it does not import the peer.

    Args:
        peer: ``dbos`` or ``temporal``.
        source: The module.

    Raises:
        libcst.ParserSyntaxError: The source is not Python.
    """
    wrapper = MetadataWrapper(cst.parse_module(source))
    translator = DIALECTS[peer]()
    if not translator.imports(wrapper.module):
        return None
    module = wrapper.visit(translator)
    notes = sorted(translator.notes, key=lambda note: note.line)
    return Draft(module.code, notes, translator.translated)
