"""A decision says who is carrying it out, and a release says which repositories are finished.

Additive: every column may be NULL, and one that is there already (`add_missing_columns`) is left alone. A database
without these columns stays readable.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

LOSES = {
    "start_pending": "claimed_at IS NOT NULL OR claimed_by IS NOT NULL",
    "pending_approval": "claimed_at IS NOT NULL OR claimed_by IS NOT NULL",
    "pending_approval_repo": "stash_commit IS NOT NULL OR done_at IS NOT NULL OR commit_sha IS NOT NULL",
}

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.Text().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")

COLUMNS = {
    "start_pending": {"claimed_at": INSTANT, "claimed_by": KEY},
    "pending_approval": {"claimed_at": INSTANT, "claimed_by": KEY},
    "pending_approval_repo": {"stash_commit": KEY, "done_at": INSTANT, "commit_sha": KEY},
}


def upgrade() -> None:
    """Add the columns that are missing."""
    for table, columns in COLUMNS.items():
        # Offline there is nobody to ask; the printed script is for a database at 0002 and nothing more.
        present = (
            set() if op.get_context().as_sql else {c["name"] for c in sa.inspect(op.get_bind()).get_columns(table)}
        )
        for name, kind in columns.items():
            if name not in present:
                op.add_column(table, sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Drop the columns and what they hold."""
    for table, columns in reversed(COLUMNS.items()):
        for name in reversed(columns):
            op.drop_column(table, name)
