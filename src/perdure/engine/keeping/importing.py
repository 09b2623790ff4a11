"""Runs out of bundles: looked through before anything is kept, then written in one transaction.

    1  every byte is read: the bundle is whole, its records are those of one run, its log has no gaps, and it obeys the law
    2  the versions that it has followed are kept, and its blobs, which nothing refers to yet
    3  its records are written, and it is read to its end once more: if the file was changed meanwhile, nothing stays

Who stops in between leaves blobs that will be collected, and perhaps versions that nothing uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from perdure.clock import Clock
from perdure.engine.driving.sending import PAUSE
from perdure.engine.keeping.exporting import birth_of
from perdure.engine.keeping.transfer import Transfer
from perdure.engine.starting.beginning import checked_run_id, chosen_run_id
from perdure.engine.stored.dumping import readable_graph
from perdure.engine.stored.verification import verify_dump
from perdure.errors import BundleDamaged, ImportConflict, ProgramError, RunArchived
from perdure.graph.writing import content_hash
from perdure.ids import BranchId, CommandId, EventId, RunId, Seq, new_id
from perdure.journal import events as e
from perdure.journal.followed import Followed, followed_from
from perdure.journal.projection import Given
from perdure.journal.states import MOVING, WAITING, RunState, RunStatus
from perdure.journal.verify import Violation
from perdure.store.base import Store
from perdure.store.blobs import BlobStore
from perdure.store.bundles import MOST_BYTES, BundledBlob, BundleReader
from perdure.store.records import KINDS, KeptCommand, Kind, Record, Refused
from perdure.store.shapes import ArchivedRun, Command, LogLine, RunDump, StoredRun, WorkflowVersion
from perdure.store.transitions import BlobUse

MOST_VIOLATIONS = 3
"""How many of the things that are wrong with a run are named."""
MOST_VERSION = 2**31
"""No version of a file has a higher number: the next one that is saved has to get one as well."""
LAST_MOMENT = 253_370_764_800 * 1_000_000
"""The year 9999, in microseconds since 1970: what is later cannot be shown as a date, in whatever time zone."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was imported, or was here already."""

    run_id: RunId
    workflow: str
    version: int
    """As it is numbered here."""
    status: RunStatus
    """As it is in the file."""
    events: int
    is_new: bool
    is_paused: bool
    """Whether it was told to rest."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle in an open file."""

    file: BinaryIO
    place: str
    position: int = 0
    is_alone: bool = True
    """Whether nothing may follow it."""
    most_bytes: int = MOST_BYTES

    def reader(self) -> BundleReader:
        """Begin to read it."""
        self.file.seek(self.position)
        return BundleReader(self.file, self.place, most_bytes=self.most_bytes)

    def records(self) -> Iterator[list[Record]]:
        """Yield its records, and read it to its end."""
        for part in self.reader().parts():
            if not isinstance(part, BundledBlob):
                yield part
        if self.is_alone and self.file.read(1):
            raise BundleDamaged(self.place, "something follows its end")


_TIMES = {
    kind: tuple(name for name in record_type.__struct_fields__ if name == "at" or name.endswith("_at"))
    for record_type, kind in KINDS.items()
}
"""By kind of record: which of its fields tell when something was."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What the first look has found."""

    run: RunState
    versions: tuple[WorkflowVersion, ...]
    """All that the run has followed and that are in the file, by their numbers."""
    birth: EventId
    last: EventId
    """Its last event, or the first one of its last transition if its log may have gaps."""
    digest: str


async def import_file(
    store: Store,
    blobs: BlobStore,
    path: Path,
    *,
    project_id: str,
    clock: Clock,
    run_id: str | None = None,
    paused: bool = True,
    verify: bool = True,
    most_bytes: int = MOST_BYTES,
) -> Imported:
    """Take up the run in a file. Idempotent: one that is here, and has come at least as far, stays as it is.

    Raises BundleError if the file is not a whole run, and ImportConflict if another run has its id.
    """
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        raise ProgramError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        source = Source(file=file, place=str(path), most_bytes=most_bytes)
        return await import_run(
            store,
            blobs,
            source,
            project_id=project_id,
            clock=clock,
            run_id=run_id,
            paused=paused,
            verify=verify,
        )


