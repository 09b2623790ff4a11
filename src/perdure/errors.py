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

from collections.abc import Sequence
from typing import ClassVar, NamedTuple


class PerdureError(Exception):
    """The root of everything perdure raises on purpose."""

    code: ClassVar[str] = "perdure_error"


class GraphError(PerdureError):
    """What was written is not a workflow."""

    code = "graph_error"


class InvalidDeclaration(GraphError):
    """`@node` or `@workflow` got something that it cannot use."""

    code = "invalid_declaration"

    def __init__(self, subject: str, problems: Sequence[str]) -> None:
        super().__init__(f"{subject} cannot be declared:{_listed(problems)}")
        self.subject = subject
        self.problems = tuple(problems)


class InvalidCall(GraphError, TypeError):
    """A node was called with arguments that it does not take."""

    code = "invalid_call"

    def __init__(self, subject: str, problems: Sequence[str], place: str) -> None:
        super().__init__(f"{subject} cannot be called like this ({place}):{_listed(problems)}")
        self.subject = subject
        self.problems = tuple(problems)
        self.place = place


class MisusedRef(GraphError, TypeError):
    """A value that exists only in a run was used as if it were there while the workflow is traced."""

    code = "misused_ref"


class WorkflowRaised(GraphError):
    """The function of a workflow raised an error of its own while it was traced. That error is the cause of this one."""

    code = "workflow_raised"

    def __init__(self, workflow: str, error: BaseException, place: str, line: str) -> None:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        shown = f":\n    {line}\n" if line else ". "
        super().__init__(
            f"The function of workflow {workflow!r} raised {said.rstrip('.')} ({place}){shown}"
            "It runs once, to describe the graph, with stand-ins for values. Correct it, or do this inside a node."
        )
        self.workflow = workflow
        self.place = place


class DocumentFault(NamedTuple):
    """What is wrong in a document, and where: a line and column, or the path to the value."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class UnreadableGraph(GraphError):
    """A document is not a graph. All that is wrong with its shape is listed."""

    code = "unreadable_graph"

    def __init__(self, faults: Sequence[DocumentFault]) -> None:
        super().__init__(f"This is not a graph:{_listed([str(fault) for fault in faults])}")
        self.faults = tuple(faults)


class NotExpressible(GraphError):
    """A graph uses what the short form has no words for."""

    code = "not_expressible"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"The short form cannot say this:{_listed(problems, 'Write it as nodes and edges.')}")
        self.problems = tuple(problems)


class Fault(NamedTuple):
    """What is wrong with a graph: at which node (none: the whole graph), by which rule, and what to do about it."""

    node: str | None
    rule: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.message} {self.remedy}"


class InvalidGraph(GraphError):
    """A graph has faults. All of them are in `faults`; the message lists the first ones."""

    code = "invalid_graph"

    def __init__(self, name: str, faults: Sequence[Fault]) -> None:
        noun = "fault" if len(faults) == 1 else "faults"
        super().__init__(f"Workflow {name!r} has {len(faults)} {noun}:{_listed([str(fault) for fault in faults])}")
        self.name = name
        self.faults = tuple(faults)


def _listed(problems: Sequence[str], then: str = "", most: int = 50) -> str:
    """Return what follows a colon: one problem in the same line, several in lines of their own, and the end of it all."""
    if len(problems) == 1:
        return f" {problems[0]} {then}".rstrip()
    lines = [f"\n- {problem}" for problem in problems[:most]]
    if len(problems) > most:
        lines.append(f"\n- and {len(problems) - most} more")
    return "".join(lines) + f"\n{then}"


class ValueNotStorable(PerdureError):
    """A value, or a part of one, cannot be stored. Nothing of it was."""

    code = "value_not_storable"

    def __init__(self, where: str, path: str, type_name: str, reason: str, remedy: str) -> None:
        part = f"the value's {path}" if path else "the value"
        super().__init__(f"{where}: {part} ({type_name}) cannot be stored: {reason.rstrip('.')}. {remedy}")
        self.where = where
        self.path = path
        self.type_name = type_name
        self.reason = reason


class ValueNotReadable(PerdureError):
    """A stored value cannot be turned back into what it was. It stays stored as it is."""

    code = "value_not_readable"

    def __init__(self, where: str, reason: str, remedy: str, *, tag: str | None = None) -> None:
        super().__init__(f"{where} cannot be read: {reason}. {remedy}")
        self.where = where
        self.reason = reason
        self.remedy = remedy
        self.tag = tag


class ArgumentNotReadable(ValueNotReadable):
    """What a node's body is to be given cannot be read. The body has not begun."""

    code = "argument_not_readable"

    def __init__(self, node_id: str, handle: str, problem: ValueNotReadable) -> None:
        where = f"What node {node_id!r} is to be given as {handle!r}"
        super().__init__(where, problem.reason, problem.remedy, tag=problem.tag)
        self.node_id = node_id
        self.handle = handle


