"""What a child process of the dispatch runs: bodies, with the codecs by which their values are stored."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.dispatch.child import Birth, serve
from perdure.dispatch.printing import outlive_readers
from perdure.journal.events import Encoded
from perdure.store.codecs import Codecs, process_codecs


def main(birth: dict[str, Any]) -> None:
    """Serve the engine that has started this process, until it has no more work."""
    outlive_readers()
    serve(msgspec.convert(birth, Birth), _StoredValues(process_codecs()))


class _StoredValues:
    """Values as the store keeps them, with everything inside."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs

    def encode(self, value: Any, *, where: str) -> bytes:
        return self._codecs.encode(value, where=where)

    def decode(self, raw: Encoded, annotation: Any) -> Any:
        return self._codecs.decode(raw, annotation)
