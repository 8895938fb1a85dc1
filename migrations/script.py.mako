"""What changes for the user: ${message}.

A revision is frozen once it is released: it imports nothing of agentstate's, so that it does the same next year. A new
column may be NULL or has a constant server_default, gets no index on a big table, and is added only if it is not
there yet. `LOSES` says which rows going back would cost: a table and the condition that finds them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}

LOSES: dict[str, str] = {}


def upgrade() -> None:
    """Go forward."""
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    """Go back."""
    ${downgrades if downgrades else "raise NotImplementedError"}
