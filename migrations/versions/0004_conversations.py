"""Conversations and their turns live in the database: forks, reports and compaction included.

The tables conversations and turns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

LOSES = {"conversations": "1 = 1", "turns": "1 = 1"}

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
NUMBER = sa.Integer().with_variant(sa.BigInteger(), "postgresql")


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "conversations",
        sa.Column("key", KEY, nullable=False),
        sa.Column("parent_key", KEY, nullable=True),
        sa.Column("fork_turn_id", sa.Text(), nullable=True),
        sa.Column("status", KEY, server_default=sa.text("'active'"), nullable=False),
        sa.Column("label", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("summary", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.Column("next_seq", NUMBER, server_default=sa.text("1"), nullable=False),
        sa.Column("compacted_seq", NUMBER, server_default=sa.text("0"), nullable=False),
        sa.Column("inherited_seq", NUMBER, nullable=True),
        sa.Column("inherited_summary", sa.Text(), nullable=True),
        sa.Column("imported_at", INSTANT, nullable=True),
        sa.Column("imported_from", sa.Text(), nullable=True),
        sa.CheckConstraint("next_seq >= 1", name=op.f("ck_conversations_next_seq")),
        sa.CheckConstraint("compacted_seq >= 0", name=op.f("ck_conversations_compacted_seq")),
        sa.CheckConstraint("compacted_seq < next_seq", name=op.f("ck_conversations_compacted_below_next")),
        sa.ForeignKeyConstraint(
            ["parent_key"],
            ["conversations.key"],
            name=op.f("fk_conversations_parent_key_conversations"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_conversations")),
    )
    op.create_index(op.f("ix_conversations_parent_key"), "conversations", ["parent_key"])
    op.create_index(op.f("ix_conversations_updated_at"), "conversations", ["updated_at"])
    op.create_table(
        "turns",
        sa.Column("id", KEY, nullable=False),
        sa.Column("conversation_key", KEY, nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.Column("kind", NUMBER, server_default=sa.text("0"), nullable=False),
        sa.Column("message_count", NUMBER, nullable=False),
        sa.Column("origin_key", KEY, nullable=True),
        sa.Column("summary", sa.Text(), nullable=True),
        sa.Column("author", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("meta", sa.Text(), nullable=True),
        sa.Column("messages", sa.Text(), nullable=False),
        sa.CheckConstraint("seq >= 1", name=op.f("ck_turns_seq")),
        sa.ForeignKeyConstraint(
            ["conversation_key"],
            ["conversations.key"],
            name=op.f("fk_turns_conversation_key_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
        sa.UniqueConstraint("conversation_key", "seq", name=op.f("uq_turns_conversation_key_seq")),
    )


def downgrade() -> None:
    """Drop both tables and what they hold."""
    op.drop_table("turns")
    op.drop_table("conversations")
