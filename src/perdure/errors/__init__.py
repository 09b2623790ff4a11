"""Every error a user can meet, as one tree. Each has a stable `code` and says what is wrong, why, and what to do.

PerdureError
├── GraphError                what was written is not a workflow
│   ├── InvalidDeclaration    @node or @workflow got something that it cannot use
│   ├── InvalidCall           a node was called with arguments that it does not take
│   ├── MisusedRef            a value that exists only in a run was used while the workflow is traced
│   ├── WorkflowRaised        the function of a workflow raised an error of its own
│   ├── UnreadableGraph       a document is not a graph
│   ├── NotExpressible        the short form has no words for it
│   └── InvalidGraph          a graph with faults
├── ValueNotStorable          a value has no codec
├── ValueNotReadable          a stored value needs a type or codec that is not here, or is damaged
│   └── ArgumentNotReadable   it is for a body, which has therefore not begun
├── RunError                  about one run
│   ├── RunNotFound
│   ├── RunIdAmbiguous        the beginning of an id is that of several runs
│   ├── RunIdTaken
│   ├── RunNotEnded           it was asked for something that only a run can do that has ended
│   ├── ValuesDeleted         its values were deleted
│   ├── RunArchived           it is in the archive, and has to be restored first
│   ├── ImportConflict        another run has the id of the one that was to be imported
│   ├── CommandIdTaken        the run was told something else under this id
│   ├── WrongInputs
│   ├── InputClosed           an input takes no more items
│   ├── RunFailed
│   ├── RunCancelled
│   ├── RunResting            it waits for something from outside
│   ├── RunEnded              it was asked for something that only a run can do that has not ended
│   ├── CheckpointExists      it has a checkpoint of this name
│   ├── CheckpointPending     nobody has saved the checkpoint yet that was asked for
│   ├── LogNotWhole           what was asked for needs its log, which is written on the side
│   ├── CannotContinue        it cannot go on on a version of its workflow
│   ├── NotInDoubt            nobody has to say what became of the node
│   ├── TypesMissing          this process lacks the node types it needs
│   ├── TypesChanged          the node types are no longer those it was started with
│   ├── RunNotReadable        this process cannot read values that it holds
│   └── RunDamaged            its rows and its log disagree, and the doctor cannot repair it by itself
├── VersionError              about versions of a workflow, and aliases for them
│   ├── VersionNotFound
│   ├── VersionInUse          something refers to the version, so that it is kept
│   ├── AliasNotFound
│   ├── AliasMoved            somebody else has moved the alias meanwhile
│   └── NothingToRollBack     the alias has not pointed anywhere else
├── ArchiveMissing            a file of the archive is not where it should be
├── BundleError               a file that should hold a run
│   ├── BundleDamaged         it is none, or not whole, or was altered
│   ├── BundleTooNew          it was written by a later perdure
│   └── BundleTooLarge        it unpacks to more than is allowed
├── ProgramError              a file or module that was named holds nothing that can run
├── StoreError                the database cannot be used
│   ├── StoreUnavailable
│   ├── StoreLocked
│   ├── StoreReadOnly
│   ├── StoreFull
│   ├── StoreTooNew
│   ├── StoreDamaged
│   ├── BlobMissing
│   └── BlobDamaged
├── BodyError                 about a node's body while it executes
│   ├── AttemptOver           the attempt has ended, but its body goes on
│   ├── BodyCrashed           the process in which it ran has died
│   ├── BodyNotFound          another process cannot import it
│   ├── BodyRaised            it raised in another process, or something that is no Exception
│   ├── CheckpointNotHere     it is called for one item, and cannot save a state of its node
│   ├── ReplayDiffers         it gave something else than before, where that must not be
│   ├── StreamsNotSupported   it yields, but is not declared to
│   ├── StreamsUneven         streams that go together are not equally long
│   ├── TruthUnclear          what it returned decides about other nodes, and is neither true nor false
│   └── ValueTooLarge         a value does not fit between two processes
├── EngineStopped             the engine that was asked is shutting down, or is not open
└── JournalError              the log and the law disagree: a bug or a damaged database
    ├── IllegalTransition
    └── JournalDamaged
"""

from __future__ import annotations

