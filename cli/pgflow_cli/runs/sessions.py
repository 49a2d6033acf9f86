"""``pgflow reset-sessions``: forgets the sessions of agents in a conversation.

Nodes with ``persist_session`` keep them (`pgflow.declare.durable.conversations`). To reset all
conversations of a workflow you must confirm.
"""

from __future__ import annotations

from typing import Annotated

from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer
from pgflow_cli.look.output import many


def reset_sessions(
    workflow: Annotated[str, arg(metavar="WORKFLOW")],
    db: Answer,
    conversation: Annotated[str | None, opt(metavar="NAME")] = None,
    node: Annotated[str | None, opt(metavar="NODE")] = None,
    yes: Annotated[bool, opt()] = False,
) -> None:
    """Forgets the sessions that agents keep between runs.

    The next run of the conversation begins anew. What agents keep of a session on their own disk
    stays.

    Args:
        workflow: Name of the workflow.
        conversation: Of this conversation only.
        node: Of this node of the conversation only.
        yes: Without --conversation: of all conversations.
    """
    from pgflow.declare.durable.conversations import SESSIONS
    from pgflow.documents import Documents

    if conversation is None and node is not None:
        raise Mistake("--node requires --conversation NAME")
    if conversation is None and not yes:
        raise Mistake("every conversation would lose its sessions: pass --conversation, or --yes")
    folder = [name for name in (workflow, conversation, node) if name is not None]
    count = Documents(db.connection).delete_folder(SESSIONS, folder)
    db.answer({"forgotten": count}, f"{many(count, 'session')} forgotten")