class RunError(PerdureError):
    """Something about one run."""

    code = "run_error"

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class RunNotFound(RunError):
    """There is no run with this id in the store."""

    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, f"There is no run {run_id!r} in this store. `perdure list` shows the runs it holds.")


class RunIdAmbiguous(RunError):
    """The beginning of a run's id was given, and several runs have it."""

    code = "run_id_ambiguous"

    def __init__(self, prefix: str, candidates: Sequence[str]) -> None:
        super().__init__(
            prefix, f"Several runs have ids that begin with {prefix!r}:{_listed(candidates, 'Give more of it.')}"
        )
        self.candidates = tuple(candidates)


class RunIdTaken(RunError):
    """A run with this id exists and was started with other inputs, or from another workflow."""

    code = "run_id_taken"

    def __init__(self, run_id: str, differing: Sequence[str]) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} exists and was started differently ({', '.join(differing)}). "
            f"Start it the same way to get that run, go on with it as it was started (`perdure resume {run_id}`), or choose "
            "another run_id.",
        )
        self.differing = tuple(differing)


class RunNotEnded(RunError):
    """The run was asked for something that only a run can do that has ended."""

    code = "run_not_ended"

    def __init__(self, run_id: str, status: str, what: str) -> None:
        super().__init__(
            run_id, f"Run {run_id!r} has not ended: it is {status}. {what} Cancel it first, or wait for it."
        )
        self.status = status


class ValuesDeleted(RunError):
    """The values of the run were deleted: what happened is known, with what is not."""

    code = "values_deleted"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            run_id,
            f"The values of run {run_id!r} were deleted. `perdure events {run_id}` shows what has happened to it.",
        )


class RunArchived(RunError):
    """The run is in the archive."""

    code = "run_archived"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} is in the archive. `perdure show {run_id}` reads it there; to go on with it, bring it back: "
            f"`perdure archive --restore {run_id}`.",
        )


class ImportConflict(RunError):
    """A run with the id of the one that was to be imported is here, and is not that one, or has not come as far."""

    code = "import_conflict"

    def __init__(self, run_id: str, how: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} is here already, and {how}. Nothing was imported. Choose another id for the one in the file "
            "(run_id, --run-id).",
        )


class CommandIdTaken(RunError):
    """The run was told something else under this id. Nothing was added."""

    code = "command_id_taken"

    def __init__(self, run_id: str, command_id: str, kind: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} was told something else under the command id {command_id!r} ({kind}). "
            "Use the same id only to repeat the same command; choose another one for this.",
        )
        self.command_id = command_id
        self.kind = kind


class WrongInputs(PerdureError):
    """What was given does not fit the workflow's inputs. Nothing was started."""

    code = "wrong_inputs"

    def __init__(self, workflow: str, problems: Sequence[str]) -> None:
        super().__init__(
            f"The inputs do not fit workflow {workflow!r}: " + "; ".join(problems) + ". Nothing was started."
        )
        self.workflow = workflow
        self.problems = tuple(problems)


class InputClosed(RunError):
    """An item was sent to an input that takes no more."""

    code = "input_closed"

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__(
            run_id,
            f"Input {name!r} of run {run_id!r} is closed: it was given all its items, or somebody has closed it, or the run has "
            "ended. Start another run to process more.",
        )
        self.name = name


