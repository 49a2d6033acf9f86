"""``pgflow cluster``: databases that are the nodes of one cluster."""

from __future__ import annotations

from typing import Annotated

from pgflow import inspect
from pgflow.console.output import as_object
from pgflow_cli.look.database import connect
from pgflow_cli.look.declaring import arg, make_group, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.nodes import ask_all
from pgflow_cli.look.options import Answer, Rows

cluster = make_group(
    "cluster", "Databases that are the nodes of one cluster.", no_args_is_help=True
)

Address = Annotated[
    str | None, opt("Connection string by which others reach this node; by default that of --dsn.")
]
_OF_STANDING = ("open_runs", "letters", "oldest_at", "dead")


@cluster.command()
def init(
    db: Answer,
    *,
    node: Annotated[
        int | None, opt("Number of the node: 1, or on Citus that of its group.", min=0)
    ] = None,
    address: Address = None,
) -> None:
    """Makes a database the first node of a cluster, or renews what makes it one."""
    from pgflow.schema.clusters import init_cluster

    with connect(db.dsn) as connection:
        made = init_cluster(connection, node=node, address=address)
    db.answer(as_object(made), f"The database is node {made.node} of a cluster ({made.kind}).")


@cluster.command()
def join(
    number: Annotated[
        int,
        arg("Number of the node: one that no other has, or on Citus its group.", metavar="NODE"),
    ],
    db: Answer,
    *,
    home: Annotated[
        str | None,
        opt("Connection string of the first node, as this server reaches it; not for Citus."),
    ] = None,
    address: Address = None,
) -> None:
    """Makes a database a further node of a cluster, or opens a closed one."""
    from pgflow.schema.clusters import join_cluster

    with connect(db.dsn) as connection:
        made = join_cluster(connection, home, node=number, address=address)
    db.answer(as_object(made), f"The database is node {made.node} of the cluster ({made.kind}).")


@cluster.command("list")
def list_nodes(db: Rows) -> None:
    """Lists the nodes: their open runs, and their letters to others."""
    rows = []
    for asked in ask_all(db, lambda there: there.ask(inspect.read_standing())):
        node, standing = asked.node, asked.answer
        row = {
            "node": node.node,
            "state": node.state,
            "address": f"{node.host}:{node.port}/{node.dbname}",
        }
        row |= {name: getattr(standing, name, None) for name in _OF_STANDING}
        rows.append({**row, "silence": asked.silence})
    columns = (
        "node> state address/40 RUNS=open_runs> letters> OLDEST=oldest_at dead> SILENT=silence*60"
    )
    names = ("node", "state", "address", *_OF_STANDING, "silence")
    db.print(rows, columns, "The cluster has no nodes.", names)


@cluster.command()
def leave(number: Annotated[int, arg("Number of the node.", metavar="NODE")], db: Answer) -> None:
    """Closes a node: it gets no new keys, and its runs go on there."""
    from pgflow.schema.clusters import leave_cluster

    if not leave_cluster(db.connection, number):
        raise Mistake(f"the cluster has no node {number}: see `pgflow cluster list`")
    words = (
        f"Node {number} is closed: it gets no new keys. Stop its workers once "
        "`pgflow cluster list` shows no runs and no letters there."
    )
    db.answer({"node": number, "state": "closed"}, words)
