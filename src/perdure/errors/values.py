"""Values that cannot be stored, or not be turned back into what they were."""

from __future__ import annotations

from perdure.errors.base import PerdureError


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