class WaitNotFound(RunError):
    """There is no such question, or it is another run's."""

    code = "wait_not_found"

    def __init__(self, run_id: str, wait_id: str, *, owner: str | None = None, open_ids: Sequence[str] = ()) -> None:
        whose = f"It belongs to run {owner!r}." if owner is not None else "Nothing of this id waits."
        there = f" Run {run_id!r} waits for {', '.join(map(repr, open_ids))}." if open_ids else ""
        super().__init__(run_id, f"Run {run_id!r} does not wait for {wait_id!r}. {whose}{there}")
        self.wait_id = wait_id


class AnsweredAlready(RunError):
    """A question has its answer, and no other one counts."""

    code = "answered_already"

    def __init__(self, run_id: str, wait_id: str, how: str) -> None:
        super().__init__(run_id, f"Question {wait_id!r} of run {run_id!r} {how}. The first answer counts.")
        self.wait_id = wait_id


class AnswerRefused(RunError):
    """An answer is not what was asked for. The question stays open."""

    code = "answer_refused"

    def __init__(self, run_id: str, wait_id: str, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(
            run_id, f"That is no answer to question {wait_id!r} of run {run_id!r}:{listed}\nIt is still open."
        )
        self.wait_id = wait_id
        self.problems = list(problems)


class RunFailed(RunError):
    """The run ended in failure."""

    code = "run_failed"

    def __init__(self, run_id: str, node_id: str | None, error_type: str, message: str, traceback: str = "") -> None:
        where = f" at node {node_id!r}" if node_id else ""
        super().__init__(
            run_id,
            f"Run {run_id!r} failed{where}: {error_type}: {message.rstrip('.')}. `perdure show {run_id}` has the details.",
        )
        if traceback:
            self.add_note(traceback.rstrip())
        self.node_id = node_id
        self.error_type = error_type
        self.message = message
        self.traceback = traceback


class RunCancelled(RunError):
    """The run was cancelled."""

    code = "run_cancelled"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, f"Run {run_id!r} was cancelled" + (f": {reason}." if reason else "."))
        self.reason = reason


class RunResting(RunError):
    """The run has no result: it rests until something from outside arrives."""

    code = "run_resting"

    def __init__(self, run_id: str, status: str, reason: str) -> None:
        first = (
            f"`perdure resolve {run_id} NODE done|retry|fail` says what became of it; then "
            if "in doubt" in reason
            else ""
        )
        super().__init__(
            run_id,
            f"Run {run_id!r} is {status}" + (f": {reason}" if reason else "") + ". "
            f"{first}`perdure resume {run_id}` continues it; `perdure show {run_id}` has the details.",
        )
        self.status = status
        self.reason = reason


class RunEnded(RunError):
    """The run was asked for something that only a run can do that has not ended."""

    code = "run_ended"

    def __init__(self, run_id: str, status: str, what: str) -> None:
        super().__init__(
            run_id, f"Run {run_id!r} has ended: it is {status}. {what} `perdure show {run_id}` has the details."
        )
        self.status = status


class CheckpointExists(RunError):
    """The run has a checkpoint of this name, or was asked for one. A name means one place, for good."""

    code = "checkpoint_exists"

    def __init__(self, run_id: str, name: str, seq: int | None) -> None:
        there = "somebody has asked for one, and it is to be saved" if seq is None else f"it is at event {seq}"
        super().__init__(
            run_id,
            f"Run {run_id!r} has a checkpoint {name!r} already: {there}. A name stays where it is. Choose another one; "
            f"`perdure checkpoint {run_id}` lists those that there are.",
        )
        self.name = name
        self.seq = seq


class CheckpointPending(RunError):
    """A checkpoint was asked for, durably, and nobody has saved it yet."""

    code = "checkpoint_pending"

    def __init__(self, run_id: str, name: str) -> None:
        super().__init__(
            run_id,
            f"Checkpoint {name!r} of run {run_id!r} was asked for and is not saved yet: nobody drives the run, or whoever does "
            "is busy. The wish is kept, and whoever drives the run next saves it first. "
            f"`perdure checkpoint {run_id}` shows it then.",
        )
        self.name = name


class CannotGoBack(RunError):
    """A run cannot be retried, or cannot go back to a node, as somebody wants it to."""

    code = "cannot_go_back"

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} cannot go back so: {why}. Nothing has changed. `perdure show {run_id}` has the details.",
        )
        self.why = why


