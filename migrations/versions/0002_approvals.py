"""Jobs wait for a person's yes in the database: before their start and before their release.

Phase 2: the tables start_pending, pending_approval and pending_approval_repo.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

LOSES = {"start_pending": "1 = 1", "pending_approval": "1 = 1", "pending_approval_repo": "1 = 1"}

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    """Create the three tables."""
    op.create_table(
        "start_pending",
        sa.Column("job_id", KEY, nullable=False),
        sa.Column("sender", KEY, nullable=False),
        sa.Column("requested_by", KEY, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_start_pending")),
    )
    op.create_table(
        "pending_approval",
        sa.Column("job_id", KEY, nullable=False),
        sa.Column("requested_by", KEY, nullable=False),
        sa.Column("commit_message", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_pending_approval")),
    )
    op.create_table(
        "pending_approval_repo",
        sa.Column("job_id", KEY, nullable=False),
        sa.Column("repo_dir", KEY, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["pending_approval.job_id"],
            name=op.f("fk_pending_approval_repo_job_id_pending_approval"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "repo_dir", name=op.f("pk_pending_approval_repo")),
    )


def downgrade() -> None:
    """Drop the three tables and what they hold."""
    op.drop_table("pending_approval_repo")
    op.drop_table("pending_approval")
    op.drop_table("start_pending")