async def import_run(
    store: Store,
    blobs: BlobStore,
    source: Source,
    *,
    project_id: str,
    clock: Clock,
    run_id: str | None = None,
    paused: bool = True,
    verify: bool = True,
    from_archive: ArchivedRun | None = None,
) -> Imported:
    """As `import_file`, from wherever a bundle is; also from the archive, which it leaves then."""
    checked = await asyncio.to_thread(check, source, verify=verify)
    chosen = checked.run.run_id if run_id is None else chosen_run_id(run_id)
    if from_archive is None and await store.load_archive(chosen) is not None:
        raise RunArchived(chosen)
    if await _is_there(store, chosen, checked):
        return _imported(checked, chosen, checked.run.version, is_new=False, is_paused=False)
    versions = {version.version: (await store.keep_version(version)).version for version in checked.versions}
    await asyncio.to_thread(_keep_blobs, source, blobs)
    transfer = Transfer(
        old_id=checked.run.run_id,
        new_id=chosen,
        project_id=project_id,
        versions=versions,
        arrival=new_id(),
    )
    rests = paused and checked.run.status in MOVING | WAITING
    pages = _written(source, transfer, _pausing(chosen, checked, clock) if rests else None)
    try:
        is_new = await store.write_run(pages, from_archive=from_archive)
    except Refused as error:
        raise BundleDamaged(source.place, f"the database will not have a record of it ({error})") from error
    if not is_new and not await _is_there(store, chosen, checked):
        if from_archive is None and await store.load_archive(chosen) is not None:
            raise RunArchived(chosen)
        raise ImportConflict(chosen, "came meanwhile")
    return _imported(checked, chosen, versions[checked.run.version], is_new=is_new, is_paused=is_new and rests)


def check(source: Source, *, verify: bool) -> Checked:
    """Read a bundle to its end, and refuse what is not a whole run. Blocks. `verify` takes as much memory as the run has."""
    checked, look = _look_through(source, keeps_all=verify)
    if verify and (violations := verify_dump(look.dump(), lost_blobs=())):
        told = "; ".join(f"{found.invariant}: {found.problem}" for found in violations[:MOST_VIOLATIONS])
        raise BundleDamaged(
            source.place,
            f"the run in it is not whole ({told}). To have it all the same, do not verify it (--no-verify)",
        )
    return checked


def violations_in(source: Source) -> list[Violation]:
    """Return everything that is wrong with the run in a bundle. Blocks. Raises BundleError if it cannot be read to its end."""
    _, look = _look_through(source, keeps_all=True)
    return verify_dump(look.dump(), lost_blobs=())


def _look_through(source: Source, *, keeps_all: bool) -> tuple[Checked, _Look]:
    look = _Look(source.place, keeps_all=keeps_all, is_foreign=source.is_alone)
    reader = source.reader()
    for part in reader.parts():
        if isinstance(part, BundledBlob):
            look.blobs.add((part.use.digest, part.use.size))
        else:
            for record in part:
                look.at(record)
    if source.is_alone and source.file.read(1):
        raise BundleDamaged(source.place, "something follows its end")
    checked = look.done(reader.digest)
    if reader.head.run_id != checked.run.run_id or reader.head.birth != checked.birth:
        raise BundleDamaged(source.place, "it holds another run than it says")
    return checked, look