class PlaceNotFound(RunError):
    """A run was to be seen as it was somewhere in its history, and that place is not there."""

    code = "place_not_found"

    def __init__(self, run_id: str, what: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} has {what}. `perdure events {run_id}` shows its log, `perdure checkpoint {run_id}` the names in it "
            f"and `perdure branches {run_id}` its lines of history.",
        )


class LogNotWhole(RunError):
    """What was asked of a run needs all of its log, and its log is written on the side: it may have gaps."""

    code = "log_not_whole"

    def __init__(self, run_id: str, what: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} has journal='audit': what is recorded of it is in its tables alone, and its log may "
            f"have gaps. So {what}. Nothing has changed. `perdure show {run_id}` shows how it stands; start runs that need "
            "their history with journal='log'.",
        )
        self.what = what


class GoingBackPending(RunError):
    """A run was asked to go back, durably, and nobody has done it yet."""

    code = "going_back_pending"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} was asked to go back, and has not yet: nobody drives it who has its code, or whoever does is busy. "
            f"The wish is kept, and whoever takes the run up next fulfils it. `perdure branches {run_id}` shows it then.",
        )


class CannotContinue(RunError):
    """A run cannot go on on a version of its workflow: what has happened in it does not fit. `reasons` are all that are found."""

    code = "cannot_continue"

    def __init__(self, run_id: str, workflow: str, version: int, reasons: Sequence[str]) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} cannot go on on version {version} of workflow {workflow!r}:"
            f"{_listed(reasons, 'Nothing has changed.')}",
        )
        self.workflow = workflow
        self.version = version
        self.reasons = tuple(reasons)


class NotInDoubt(RunError):
    """Somebody has said what became of a node, but nobody has to: it is not in doubt, or not any more."""

    code = "not_in_doubt"

    def __init__(self, run_id: str, node_id: str, why: str, doubtful: Sequence[str]) -> None:
        super().__init__(
            run_id,
            f"Node {node_id!r} of run {run_id!r} is not in doubt: {why}. In doubt: {', '.join(doubtful) or 'none'}. "
            f"`perdure show {run_id}` has the details.",
        )
        self.node_id = node_id
        self.doubtful = tuple(doubtful)


class TypesMissing(RunError):
    """This process does not have the node types that the run needs, or the workflows of which it starts runs."""

    code = "types_missing"

    def __init__(
        self, run_id: str, missing: Sequence[str], looked_in: Sequence[str] = (), *, workflows: Sequence[str] = ()
    ) -> None:
        if looked_in:
            told = (
                f"which {', '.join(looked_in)} {'does' if len(looked_in) == 1 else 'do'} not declare (any more). "
                "Restore them under their names, or name the place that declares them with --import."
            )
        else:
            told = "which this process does not have. Import the modules that declare them, or name them with --import."
        needed = [f"the node types {', '.join(missing)}"] if missing else []
        needed += [f"the workflows {', '.join(workflows)}"] if workflows else []
        super().__init__(run_id, f"Run {run_id!r} needs {' and '.join(needed)}, {told}")
        self.missing = tuple(missing)
        self.workflows = tuple(workflows)
        self.looked_in = tuple(looked_in)


class TypesChanged(RunError):
    """The node types have changed since the run was started, so that its graph no longer fits them."""

    code = "types_changed"

    def __init__(self, run_id: str, workflow: str, version: int, faults: Sequence[Fault]) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} was started from version {version} of workflow {workflow!r}, and the node types have "
            f"changed since:{_listed([str(fault) for fault in faults], 'Restore them as they were, or start another run.')}",
        )
        self.faults = tuple(faults)


class RunNotReadable(RunError):
    """This process cannot read values that the run holds, so it has let go of it. Nothing of the run is lost."""

    code = "run_not_readable"

    def __init__(self, run_id: str, problems: Sequence[str]) -> None:
        remedy = (
            "Nothing is lost. Once they can be read, the run goes on: start the program again, "
            f"or `perdure resume {run_id}`."
        )
        super().__init__(
            run_id,
            f"Run {run_id!r} holds values that this process cannot read, and is left as it is:{_listed(problems, remedy)}",
        )
        self.problems = tuple(problems)


class RunDamaged(RunError):
    """What is recorded of the run does not agree with its log, and it cannot be repaired without somebody's help."""

    code = "run_damaged"

    def __init__(self, run_id: str, problems: Sequence[str]) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} is damaged, and cannot go on: {'; '.join(problems)}. `perdure doctor {run_id}` says more.",
        )
        self.problems = tuple(problems)


