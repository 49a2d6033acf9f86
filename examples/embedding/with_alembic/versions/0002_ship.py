"""Add a state to orders, and ship the existing ones, in the transaction of the migration."""

import sqlalchemy as sa
from alembic import op

from examples.embedding.with_alembic.shop import app, ship

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column, and start a run for each order."""
    op.add_column("orders", sa.Column("state", sa.String, nullable=False, server_default="placed"))
    connection = op.get_bind()
    flows = app.using(connection)
    for order_id in connection.scalars(sa.text("select order_id from orders")):
        flows.start(ship.options(key=f"order-{order_id}"), order_id)
    op.create_check_constraint("sku_is_said", "orders", "sku <> ''")


def downgrade() -> None:
    """Drop the column."""
    op.drop_constraint("sku_is_said", "orders")
    op.drop_column("orders", "state")