class _Look:
    """Looks at each record of a bundle once. One of our own archive is taken with whatever times and numbers it has."""

    def __init__(self, place: str, *, keeps_all: bool, is_foreign: bool) -> None:
        self.blobs: set[tuple[str, int]] = set()
        self._place = place
        self._keeps_all = keeps_all
        self._is_foreign = is_foreign
        self._kept: dict[Kind, list[Any]] = {kind: [] for kind in Kind}
        self._run: RunState | None = None
        self._versions: dict[int, WorkflowVersion] = {}
        self._followed: set[Followed] = set()
        self._uses: set[tuple[str, int]] = set()
        self._first: e.Recorded | None = None
        self._last: e.Recorded | None = None
        self._kind = Kind.RUN

    def at(self, record: Record) -> None:
        kind = KINDS[type(record)]
        if (self._run is None) != (kind is Kind.RUN) or kind < self._kind:
            raise self._refusal("its records are not those of one run, in their order")
        self._kind = kind
        if self._is_foreign:
            self._require_sense(record, kind)
        match record:
            case RunState():
                self._run = self._named(record)
            case WorkflowVersion():
                if record.version in self._versions:
                    raise self._refusal(f"it holds two versions {record.version}")
                self._versions[record.version] = record
            case e.Recorded():
                self._hear(record)
            case BlobUse():
                self._uses.add((record.digest, record.size))
            case KeptCommand(command=Command(run_id=run_id)) | LogLine(run_id=run_id):
                self._require_own(run_id)
            case _:
                pass
        if self._keeps_all:
            self._kept[kind].append(record)

    def done(self, digest: str) -> Checked:
        run, first, last = self._run, self._first, self._last
        if run is None or not self._versions:
            raise self._refusal("it holds no run, or not its graph")
        ids = (first.id, last.id) if run.audit is None and first is not None and last is not None else None
        if run.audit is not None:
            ids = (run.audit.birth, run.audit.transition)
        if ids is None:
            raise self._refusal("it does not hold the log of its run")
        if last is not None and (last.seq > run.last_seq or (run.audit is None and last.seq != run.last_seq)):
            raise self._refusal(f"its log ends at {last.seq}, and not at {run.last_seq}")
        self._require_versions(run)
        if self.blobs != self._uses:
            raise self._refusal("its blobs are not those that the run refers to")
        versions = tuple(sorted(self._versions.values(), key=lambda version: version.version))
        return Checked(run=run, versions=versions, birth=ids[0], last=ids[1], digest=digest)

    def _require_versions(self, run: RunState) -> None:
        """Refuse graphs that are not those which the run follows and has followed."""
        own = self._versions.get(run.version)
        if own is None or any(version.workflow != run.workflow for version in self._versions.values()):
            raise self._refusal("its version is not that of its run")
        if own.graph_hash != run.graph_hash or any(map(_is_altered, self._versions.values())):
            raise self._refusal("its graph is not the one that the run was started from")
        for version in self._versions.values():
            if version is not own and Followed(version.version, version.graph_hash) not in self._followed:
                raise self._refusal(f"it holds version {version.version}, which its run has never followed")

    def dump(self) -> RunDump:
        run, kept = self._run, self._kept
        assert run is not None
        waits = tuple(sorted(kept[Kind.WAIT], key=lambda wait: (wait.last_seq, wait.branch_id, wait.wait_id)))
        return RunDump(
            stored=StoredRun(
                run=run,
                owner=None,
                nodes=tuple(node for node in kept[Kind.NODE] if node.branch_id == run.branch_id),
                steps=tuple(step for step in kept[Kind.STEP] if step.branch_id == run.branch_id),
                waits=tuple(wait for wait in waits if wait.branch_id == run.branch_id),
                signals=tuple(kept[Kind.SIGNAL]),
                commands=tuple(kept.command for kept in kept[Kind.COMMAND] if kept.taken_seq is None),
                given=self._given(run.branch_id),
            ),
            events=tuple(kept[Kind.EVENT]),
            all_nodes=tuple(kept[Kind.NODE]),
            version=self._versions.get(run.version),
            earlier=tuple(version for number, version in self._versions.items() if number != run.version),
            blobs=tuple(kept[Kind.BLOB]),
            items=tuple(kept[Kind.ITEM]),
            all_waits=waits,
            checkpoints=tuple(kept[Kind.CHECKPOINT]),
            branches=tuple(kept[Kind.BRANCH]),
        )

    def _given(self, branch_id: BranchId) -> Given:
        nothing: Given = {}
        return next((branch.given for branch in self._kept[Kind.BRANCH] if branch.branch_id == branch_id), nothing)

    def _named(self, run: RunState) -> RunState:
        try:
            checked_run_id(run.run_id)
        except ValueError as error:
            raise self._refusal("its run has no name") from error
        return run

    def _require_sense(self, record: Record, kind: Kind) -> None:
        times = (getattr(record, name) for name in _TIMES[kind])
        if any(at is not None and not 0 <= at < LAST_MOMENT for at in times):
            raise self._refusal(f"a record {kind.name.lower()} of it is of no time that there is")
        if isinstance(record, WorkflowVersion) and not 1 <= record.version <= MOST_VERSION:
            raise self._refusal(f"{record.version} is no number of a version")

    def _hear(self, entry: e.Recorded) -> None:
        expected = 1 if self._last is None else self._last.seq + 1
        may_have_gaps = self._run is not None and self._run.audit is not None
        if entry.seq < expected or (entry.seq > expected and not may_have_gaps):
            raise self._refusal(f"event {entry.seq} of its log is out of its place")
        self._first = self._first or entry
        self._last = entry
        if (followed := followed_from(entry.event)) is not None:
            self._followed.add(followed)

    def _require_own(self, run_id: RunId) -> None:
        if self._run is None or run_id != self._run.run_id:
            raise self._refusal(f"it holds something of run {run_id!r}")

    def _refusal(self, problem: str) -> BundleDamaged:
        return BundleDamaged(self._place, problem)