class VersionError(PerdureError):
    """Something about versions of a workflow, or about aliases for them."""

    code = "version_error"

    def __init__(self, workflow: str, message: str) -> None:
        super().__init__(message)
        self.workflow = workflow


class VersionNotFound(VersionError):
    """There is no such version of a workflow, or no version at all: then `version` is None."""

    code = "version_not_found"

    def __init__(self, workflow: str, version: int | None) -> None:
        which = "version" if version is None else f"version {version}"
        then = (
            "`perdure versions` lists what is." if version is None else f"`perdure versions {workflow}` lists what is."
        )
        super().__init__(workflow, f"No {which} of workflow {workflow!r} is saved. {then}")
        self.version = version


class VersionInUse(VersionError):
    """A version cannot be deleted, because something refers to it."""

    code = "version_in_use"

    def __init__(self, workflow: str, version: int, why: str) -> None:
        super().__init__(workflow, f"Version {version} of workflow {workflow!r} is not deleted: {why}")
        self.version = version


class AliasNotFound(VersionError):
    """A workflow has no alias of this name. `known` are those that it has."""

    code = "alias_not_found"

    def __init__(self, workflow: str, alias: str, known: Sequence[str]) -> None:
        super().__init__(
            workflow,
            f"Workflow {workflow!r} has no alias {alias!r} (it has {', '.join(map(repr, known))}). "
            f"`perdure alias {workflow} {alias}=VERSION` sets it.",
        )
        self.alias = alias
        self.known = tuple(known)


class AliasMoved(VersionError):
    """Somebody else has moved an alias since it was looked at, and nothing has changed."""

    code = "alias_moved"

    def __init__(self, workflow: str, alias: str) -> None:
        super().__init__(
            workflow,
            f"Alias {alias!r} of workflow {workflow!r} was moved by somebody else meanwhile. Nothing has changed. "
            "Look where it points, and decide again.",
        )
        self.alias = alias


class NothingToRollBack(VersionError):
    """An alias has not pointed anywhere before, so that it cannot be moved back."""

    code = "nothing_to_roll_back"

    def __init__(self, workflow: str, alias: str) -> None:
        super().__init__(
            workflow,
            f"Alias {alias!r} of workflow {workflow!r} has not pointed anywhere else before. "
            f"`perdure alias {workflow} --history {alias}` shows where it has.",
        )
        self.alias = alias


class ProgramError(PerdureError):
    """A file or module that was named cannot be loaded, or holds nothing that can run."""

    code = "program_error"


class ArchiveMissing(PerdureError):
    """A file of the archive is not where it should be."""

    code = "archive_missing"

    def __init__(self, run_id: str, path: str) -> None:
        super().__init__(
            f"Run {run_id!r} was archived into {path}, which is not there. Put the file back, or say where the archive is "
            "(archive_folder, --archive)."
        )
        self.run_id = run_id
        self.path = path


class BundleError(PerdureError):
    """A file that should hold a run."""

    code = "bundle_error"


class BundleDamaged(BundleError):
    """The file is no bundle, is cut off, was altered, or holds something that is no run."""

    code = "bundle_damaged"

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place} is not a whole bundle: {problem}. Nothing was imported. Export the run again.")
        self.place = place
        self.problem = problem


class BundleTooNew(BundleError):
    """The file was written by a later perdure, in a format that this one does not know."""

    code = "bundle_too_new"

    def __init__(self, place: str, found: int, known: int) -> None:
        super().__init__(f"{place} has format {found}; this perdure knows format {known}. Upgrade perdure to read it.")
        self.place = place


class BundleTooLarge(BundleError):
    """The file unpacks to more than is allowed."""

    code = "bundle_too_large"

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} Nothing was kept. If you trust its source, allow more (most_bytes, --max-size).")


class BodyError(PerdureError):
    """Something about a node's body while it executes."""

    code = "body_error"


class AttemptOver(BodyError):
    """The attempt was cancelled, timed out or taken over, but its body goes on. What it does no longer counts."""

    code = "attempt_over"

    def __init__(self, node_id: str, attempt: int) -> None:
        super().__init__(
            f"Attempt {attempt} at node {node_id!r} is over: it was cancelled, timed out or taken over by another engine. "
            "Nothing it does is recorded any more. Let the body end; `ctx.cancelled` says so in advance."
        )
        self.node_id = node_id
        self.attempt = attempt


