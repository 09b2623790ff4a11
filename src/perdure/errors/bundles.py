"""Runs in files: bundles, and the archive."""

from __future__ import annotations

from perdure.errors.base import PerdureError, quoted
from perdure.errors.runs import RunError


class RunArchived(RunError):
    """The run is in the archive."""

    code = "run_archived"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            run_id,
            f"Run {run_id!r} is in the archive. `perdure show {quoted(run_id)}` reads it there; to go on with it, bring it back: "
            f"`perdure archive --restore {quoted(run_id)}`.",
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
