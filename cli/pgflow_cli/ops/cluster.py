"""``pgflow cluster``: databases that are the nodes of one cluster."""

from __future__ import annotations

from typing import Annotated

from pgflow import inspect
from pgflow_cli.look.database import Dsn, connect, find_dsn
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import make_group
from pgflow_cli.look.nodes import ask_all
from pgflow_cli.look.options import Answer, Db, Rows
from pgflow_cli.look.output import Column, age, print_one, print_rows

cluster = make_group(
    "cluster", "Databases that are the nodes of one cluster.", no_args_is_help=True
)

Address = Annotated[
    str | None,
    opt("Connection string by which others reach this node; by default that of --dsn."),
]
_NAMES = ("node", "state", "address", "open_runs", "letters", "oldest_at", "dead", "silence")


@cluster.command()
def init(
    dsn: Dsn = None,
    *,
    node: Annotated[int, opt("Number of the node; Citus has numbers of its own.", min=0)] = 1,
    address: Address = None,
    form: Answer,
) -> None:
    """Makes a database the first node of a cluster, or renews what makes it one."""
    from pgflow.schema.clusters import init_cluster

    with connect(find_dsn(dsn)) as connection:
        made = init_cluster(connection, node=node, address=address)
    row = {"node": made.node, "kind": made.kind, "is_new": made.is_new}
    print_one(form, row, f"The database is node {made.node} of a cluster ({made.kind}).")


@cluster.command()
def join(
    number: Annotated[int, arg("Number of the node, which no other has.", metavar="NODE")],
    dsn: Dsn = None,
    *,
    home: Annotated[
        str | None,
        opt("Connection string of the first node, as this server reaches it; not for Citus."),
    ] = None,
    address: Address = None,
    form: Answer,
) -> None:
    """Makes a database a further node of a cluster, or opens a closed one."""
    from pgflow.schema.clusters import join_cluster

    with connect(find_dsn(dsn)) as connection:
        made = join_cluster(connection, home, node=number, address=address)
    row = {"node": made.node, "kind": made.kind, "is_new": made.is_new}
    print_one(form, row, f"The database is node {made.node} of the cluster ({made.kind}).")


@cluster.command("list")
def list_nodes(form: Rows, database: Db) -> None:
    """Lists the nodes: their open runs, and their letters to others."""
    rows = []
    for asked in ask_all(database, lambda there: there.ask(inspect.read_standing())):
        node, standing = asked.node, asked.answer
        rows.append(
            {
                "node": node.node,
                "state": node.state,
                "address": f"{node.host}:{node.port}/{node.dbname}",
                "open_runs": getattr(standing, "open_runs", None),
                "letters": getattr(standing, "letters", None),
                "oldest_at": getattr(standing, "oldest_at", None),
                "dead": getattr(standing, "dead", None),
                "silence": asked.silence,
            }
        )
    now = database.now()
    columns = [
        Column("NODE", "node", right=True),
        Column("STATE", "state"),
        Column("ADDRESS", "address", most=40),
        Column("RUNS", "open_runs", right=True),
        Column("LETTERS", "letters", right=True),
        Column("OLDEST", lambda row: age(row["oldest_at"], now) if row["oldest_at"] else ""),
        Column("DEAD", "dead", right=True),
        Column("SILENT", lambda row: row["silence"] or "", takes_rest=True),
    ]
    print_rows(form, columns, rows, names=_NAMES, empty="The cluster has no nodes.")


@cluster.command()
def leave(
    number: Annotated[int, arg("Number of the node.", metavar="NODE")], database: Db, form: Answer
) -> None:
    """Closes a node: it gets no new keys, and its runs go on there."""
    from pgflow.schema.clusters import leave_cluster

    if not leave_cluster(database.connection, number):
        raise Mistake(f"the cluster has no node {number}: see `pgflow cluster list`")
    words = (
        f"Node {number} is closed: it gets no new keys. Stop its workers once "
        "`pgflow cluster list` shows no runs and no letters there."
    )
    print_one(form, {"node": number, "state": "closed"}, words)
