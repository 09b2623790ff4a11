"""Versions of a workflow, and aliases for them."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors.base import PerdureError, quoted


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
            "`perdure versions` lists what is."
            if version is None
            else f"`perdure versions {quoted(workflow)}` lists what is."
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
            f"`perdure alias {quoted(workflow)} {quoted(alias)}=VERSION` sets it.",
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
            f"`perdure alias {quoted(workflow)} --history {quoted(alias)}` shows where it has.",
        )
        self.alias = alias
