"""Standard output and standard error for processes that run bodies: printing never fails for want of readers.

When a terminal is closed, whoever read a pipe has ended, or the disk of a log is full, the next `print` raises. In a body that
would be the failure of its node, and of the run for good. So what nobody can read any more is swallowed, and the body goes on.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

_STANDARD_ERROR = 2
_NOBODY_READS = (errno.EPIPE, errno.EIO, errno.EBADF)
"""What writing says to a pipe without a reader, to a terminal that is gone, and where a body has closed what it did not open."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What it says to a file for which there is no room, perhaps for a while."""


def outlive_readers() -> None:
    """Let the standard streams of this process, and of programs that it starts, go silent when their reader has left."""
    sys.stdout = _outliving(sys.stdout)
    sys.stderr = _outliving(sys.stderr)


def _outliving(stream: TextIO) -> TextIO:
    buffer: object = getattr(stream, "buffer", None)
    if type(stream) is not io.TextIOWrapper or isinstance(buffer, _Buffer):
        return stream  # there is none, or somebody has put something else in its place
    stream.flush()
    return io.TextIOWrapper(
        _Buffer(_Descriptor(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Buffer(io.BufferedWriter):
    """Marks streams that have been replaced."""


class _Descriptor(io.FileIO):
    """Writes to a descriptor, which leads nowhere from the moment on when nobody reads it any more. What there is no room for is
    left out."""

    _has_complained = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._complain(error)
                return memoryview(data).nbytes
            if error.errno not in _NOBODY_READS:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != self.fileno():  # which it is if that was closed
            try:
                os.dup2(nowhere, self.fileno())
            finally:
                os.close(nowhere)
        else:
            os.set_inheritable(nowhere, True)
        return super().write(data)

    def _complain(self, error: OSError) -> None:
        if not self._has_complained and self.fileno() != _STANDARD_ERROR:
            self._has_complained = True
            told = f"perdure: not all output can be written ({error.strerror}); all else goes on\n"
            # Past the streams of Python: programs may have put this one in the place of the other.
            with suppress(OSError):
                os.write(_STANDARD_ERROR, told.encode())
