"""Every error that agentstate raises, in one tree; nothing else of ours is imported.

    AgentStateError
    ├── NotFound
    │   ├── StartNotFound             job_id
    │   ├── ApprovalNotFound          job_id
    │   ├── RepoNotFound              job_id, repo_dir
    │   ├── ConversationNotFound      key
    │   └── TurnNotFound              turn_id
    ├── Conflict
    │   ├── AlreadyPending            job_id, kind
    │   ├── AlreadyClaimed            job_id, by, at
    │   ├── StartStillPending         job_id
    │   ├── DuplicateRepo             job_id, repo_dir
    │   ├── AlreadyReleased           job_id, repo_dir, commit_sha
    │   ├── ConstraintViolated        database, detail
    │   ├── BackupExists              database
    │   ├── DowngradeLosesData        revision, losses
    │   ├── CannotAdopt               database, reason
    │   ├── TargetNotEmpty            database, tables
    │   ├── CopyDiffers               database, detail
    │   ├── ConversationExists        key
    │   ├── ConversationEnded         key, status
    │   ├── ConversationHasChildren   key, inheriting, running
    │   ├── ConversationChanged       key, expected, actual
    │   │   └── StaleCompaction
    │   ├── TurnConflict              turn_id, conversation_key
    │   ├── TurnAlreadyCommitted      turn_id
    │   ├── TurnDiscarded             turn_id
    │   └── AmbiguousKey              prefix, candidates
    ├── InvalidValue                  field, reason          refused before SQL
    │   ├── InvalidIdentifier
    │   ├── InvalidRole
    │   ├── InvalidSetting
    │   ├── NothingToApprove
    │   ├── TooLarge
    │   ├── InvalidMessage            path
    │   ├── EmptyTurn
    │   ├── TurnTooLarge              size, limit
    │   ├── ReportRoleRefused         kind, role
    │   ├── OriginMissing             kind
    │   ├── EmptySummary
    │   └── InvalidCursor
    ├── Forbidden                     who, what
    ├── TurnUnreadable                conversation_key, seq, turn_id
    ├── SaveFailed                    failures
    ├── NotASessionStore              path, reason
    ├── StashError                    repo_dir, detail
    │   └── AmbiguousStash            repo_dir, marker, refs
    └── DatabaseError                 database
        ├── DatabaseNotConfigured
        ├── DatabaseMissing
        │   └── BackupMissing
        ├── DatabaseEmpty
        │   └── BackupEmpty
        ├── DatabaseUnavailable       reason
        ├── NotADatabase              reason
        │   └── NotABackup
        ├── DatabaseCorrupt           detail
        │   └── BackupDamaged
        ├── DatabaseBusy              seconds
        ├── DatabaseInUse             by
        ├── ServerDatabase            command
        ├── DatabaseFull
        │   └── NoRoomToRewrite       needed, free
        ├── DatabaseReadOnly
        ├── UnreadableValue           field, detail
        ├── SchemaBehind              found, expected
        ├── SchemaAhead               found, expected
        ├── SchemaUnversioned         expected
        └── ForeignDatabase           tables, hint
            └── ForeignBackup

A class is named after the fact, carries it in attributes, and its message tells a person what to do. The facts
are also the exception's `args`, so that errors survive pickling between processes. `database` is a path or a URL
without its password.
"""

from __future__ import annotations

from agentstate.errors.approvals import (
    AlreadyClaimed,
    AlreadyPending,
    AlreadyReleased,
    AmbiguousStash,
    ApprovalNotFound,
    DuplicateRepo,
    NothingToApprove,
    RepoNotFound,
    StartNotFound,
    StartStillPending,
    StashError,
)
from agentstate.errors.backups import (
    BackupDamaged,
    BackupEmpty,
    BackupExists,
    BackupMissing,
    DatabaseInUse,
    ForeignBackup,
    NotABackup,
    ServerDatabase,
)
from agentstate.errors.base import (
    AgentStateError,
    Conflict,
    Forbidden,
    InvalidIdentifier,
    InvalidRole,
    InvalidSetting,
    InvalidValue,
    NotFound,
    TooLarge,
)
from agentstate.errors.conversations import (
    AmbiguousKey,
    ConversationChanged,
    ConversationEnded,
    ConversationExists,
    ConversationHasChildren,
    ConversationNotFound,
    EmptySummary,
    EmptyTurn,
    InvalidCursor,
    InvalidMessage,
    NotASessionStore,
    OriginMissing,
    ReportRoleRefused,
    SaveFailed,
    StaleCompaction,
    TurnAlreadyCommitted,
    TurnConflict,
    TurnDiscarded,
    TurnNotFound,
    TurnTooLarge,
    TurnUnreadable,
)
from agentstate.errors.database import (
    CannotAdopt,
    ConstraintViolated,
    CopyDiffers,
    DatabaseBusy,
    DatabaseCorrupt,
    DatabaseEmpty,
    DatabaseError,
    DatabaseFull,
    DatabaseMissing,
    DatabaseNotConfigured,
    DatabaseReadOnly,
    DatabaseUnavailable,
    DowngradeLosesData,
    ForeignDatabase,
    NoRoomToRewrite,
    NotADatabase,
    SchemaAhead,
    SchemaBehind,
    SchemaUnversioned,
    TargetNotEmpty,
    UnreadableValue,
)

__all__ = [
    "AgentStateError",
    "AlreadyClaimed",
    "AlreadyPending",
    "AlreadyReleased",
    "AmbiguousKey",
    "AmbiguousStash",
    "ApprovalNotFound",
    "BackupDamaged",
    "BackupEmpty",
    "BackupExists",
    "BackupMissing",
    "CannotAdopt",
    "Conflict",
    "ConstraintViolated",
    "ConversationChanged",
    "ConversationEnded",
    "ConversationExists",
    "ConversationHasChildren",
    "ConversationNotFound",
    "CopyDiffers",
    "DatabaseBusy",
    "DatabaseCorrupt",
    "DatabaseEmpty",
    "DatabaseError",
    "DatabaseFull",
    "DatabaseInUse",
    "DatabaseMissing",
    "DatabaseNotConfigured",
    "DatabaseReadOnly",
    "DatabaseUnavailable",
    "DowngradeLosesData",
    "DuplicateRepo",
    "EmptySummary",
    "EmptyTurn",
    "Forbidden",
    "ForeignBackup",
    "ForeignDatabase",
    "InvalidCursor",
    "InvalidIdentifier",
    "InvalidMessage",
    "InvalidRole",
    "InvalidSetting",
    "InvalidValue",
    "NoRoomToRewrite",
    "NotABackup",
    "NotADatabase",
    "NotASessionStore",
    "NotFound",
    "NothingToApprove",
    "OriginMissing",
    "RepoNotFound",
    "ReportRoleRefused",
    "SaveFailed",
    "SchemaAhead",
    "SchemaBehind",
    "SchemaUnversioned",
    "ServerDatabase",
    "StaleCompaction",
    "StartNotFound",
    "StartStillPending",
    "StashError",
    "TargetNotEmpty",
    "TooLarge",
    "TurnAlreadyCommitted",
    "TurnConflict",
    "TurnDiscarded",
    "TurnNotFound",
    "TurnTooLarge",
    "TurnUnreadable",
    "UnreadableValue",
]

# One public path, in tracebacks and pickles too, whichever file a class is written in.
for _name in __all__:
    globals()[_name].__module__ = __name__
