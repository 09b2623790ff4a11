"""How a program talks with the test that started it: a JSON object per line, log lines with their fields on stderr.

A program never outlives its test, not even while it is stopped.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import signal
import sys
import threading
from typing import Any

_PR_SET_PDEATHSIG = 1
_STANDARD = frozenset(vars(logging.makeLogRecord({})))


def prepare() -> None:
    """Die with the test, and write what perdure logs to stderr."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    handler = logging.StreamHandler()
    handler.setFormatter(_Fields("%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def say(**message: Any) -> None:
    """Tell the test something."""
    print(json.dumps(message), flush=True)


def hear(loop: asyncio.AbstractEventLoop, heard: asyncio.Queue[dict[str, Any] | None]) -> None:
    """Put what the test says into a queue, and None when it has nothing more to say."""

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(heard.put_nowait, json.loads(line))
        loop.call_soon_threadsafe(heard.put_nowait, None)

    threading.Thread(target=listen, daemon=True).start()


class _Fields(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD and name != "asctime"}
        return super().format(record) + "".join(
            f" {name}={value}" for name, value in fields.items() if name != "message"
        )