from perdure.errors.base import PerdureError
from perdure.errors.bodies import (
    AttemptOver,
    BodyCrashed,
    BodyError,
    BodyNotFound,
    BodyRaised,
    CheckpointNotHere,
    CursorRegressed,
    ReplayDiffers,
    ReplayMismatch,
    StreamsNotSupported,
    StreamsUneven,
    TruthUnclear,
    ValueTooLarge,
    WaitNotHere,
)
from perdure.errors.bundles import (
    ArchiveMissing,
    BundleDamaged,
    BundleError,
    BundleTooLarge,
    BundleTooNew,
    ImportConflict,
    RunArchived,
)
from perdure.errors.commands import (
    AnsweredAlready,
    AnswerRefused,
    CommandIdTaken,
    InputClosed,
    NotInDoubt,
    WaitNotFound,
)
from perdure.errors.engine import EngineStopped, IllegalTransition, JournalDamaged, JournalError
from perdure.errors.graph import (
    DocumentFault,
    Fault,
    GraphError,
    InvalidCall,
    InvalidDeclaration,
    InvalidGraph,
    MisusedRef,
    NotExpressible,
    ProgramError,
    UnreadableGraph,
    WorkflowRaised,
)
from perdure.errors.history import (
    CannotGoBack,
    CheckpointExists,
    CheckpointPending,
    GoingBackPending,
    LogNotWhole,
    PlaceNotFound,
)
from perdure.errors.obstacles import CannotContinue, RunDamaged, RunNotReadable, TypesChanged, TypesMissing
from perdure.errors.runs import (
    RunCancelled,
    RunEnded,
    RunError,
    RunFailed,
    RunIdAmbiguous,
    RunIdTaken,
    RunNotEnded,
    RunNotFound,
    RunResting,
    ValuesDeleted,
    WrongInputs,
)
from perdure.errors.store import (
    BlobDamaged,
    BlobMissing,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
)
from perdure.errors.values import ArgumentNotReadable, ValueNotReadable, ValueNotStorable
from perdure.errors.versions import (
    AliasMoved,
    AliasNotFound,
    NothingToRollBack,
    VersionError,
    VersionInUse,
    VersionNotFound,
)

__all__ = [
    "AliasMoved",
    "AliasNotFound",
    "AnswerRefused",
    "AnsweredAlready",
    "ArchiveMissing",
    "ArgumentNotReadable",
    "AttemptOver",
    "BlobDamaged",
    "BlobMissing",
    "BodyCrashed",
    "BodyError",
    "BodyNotFound",
    "BodyRaised",
    "BundleDamaged",
    "BundleError",
    "BundleTooLarge",
    "BundleTooNew",
    "CannotContinue",
    "CannotGoBack",
    "CheckpointExists",
    "CheckpointNotHere",
    "CheckpointPending",
    "CommandIdTaken",
    "CursorRegressed",
    "DocumentFault",
    "EngineStopped",
    "Fault",
    "GoingBackPending",
    "GraphError",
    "IllegalTransition",
    "ImportConflict",
    "InputClosed",
    "InvalidCall",
    "InvalidDeclaration",
    "InvalidGraph",
    "JournalDamaged",
    "JournalError",
    "LogNotWhole",
    "MisusedRef",
    "NotExpressible",
    "NotInDoubt",
    "NothingToRollBack",
    "PerdureError",
    "PlaceNotFound",
    "ProgramError",
    "ReplayDiffers",
    "ReplayMismatch",
    "RunArchived",
    "RunCancelled",
    "RunDamaged",
    "RunEnded",
    "RunError",
    "RunFailed",
    "RunIdAmbiguous",
    "RunIdTaken",
    "RunNotEnded",
    "RunNotFound",
    "RunNotReadable",
    "RunResting",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "StoreTooNew",
    "StoreUnavailable",
    "StreamsNotSupported",
    "StreamsUneven",
    "TruthUnclear",
    "TypesChanged",
    "TypesMissing",
    "UnreadableGraph",
    "ValueNotReadable",
    "ValueNotStorable",
    "ValueTooLarge",
    "ValuesDeleted",
    "VersionError",
    "VersionInUse",
    "VersionNotFound",
    "WaitNotFound",
    "WaitNotHere",
    "WorkflowRaised",
    "WrongInputs",
]

# Recorded runs hold the names of errors with their modules: one keeps its name, whichever file here declares it.
for _name in __all__:
    globals()[_name].__module__ = __name__
