"""Bundles: a run whole, as a file or a part of one, for other databases and for later.

    magic     `perdure bundle` and the number of the format, a line
    head      what it holds, for those who only want to know: JSON
    records   all that a store holds about the run (`records.py`), as many to a frame as make up FRAME_BYTES
    blob      the name and the size of a blob to which the run refers, followed by its content, in frames
    end       how many records of each kind there were, and the digest of every byte before it: JSON

Whatever follows the magic is frames: a byte for what it is, the size of its content, the size of that compressed (zlib), and the
compressed content. A bundle ends with its `end`, so that several in one file are simply one after the other.

What is read is not trusted. A size is looked at before anything is unpacked and nothing is unpacked beyond it, names of blobs are
digests and never paths, records are decoded strictly, and whoever reads to the end knows that nothing is missing or altered.
Everything here blocks, and reads and writes forwards only.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

import msgspec

from perdure.errors import BundleDamaged, BundleTooLarge, BundleTooNew
from perdure.ids import EventId, RunId, Seq, is_digest
from perdure.journal.states import RunStatus
from perdure.store.records import KINDS, Kind, Record
from perdure.store.transitions import BlobUse
from perdure.store.written import FORMS

FORMAT: Final = 1
FRAME_BYTES: Final = 256 * 1024
"""How much is compressed together."""
MOST_FRAME_BYTES: Final = 64 * 1024 * 1024
"""What one record, and so one frame, has at most."""
MOST_BYTES: Final = 16 * 1024**3
"""What a bundle may unpack to, unless its reader says otherwise."""
ANY_SIZE: Final = 2**63
"""For what we have written ourselves: however large a run is, it can be read again."""

T = TypeVar("T")

_MAGIC = b"perdure bundle "
_MAGIC_SIZE = len(_MAGIC) + 5
_FRAME = struct.Struct(">BII")
_RECORD = struct.Struct(">BI")
_encode = msgspec.json.Encoder().encode
_blob = msgspec.json.Decoder(BlobUse)


class _Part(IntEnum):
    HEAD = 1
    RECORDS = 2
    BLOB = 3
    CHUNK = 4
    END = 5


_PARTS = frozenset(part.value for part in _Part)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle holds."""

    run_id: RunId
    workflow: str
    version: int
    status: RunStatus
    created_at: int
    ended_at: int | None
    last_seq: Seq
    birth: EventId
    """The id of the run's first event, by which two runs of one name are told apart."""
    written_at: int


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What must have come before."""

    records: dict[str, int]
    blobs: int
    digest: str


class Readable(Protocol):
    """Where bundles are read from."""

    def read(self, size: int, /) -> bytes: ...


class Writable(Protocol):
    """Where bundles are written to."""

    def write(self, content: bytes, /) -> Any: ...


class BundleWriter:
    """Writes one bundle. Records come first, then blobs, then the end."""

    def __init__(self, file: Writable, head: Head) -> None:
        self._file = file
        self._hashed = hashlib.sha256()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._counts: Counter[str] = Counter()
        self._blobs = 0
        self.size = 0
        """How many bytes it has so far."""
        self._write(b"%s%04d\n" % (_MAGIC, FORMAT))
        self._frame(_Part.HEAD, _encode(head))

    def add(self, page: Sequence[Record]) -> None:
        """Add records."""
        for record in page:
            kind = KINDS[type(record)]
            content = _encode(FORMS[kind].row_of(record))
            self._gathered += (_RECORD.pack(kind, len(content)), content)
            self._gathered_bytes += _RECORD.size + len(content)
            self._counts[kind.name.lower()] += 1
            if self._gathered_bytes >= FRAME_BYTES:
                self._flush()

    def add_blob(self, use: BlobUse, chunks: Iterator[bytes]) -> None:
        """Add the content of a blob, in chunks of any size."""
        self._flush()
        self._frame(_Part.BLOB, _encode(use))
        for chunk in chunks:
            for start in range(0, len(chunk), FRAME_BYTES):
                self._frame(_Part.CHUNK, chunk[start : start + FRAME_BYTES])
        self._blobs += 1

    def end(self) -> str:
        """Write the end, and return the digest of all before it."""
        self._flush()
        digest = self._hashed.hexdigest()
        self._frame(_Part.END, _encode(End(records=dict(self._counts), blobs=self._blobs, digest=digest)))
        return digest

    def _flush(self) -> None:
        if self._gathered:
            self._frame(_Part.RECORDS, b"".join(self._gathered))
            self._gathered, self._gathered_bytes = [], 0

    def _frame(self, part: _Part, content: bytes) -> None:
        if len(content) > MOST_FRAME_BYTES:
            raise BundleTooLarge(f"A record of the run has {len(content):,} bytes; at most {MOST_FRAME_BYTES:,} fit.")
        packed = zlib.compress(content)
        self._write(_FRAME.pack(part, len(content), len(packed)) + packed)

    def _write(self, content: bytes) -> None:
        self._hashed.update(content)
        self._file.write(content)
        self.size += len(content)


class BundleReader:
    """Reads one bundle, from where the file is. Its head is read at once.

    `place` is how errors call the file, `most_bytes` is what it may unpack to.
    """

    def __init__(self, file: Readable, place: str, *, most_bytes: int = MOST_BYTES) -> None:
        self._file = file
        self._place = place
        self._left = most_bytes
        self._most_bytes = most_bytes
        self._hashed = hashlib.sha256()
        self._counts: Counter[str] = Counter()
        self._blobs = 0
        self.digest = ""
        """Of all of it, when it was read to its end."""
        self._require_magic()
        part, content = self.next_frame()
        if part is not _Part.HEAD:
            raise self.damaged("it does not say what it holds")
        self.head = self._decoded(msgspec.json.Decoder(Head), content)

    def parts(self) -> Iterator[list[Record] | BundledBlob]:
        """Yield pages of records, then blobs. When this ends, nothing of the bundle was missing or altered; otherwise it raises
        BundleDamaged or BundleTooLarge."""
        part, content = self.next_frame()
        while part is _Part.RECORDS:
            yield list(self._records(content))
            part, content = self.next_frame()
        while part is _Part.BLOB:
            blob = BundledBlob(self._named(content), self)
            yield blob
            for _ in blob.chunks:
                pass
            part, content = blob.after
            self._blobs += 1
        if part is not _Part.END:
            raise self.damaged(f"a part {part.name.lower()} is out of its place")
        self._require_whole(content)

    def _records(self, content: bytes) -> Iterator[Record]:
        place = 0
        while place < len(content):
            if place + _RECORD.size > len(content):
                raise self.damaged("a record is cut off")
            number, size = _RECORD.unpack_from(content, place)
            place += _RECORD.size
            if number not in FORMS or place + size > len(content):
                raise self.damaged(f"a record of kind {number} with {size:,} bytes is none")
            kind = Kind(number)
            self._counts[kind.name.lower()] += 1
            yield self._record(kind, content[place : place + size])
            place += size

    def _named(self, content: bytes) -> BlobUse:
        use = self._decoded(_blob, content)
        if not is_digest(use.digest) or use.size < 0:
            raise self.damaged(f"{use.digest[:80]!r} is not the name of a blob")
        return use

    def _require_whole(self, content: bytes) -> None:
        end = self._decoded(msgspec.json.Decoder(End), content)
        if end.digest != self._before_end:
            raise self.damaged("its content was altered: the digests differ")
        if end.records != dict(self._counts) or end.blobs != self._blobs:
            raise self.damaged("it does not hold what its end says")
        self.digest = end.digest

    def _require_magic(self) -> None:
        magic = self._exactly(_MAGIC_SIZE)
        number = magic[len(_MAGIC) : -1]
        if not magic.startswith(_MAGIC) or not magic.endswith(b"\n") or not number.isdigit():
            raise self.damaged("it does not begin as a bundle does")
        if int(number) != FORMAT:
            raise BundleTooNew(self._place, int(number), FORMAT)

    def next_frame(self) -> tuple[_Part, bytes]:
        """Read what comes next, whatever it is."""
        self._before_end = self._hashed.hexdigest()
        number, size, packed_size = _FRAME.unpack(self._exactly(_FRAME.size))
        # What zlib cannot shrink grows by less than this.
        if number not in _PARTS or size > MOST_FRAME_BYTES or packed_size > size + size // 100 + 100:
            raise self.damaged(f"a part {number} with {size:,} bytes in {packed_size:,} is none")
        self._left -= size
        if self._left < 0:
            raise BundleTooLarge(f"{self._place} unpacks to more than {self._most_bytes:,} bytes.")
        return _Part(number), self._unpacked(self._exactly(packed_size), size)

    def _unpacked(self, packed: bytes, size: int) -> bytes:
        unpacking = zlib.decompressobj()
        try:
            content = unpacking.decompress(packed, size + 1)
        except zlib.error as error:
            raise self.damaged(f"a part cannot be unpacked ({error})") from error
        if len(content) != size or not unpacking.eof or unpacking.unused_data:
            raise self.damaged("a part is not as large as it says")
        return content

    def _exactly(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size:
            piece = self._file.read(min(size, FRAME_BYTES))
            if not piece:
                raise self.damaged("it is cut off")
            pieces.append(piece)
            size -= len(piece)
        content = b"".join(pieces)
        self._hashed.update(content)
        return content

    def _record(self, kind: Kind, content: bytes) -> Record:
        try:
            return FORMS[kind].read(content)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self.damaged(f"a record {kind.name.lower()} of it cannot be read ({error})") from error

    def _decoded(self, decoder: msgspec.json.Decoder[T], content: bytes) -> T:
        try:
            return decoder.decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self.damaged(f"a record of it cannot be read ({error})") from error

    def damaged(self, problem: str) -> BundleDamaged:
        """Return the error that says what is wrong with the file."""
        return BundleDamaged(self._place, problem)


class BundledBlob:
    """A blob in a bundle. Its content has to be read before what follows it."""

    def __init__(self, use: BlobUse, reader: BundleReader) -> None:
        self.use = use
        self.after = (_Part.BLOB, b"")
        """The part that follows it, when all of it was read."""
        self.chunks = self._read(reader)
        """The content. What is not asked for is passed over."""

    def _read(self, reader: BundleReader) -> Iterator[bytes]:
        hashed, seen = hashlib.sha256(), 0
        part, chunk = reader.next_frame()
        while part is _Part.CHUNK and seen + len(chunk) <= self.use.size:
            hashed.update(chunk)
            seen += len(chunk)
            yield chunk
            part, chunk = reader.next_frame()
        if part is _Part.CHUNK or seen != self.use.size or hashed.hexdigest() != self.use.digest:
            raise reader.damaged(f"the content of blob {self.use.digest} is not what its name says")
        self.after = (part, chunk)
