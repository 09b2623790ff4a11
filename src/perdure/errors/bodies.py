"""Nodes' bodies while they execute: how they end, and what they give, wait for and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from perdure.errors.base import PerdureError


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
    error_class: ClassVar[str] = "bug"

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
