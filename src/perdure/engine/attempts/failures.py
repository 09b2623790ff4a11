"""What an error of a body is taken for: its class, and whether another attempt may help."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.dispatch.failure import Failure, failure_of
from perdure.errors import (
    BodyNotFound,
    CheckpointNotHere,
    ReplayDiffers,
    StreamsNotSupported,
    StreamsUneven,
    TruthUnclear,
    ValueNotReadable,
    ValueNotStorable,
    ValueTooLarge,
    WrongInputs,
)
from perdure.graph.policy import RetryOn
from perdure.journal.events import ErrorClass, ErrorRecord


class AttemptTimeout(Exception):
    """The body took longer than its node allows."""


class InputUnusable(Exception):
    """What arrives on a handle cannot be given to the body."""


_KINDS: Sequence[tuple[ErrorClass, Sequence[RetryOn]]] = (
    (ErrorClass.RESOURCE, (MemoryError, "OutOfMemoryError", "ResourceExhaustedError")),
    (ErrorClass.INPUT, (InputUnusable, ValueNotReadable, WrongInputs)),
    (ErrorClass.TRANSIENT, (AttemptTimeout, TimeoutError, ConnectionError)),
    (ErrorClass.TRANSIENT, ("ConnectError", "ConnectTimeout", "ReadTimeout", "PoolTimeout", "RateLimitError")),
    (ErrorClass.CONFIGURATION, (ImportError, FileNotFoundError, PermissionError, NotADirectoryError)),
    (ErrorClass.BUG, (ValueNotStorable, TypeError, AttributeError, NameError, AssertionError, LookupError)),
)
"""The first that fits counts. Classes of other packages go by their names: they need not be installed."""
_CLASSES = frozenset(ErrorClass)
_SAME_AGAIN = (
    BodyNotFound,
    CheckpointNotHere,
    InputUnusable,
    ReplayDiffers,
    StreamsNotSupported,
    StreamsUneven,
    TruthUnclear,
    ValueNotReadable,
    ValueNotStorable,
    ValueTooLarge,
    WrongInputs,
)
"""What would fail in the same way at every attempt."""


def record_of(error: BaseException, retry_on: Sequence[RetryOn]) -> ErrorRecord:
    """Return the error as it is stored, with its class and whether another attempt may help."""
    failure = failure_of(error)
    error_class = classify(failure)
    return ErrorRecord(
        error_class=error_class,
        type=failure.type_name,
        message=failure.message,
        traceback=failure.traceback,
        retryable=not failure.is_a(*_SAME_AGAIN) and _is_wanted(failure, error_class, retry_on),
    )


def classify(failure: Failure) -> ErrorClass:
    """Say what kind of error this is: what it says itself, or a guess from its type. Unknown is an honest answer."""
    if failure.error_class in _CLASSES:
        return ErrorClass(failure.error_class)
    for error_class, kinds in _KINDS:
        if failure.is_a(*kinds):
            return error_class
    # Libraries for accelerators have many names for it, and one phrase.
    return ErrorClass.RESOURCE if "out of memory" in failure.message.lower() else ErrorClass.UNKNOWN


def _is_wanted(failure: Failure, error_class: ErrorClass, retry_on: Sequence[RetryOn]) -> bool:
    return not retry_on or failure.is_a(*retry_on) or error_class.value in retry_on
