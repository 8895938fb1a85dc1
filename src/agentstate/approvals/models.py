"""Approvals: what a waiting request, a waiting release and one of its repositories are."""

from __future__ import annotations

import os
import re
from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from agentstate.db.base import Base
from agentstate.db.types import CheckedText, Identifier, UtcText
from agentstate.errors import InvalidIdentifier
from agentstate.identity import identifier, normalise_sender, valid_job_id

_FULL_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def normalise_repo_dir(value: object, field: str = "repo_dir") -> str:
    """Return the one spelling of a repository's path: absolute, without `.`, `..`, doubled or trailing slashes (AP-09).

    Links are not resolved: the path is compared as the person wrote it. Raises `InvalidIdentifier` for a relative
    path, which would mean another directory in another process.
    """
    text = identifier(os.fspath(value) if isinstance(value, os.PathLike) else value, field)
    if not os.path.isabs(text):
        raise InvalidIdentifier(field, f"{text!r} is not an absolute path")
    # normpath keeps exactly two leading slashes, as POSIX allows; here they are the same directory.
    return "/" + os.path.normpath(text).lstrip("/")


def full_commit(value: object, field: str) -> str:
    """Return the id of a commit unchanged if it is the whole one in lower case, as `git rev-parse` prints it.

    `stash@{0}` means another entry after the next push, and an abbreviation another commit some day (AP-06).
    """
    text = identifier(value, field)
    if not _FULL_COMMIT.fullmatch(text):
        raise InvalidIdentifier(field, f"{text!r} is not a full commit id: 40 (or 64) of 0-9 and a-f, in lower case")
    return text


class StartPending(Base):
    """A request that waits for a person's yes before it is started.

    `claimed_at` and `claimed_by` say that a decision is being carried out, since when and by whom.
    """

    __tablename__ = "start_pending"

    job_id: Mapped[str] = mapped_column(Identifier("job_id", valid_job_id), primary_key=True)
    sender: Mapped[str] = mapped_column(Identifier("sender", normalise_sender))
    requested_by: Mapped[str] = mapped_column(Identifier("requested_by", normalise_sender))
    body: Mapped[str] = mapped_column(CheckedText("body"))
    created_at: Mapped[datetime] = mapped_column(UtcText("created_at"))
    claimed_at: Mapped[datetime | None] = mapped_column(UtcText("claimed_at"))
    claimed_by: Mapped[str | None] = mapped_column(Identifier("claimed_by", optional=True))


class PendingApproval(Base):
    """A finished job that waits for a person's yes before its changes are released.

    The row is there from the save to the end of the release or discard, and never after.
    """

    __tablename__ = "pending_approval"

    job_id: Mapped[str] = mapped_column(Identifier("job_id", valid_job_id), primary_key=True)
    requested_by: Mapped[str] = mapped_column(Identifier("requested_by", normalise_sender))
    commit_message: Mapped[str] = mapped_column(CheckedText("commit_message"))
    created_at: Mapped[datetime] = mapped_column(UtcText("created_at"))
    claimed_at: Mapped[datetime | None] = mapped_column(UtcText("claimed_at"))
    claimed_by: Mapped[str | None] = mapped_column(Identifier("claimed_by", optional=True))


class PendingApprovalRepo(Base):
    """One repository whose change waits for release; it goes with its approval.

    `stash_commit` names the stash by its commit, because `stash@{N}` moves; `done_at` and `commit_sha` say that this
    repository is released, and as which commit.
    """

    __tablename__ = "pending_approval_repo"

    job_id: Mapped[str] = mapped_column(
        Identifier("job_id", valid_job_id), ForeignKey("pending_approval.job_id", ondelete="CASCADE"), primary_key=True
    )
    repo_dir: Mapped[str] = mapped_column(Identifier("repo_dir", normalise_repo_dir), primary_key=True)
    stash_commit: Mapped[str | None] = mapped_column(Identifier("stash_commit", full_commit, optional=True))
    done_at: Mapped[datetime | None] = mapped_column(UtcText("done_at"))
    commit_sha: Mapped[str | None] = mapped_column(Identifier("commit_sha", optional=True))