def _is_altered(version: WorkflowVersion) -> bool:
    """Whether a version does not hold what its hash says."""
    graph = readable_graph(version.graph)
    return graph is None or content_hash(graph) != version.graph_hash


async def _is_there(store: Store, run_id: RunId, checked: Checked) -> bool:
    """Whether the run is here, as far as the bundle tells of it or further. Raises ImportConflict if another one is."""
    while (there := await store.load_state(run_id)) is not None:
        problem = await _difference(store, there, checked)
        if problem is None:
            return True
        if await store.load_state(run_id) == there:
            raise ImportConflict(run_id, problem)
        # It has left for the archive, or went on, while its log was looked at.
    return False


async def _difference(store: Store, there: RunState, checked: Checked) -> str | None:
    """Return why a run that is here cannot stand for the one in the file, if it cannot."""
    if await birth_of(store, there) != checked.birth:
        return "is another run than the one in the file"
    if there.last_seq < checked.run.last_seq:
        return "has not come as far as the one in the file"
    if not await _is_on_the_way(store, there, checked):
        return "went on otherwise than the one in the file"
    return None


async def _is_on_the_way(store: Store, there: RunState, checked: Checked) -> bool:
    """Whether a run that is here has come past where the one in the file is, as far as that can be told."""
    if there.audit is not None:
        return there.last_seq > checked.run.last_seq or there.audit.transition == checked.last
    page = await store.load_events(there.run_id, after=Seq(checked.run.last_seq - 1), limit=1)
    return bool(page) and page[0].id == checked.last


def _keep_blobs(source: Source, blobs: BlobStore) -> None:
    for part in source.reader().parts():
        if isinstance(part, BundledBlob):
            blobs.put_chunks_sync(part.chunks)


def _written(source: Source, transfer: Transfer, command: KeptCommand | None) -> Iterator[Sequence[Record]]:
    yield from transfer.moved(source.records())
    if command is not None:
        yield [command]


def _pausing(run_id: RunId, checked: Checked, clock: Clock) -> KeptCommand:
    """Two databases that both go on with a run would do everything twice: whoever imports it says when it goes on here."""
    return KeptCommand(
        command=Command(
            command_id=CommandId(f"import/{checked.last}"),
            run_id=run_id,
            kind=PAUSE,
            payload={"reason": "imported"},
            created_at=clock.now_micros(),
        )
    )


def _imported(checked: Checked, run_id: RunId, version: int, *, is_new: bool, is_paused: bool) -> Imported:
    run = checked.run
    return Imported(
        run_id=run_id,
        workflow=run.workflow,
        version=version,
        status=run.status,
        events=run.last_seq,
        is_new=is_new,
        is_paused=is_paused,
    )
