"""Orders."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "orders",
        sa.Column("order_id", sa.Integer, primary_key=True),
        sa.Column("sku", sa.String, nullable=False),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("orders")
