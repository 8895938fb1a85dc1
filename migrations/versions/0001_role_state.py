"""Roles remember which session a sender continues and who has been greeted.

Phase 1: the tables sessions and introductions.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LOSES = {"sessions": "1 = 1", "introductions": "1 = 1"}

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "sessions",
        sa.Column("role", KEY, nullable=False),
        sa.Column("sender", KEY, nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("role", "sender", name=op.f("pk_sessions")),
    )
    op.create_table(
        "introductions",
        sa.Column("role", KEY, nullable=False),
        sa.Column("sender", KEY, nullable=False),
        sa.Column("introduced_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("role", "sender", name=op.f("pk_introductions")),
    )


def downgrade() -> None:
    """Drop both tables and what they hold."""
    op.drop_table("introductions")
    op.drop_table("sessions")