class BodyCrashed(BodyError):
    """The process in which a body ran has died, and the body with it."""

    code = "body_crashed"
    retryable: ClassVar[bool] = True

    def __init__(self, node_id: str, how: str, *, exit_code: int | None, signal: int | None, error_class: str) -> None:
        super().__init__(f"The process that ran node {node_id!r} {how}. What it wrote to stderr may say why.")
        self.node_id = node_id
        self.exit_code = exit_code
        self.signal = signal
        self.error_class = error_class


class BodyNotFound(BodyError):
    """A node type cannot be imported where its body is to run."""

    code = "body_not_found"
    error_class: ClassVar[str] = "configuration"

    def __init__(self, node_type: str, reason: str) -> None:
        super().__init__(
            f"Node type {node_type!r} cannot run in another process: {reason}. "
            "Define it at the top level of a module or script, or let it run in this process (executor='thread')."
        )
        self.node_type = node_type


class BodyRaised(BodyError):
    """A body raised an error that cannot be raised here as itself: in another process, or one that ends programs.

    `type_names` are the stored names of the error's class and of its bases, nearest first; its class is never imported.
    """

    code = "body_raised"
    retryable: ClassVar[bool] = True

    def __init__(
        self, type_names: Sequence[str], message: str, traceback: str = "", *, error_class: str | None = None
    ) -> None:
        super().__init__(f"{type_names[0]}: {message}" if message else type_names[0])
        self.type_names = tuple(type_names)
        self.type_name = self.type_names[0]
        self.message = message
        self.traceback = traceback
        self.error_class = error_class


class CheckpointNotHere(BodyError):
    """A body that is called once per item asked for a checkpoint."""

    code = "checkpoint_not_here"
    error_class: ClassVar[str] = "configuration"

    def __init__(self, node_id: str) -> None:
        super().__init__(
            f"Node {node_id!r} is called once per item, and what it gives for each is recorded by itself: there is no state "
            "of the node to save. Use ctx.step inside an item, or let the node read the whole stream."
        )
        self.node_id = node_id


class ReplayDiffers(BodyError):
    """A generator that was run again has given something else than is recorded, where that must not be."""

    code = "replay_differs"
    error_class: ClassVar[str] = "bug"

    def __init__(self, node_id: str, position: int, reason: str) -> None:
        super().__init__(
            f"Node {node_id!r} was run again and gave something else at item {position} than before, but {reason}. "
            "Declare it with replay='hold', so that nobody sees its items before it has ended; or save its state with "
            "ctx.checkpoint after each item, and go on from ctx.restored."
        )
        self.node_id = node_id
        self.position = position


class ReplayMismatch(BodyError):
    """A body that runs again waits for something else than before, so that what has come cannot be given to it."""

    code = "replay_mismatch"

    def __init__(self, node_id: str, wanted: str, recorded: Sequence[str]) -> None:
        super().__init__(
            f"Node {node_id!r} was run again and waits for {wanted!r}, but before, it has waited for "
            f"{', '.join(map(repr, recorded))}. Have it wait for the same things each time: what decides about that belongs into "
            "`ctx.step`, or is an argument of the node."
        )
        self.node_id = node_id


class CursorRegressed(PerdureError):
    """A trigger has given an input whose cursor is not after the last one."""

    code = "cursor_regressed"

    def __init__(self, node_id: str, input_id: str, cursor: str, last: str) -> None:
        super().__init__(
            f"Trigger {node_id!r} gave input {input_id!r} with cursor {cursor}, which is not after {last}. Cursors only move on; "
            "if `>` does not say which of two is further, say so in `is_after`."
        )
        self.node_id = node_id


class WaitNotHere(BodyError):
    """A body waits that must not be run again."""

    code = "wait_not_here"

    def __init__(self, node_id: str) -> None:
        super().__init__(
            f"Node {node_id!r} is declared with once=True and cannot wait, because a body that waits is run again. Let a node "
            "before it wait: the `ask` node, or one that is not `once`."
        )
        self.node_id = node_id


