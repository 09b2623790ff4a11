"""What stands in the way of a run that should go on."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors.base import listed, quoted
from perdure.errors.graph import Fault
from perdure.errors.runs import RunError


class CannotContinue(RunError):
    """A run cannot go on on a version of its workflow: what has happened in it does not fit. `reasons` are all that are found."""

    code = "cannot_continue"

    def __init__(self, run_id: str, workflow: str, version: int, reasons: Sequence[str]) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} cannot go on on version {version} of workflow {workflow!r}:"
            f"{listed(reasons, 'Nothing has changed.')}",
        )
        self.workflow = workflow
        self.version = version
        self.reasons = tuple(reasons)


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
            if missing:
                keeping = f"`@node(name={missing[0]!r})` keeps the old one"
                told += f" Types are named after their module: if that has another name now, {keeping}."
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
        remedy = (
            "Restore them as they were, or have the run go on with another version: cancel it, then "
            f"`perdure jump {quoted(run_id)} NODE --version N` (`perdure versions check {quoted(run_id)} N` says whether it can)."
        )
        super().__init__(
            run_id,
            f"Run {run_id!r} was started from version {version} of workflow {workflow!r}, and the node types have "
            f"changed since:{listed([str(fault) for fault in faults], remedy)}",
        )
        self.faults = tuple(faults)


class RunNotReadable(RunError):
    """This process cannot read values that the run holds, so it has let go of it. Nothing of the run is lost."""

    code = "run_not_readable"

    def __init__(self, run_id: str, problems: Sequence[str]) -> None:
        remedy = (
            "Nothing is lost. Once they can be read, the run goes on: start the program again, "
            f"or `perdure resume {quoted(run_id)}`."
        )
        super().__init__(
            run_id,
            f"Run {run_id!r} holds values that this process cannot read, and is left as it is:{listed(problems, remedy)}",
        )
        self.problems = tuple(problems)


class RunDamaged(RunError):
    """What is recorded of the run does not agree with its log, and it cannot be repaired without somebody's help."""

    code = "run_damaged"

    def __init__(self, run_id: str, problems: Sequence[str]) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} is damaged, and cannot go on: {'; '.join(problems)}. `perdure doctor {quoted(run_id)}` says more.",
        )
        self.problems = tuple(problems)