class StreamsUneven(BodyError):
    """Streams that are mapped together have ended at different items."""

    code = "streams_uneven"
    error_class: ClassVar[str] = "input"

    def __init__(self, node_id: str, ended: str, left: str, count: int) -> None:
        super().__init__(
            f"Node {node_id!r} takes one item of each stream, but {ended!r} has ended after {count} items and {left!r} goes on. "
            "Make them equally long, leave the rest out with leftovers='drop', or use join='latest'."
        )
        self.node_id = node_id
        self.ended = ended
        self.left = left
        self.count = count


class StreamsNotSupported(BodyError):
    """A node gives items as a stream, but is not declared so that they can be taken from it."""

    code = "streams_not_supported"
    error_class: ClassVar[str] = "configuration"

    def __init__(self, node_type: str) -> None:
        super().__init__(
            f"{node_type!r} gives items one by one, but is not declared to do so. Write it with `yield`, or annotate it to "
            "return Iterator[T], or AsyncIterator[T] if that is what it returns; or let it return a list."
        )
        self.node_type = node_type


class TruthUnclear(BodyError):
    """A condition looks at what a body returned, and Python cannot say whether that is true."""

    code = "truth_unclear"
    error_class: ClassVar[str] = "bug"

    def __init__(self, node_id: str, kind: str, error: Exception) -> None:
        super().__init__(
            f"What node {node_id!r} returned decides whether other nodes run, but it is a {kind} that is neither true nor "
            f"false ({type(error).__name__}: {error}). Return a bool, or compare it in a node of its own."
        )
        self.node_id = node_id
        self.kind = kind


class ValueTooLarge(BodyError):
    """A value is larger than what may travel between two processes."""

    code = "value_too_large"
    error_class: ClassVar[str] = "resource"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} would take {size:,} bytes, and at most {limit:,} may travel between two processes. "
            "Pass on a smaller value, such as the path of a file, or let the node run in this process (executor='thread')."
        )
        self.size = size
        self.limit = limit


class EngineStopped(PerdureError):
    """The engine is not open: it is shutting down, has stopped, or was never started."""

    code = "engine_stopped"


class StoreError(PerdureError):
    """The database cannot be used."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be reached, or not opened."""

    code = "store_unavailable"


class StoreLocked(StoreError):
    """Another process holds the database and does not let go."""

    code = "store_locked"


class StoreReadOnly(StoreError):
    """The database cannot be written to."""

    code = "store_read_only"


class StoreFull(StoreError):
    """There is no room left where the database is kept."""

    code = "store_full"


class StoreTooNew(StoreError):
    """The database was written by a newer version of perdure."""

    code = "store_too_new"


class StoreDamaged(StoreError):
    """The database is not one, or its pages are damaged."""

    code = "store_damaged"


class BlobMissing(StoreError):
    """A stored value refers to a blob that is not where blobs are kept."""

    code = "blob_missing"

    def __init__(self, digest: str, place: str) -> None:
        super().__init__(
            f"Blob {digest} is not in {place}. Check that this is the place where the run's blobs were written, "
            "or restore it from a backup: any copy with this digest will do."
        )
        self.digest = digest
        self.place = place


class BlobDamaged(StoreError):
    """What is kept under a blob's digest is not what was stored."""

    code = "blob_damaged"

    def __init__(self, digest: str, place: str, problem: str) -> None:
        super().__init__(
            f"Blob {digest} in {place} is damaged: {problem}. Restore it from a backup: any copy with this digest will do."
        )
        self.digest = digest
        self.place = place
        self.problem = problem


class JournalError(PerdureError):
    """The log and the law disagree: a bug, or a database that someone else has changed."""

    code = "journal_error"


class IllegalTransition(JournalError):
    """An event does not fit the state that it meets. It was not written."""

    code = "illegal_transition"

    def __init__(self, state: object, event: object) -> None:
        super().__init__(f"{type(event).__name__} is not possible here: {event!r} after {state!r}.")
        self.state = state
        self.event = event


class JournalDamaged(JournalError):
    """The stored log is not one that perdure has written."""

    code = "journal_damaged"

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(
            f"The log of run {run_id!r} is damaged: {problem}. `perdure verify {run_id}` lists what is wrong."
        )
        self.run_id = run_id
