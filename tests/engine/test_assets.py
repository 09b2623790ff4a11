"""Assets: written and read as files wherever a body runs, recorded wherever a value is, and never read to pass them on."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Asset, Audio, Context, Document, Doubt, Engine, Image, Outputs, SyncContext, Video, node, workflow
from perdure.dispatch.assets import suffix_of
from perdure.engine.runs.run import Run
from perdure.errors import BlobMissing, RunFailed, WrongInputs
from perdure.ids import digest_of
from perdure.store.base import Store
from perdure.store.blobs import BlobStore
from tests.engine.engines import assert_whole

CONTENT = b"picture " * 200_000
"""Larger than what is kept with a run, and than one chunk."""
DIGEST = digest_of(CONTENT)


@pytest.fixture
async def engine(sqlite_url: str) -> AsyncIterator[Engine]:
    async with Engine(sqlite_url) as engine:
        yield engine


def blobs_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("perdure.db-blobs/??/*")}


def left_in(folder: Path) -> list[Path]:
    return list(folder.glob("perdure.db-blobs/tmp/*"))


async def used_by(store: Store, run: Run[Any]) -> set[str]:
    dump = await store.dump_run(run.run_id)
    assert dump is not None
    return {use.digest for use in dump.blobs}


# Wherever a body runs


def chunks() -> Iterator[bytes]:
    yield from (CONTENT[start : start + 300_000] for start in range(0, len(CONTENT), 300_000))


async def async_chunks() -> AsyncIterator[bytes]:
    for chunk in chunks():
        await asyncio.sleep(0)
        yield chunk


SOURCES: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda folder: CONTENT,
    "bytearray": lambda folder: bytearray(CONTENT),
    "path": lambda folder: folder / "given.png",
    "text": lambda folder: str(folder / "given.png"),
    "file": lambda folder: io.BytesIO(CONTENT),
    "chunks": lambda folder: chunks(),
    "async chunks": lambda folder: async_chunks(),
}


@node
async def made_on_loop(ctx: Context, source: str, folder: str) -> Image:
    return await ctx.asset(SOURCES[source](Path(folder)), kind=Image, name="made.png")


@node
def made_in_thread(ctx: SyncContext, source: str, folder: str) -> Image:
    return ctx.asset(SOURCES[source](Path(folder)), kind=Image, name="made.png")


@node(executor="process")
def made_in_process(ctx: SyncContext, source: str, folder: str) -> Image:
    return ctx.asset(SOURCES[source](Path(folder)), kind=Image, name="made.png")


@workflow
def made(source: str, folder: str) -> list[Image]:
    return [
        made_on_loop(source, folder),
        made_in_thread(source, folder),
        made_in_process(source, folder),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
async def test_an_asset_is_made_from_anything_wherever_the_body_runs(engine: Engine, tmp_path: Path, source: str):
    (tmp_path / "given.png").write_bytes(CONTENT)

    run = await engine.start(made, source=source, folder=str(tmp_path))

    assert await run.result() == [Image(DIGEST, len(CONTENT), media_type="image/png", name="made.png")] * 3
    assert (await engine.open(Image(DIGEST, len(CONTENT)))).path.read_bytes() == CONTENT
    assert (tmp_path / "given.png").read_bytes() == CONTENT
    await assert_whole(engine, run)


def doubled(source: os.PathLike[str], target: Path) -> None:
    target.write_bytes(Path(source).read_bytes() * 2)


@node
async def copied_on_loop(ctx: Context, video: Video) -> Video:
    file, target = await ctx.open(video), await ctx.scratch("out.mp4")
    with target.open("wb") as out:
        async for chunk in file:
            out.write(chunk * 2)
    return await ctx.asset(target, kind=Video)


@node
def copied_in_thread(ctx: SyncContext, video: Video) -> Video:
    target = ctx.scratch("out.mp4")
    doubled(ctx.open(video), target)
    return ctx.asset(target, kind=Video)


@node(executor="process")
def copied_in_process(ctx: SyncContext, video: Video) -> Video:
    file, target = ctx.open(video), ctx.scratch("out.mp4")
    with target.open("wb") as out:
        for chunk in file:
            out.write(chunk * 2)
    return ctx.asset(target, kind=Video)


@workflow
def copied(video: Video) -> Video:
    return copied_in_process(copied_in_thread(copied_on_loop(video)))


async def test_an_asset_is_read_and_written_as_a_file_wherever_the_body_runs(engine: Engine, tmp_path: Path):
    video = await engine.asset(b"v", kind=Video, name="in.mp4")

    run = await engine.start(copied, video=video)
    result = await run.result()

    assert (result.name, result.media_type, result.size) == ("out.mp4", "video/mp4", 8)
    assert (await engine.open(result)).path.read_bytes() == b"v" * 8
    assert len(await used_by(engine.store, run)) == 4
    await engine.stop()
    assert left_in(tmp_path) == []


async def test_an_asset_is_read_and_written_as_a_file_where_blobs_are_objects(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with Engine(sqlite_url, blobs="memory:///") as engine:
        run = await engine.start(copied, video=await engine.asset(b"v", kind=Video, name="in.mp4"))
        result = await run.result()

        assert (await engine.open(result)).path.read_bytes() == b"v" * 8
        await assert_whole(engine, run)

    assert list(temporary.iterdir()) == []


_scratched: list[Path] = []


@node
async def failing(ctx: Context) -> None:
    path = await ctx.scratch("half.png")
    path.write_bytes(CONTENT)
    _scratched.append(path)
    raise ValueError("half-way")


@workflow
def failed() -> None:
    failing()


async def test_scratch_ends_with_the_attempt(engine: Engine, tmp_path: Path):
    _scratched.clear()

    with pytest.raises(RunFailed):
        await (await engine.start(failed)).result()
    await engine.stop()

    assert len(_scratched) == 1
    assert left_in(tmp_path) == []
    assert blobs_in(tmp_path) == set()


@node
async def mistaken(ctx: Context, what: str) -> str:
    try:
        match what:
            case "path":
                await ctx.asset("/nowhere/at/all")
            case "folder":
                await ctx.asset("/")
            case "text":
                await ctx.asset(["text"])  # type: ignore[list-item]
            case "number":
                await ctx.asset(17)  # type: ignore[call-overload]
            case _:
                await ctx.scratch("../out")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@workflow
def mistake(what: str) -> str:
    return mistaken(what)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("path", "FileNotFoundError"),
        ("folder", "ValueError: / is not a file"),
        ("text", "TypeError: An asset is made of bytes"),
        ("number", "TypeError: A int cannot become an asset"),
        ("name", "ValueError: '../out' is not the name of a file"),
    ],
)
async def test_a_mistake_is_told_to_the_body(engine: Engine, what: str, told: str):
    assert (await (await engine.start(mistake, what=what)).result()).startswith(told)


@pytest.mark.parametrize(
    ("asset", "suffix"),
    [
        (Image(DIGEST, 1, name="a.PNG"), ".PNG"),
        (Image(DIGEST, 1, media_type="image/png"), ".png"),
        (Document(DIGEST, 1, name="../../x.p/f"), ""),
        (Document(DIGEST, 1, name="x.a\x00b"), ""),
        (Asset(DIGEST, 1), ""),
    ],
)
def test_a_file_has_the_extension_of_the_asset_if_that_is_harmless(asset: Asset, suffix: str):
    assert suffix_of(asset) == suffix


# On edges


@node
async def passed_on(image: Image) -> Image:
    return image.with_meta(passed=True)


@node
def passed_in_thread(images: list[Image]) -> dict[str, Image]:
    return {"first": images[0]}


@node(executor="process")
def passed_in_process(named: dict[str, Image]) -> Outputs:
    return Outputs(cover=named["first"], size=named["first"].size)


@workflow
def passing(image: Image) -> Any:
    return passed_in_process(passed_in_thread([passed_on(image)])).cover


async def test_an_asset_is_passed_on_without_being_read(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    image = await engine.asset(CONTENT, kind=Image)

    def never(*_: object) -> None:
        raise AssertionError("it was read")

    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "get_sync", never)
        patch.setattr(BlobStore, "chunks_sync", never)
        run = await engine.start(passing, image=image)
        assert await run.result() == image.with_meta(passed=True)

    assert await used_by(engine.store, run) == {DIGEST}
    await assert_whole(engine, run)


@node
async def heard(audio: Audio) -> int:
    return audio.size


@node
async def said() -> Any:
    return Image(DIGEST, len(CONTENT))


@workflow
def listening(audio: Audio) -> int:
    return heard(audio)


@workflow
def saying() -> int:
    return heard(said())


async def test_another_kind_is_refused_at_the_door_and_on_an_edge(engine: Engine):
    image = await engine.asset(CONTENT, kind=Image)

    with pytest.raises(WrongInputs, match=r"Image is given \(it takes Audio\)"):
        await engine.start(listening, inputs={"audio": image})
    with pytest.raises(RunFailed, match="it is an Image, and Audio is wanted"):
        await (await engine.start(saying)).result()


async def test_an_asset_without_content_is_refused(engine: Engine):
    nothing = Image(digest_of(b"never written"), 13)

    with pytest.raises(BlobMissing):
        await engine.start(passing, image=nothing)
    with pytest.raises(RunFailed, match="is not in"):
        await (await engine.start(saying)).result()


# Wherever a value is recorded


@node
async def checkpointing(ctx: Context) -> None:
    await ctx.checkpoint({"image": await ctx.asset(CONTENT, kind=Image)})


@node
async def stepping(ctx: Context) -> None:
    await ctx.step(_stepped, ctx)


async def _stepped(ctx: Context) -> Image:
    return await ctx.asset(CONTENT, kind=Image)


@node
async def returning(ctx: Context) -> Image:
    return await ctx.asset(CONTENT, kind=Image)


@node
def naming(ctx: SyncContext) -> Outputs:
    return Outputs(image=ctx.asset(CONTENT, kind=Image), rest=1)


@node
async def hiding(ctx: Context) -> list[Any]:
    """Give a value that is itself a blob, in which the asset is."""
    return [await ctx.asset(CONTENT, kind=Image), "x" * 500_000]


@node(executor="process")
def far(ctx: SyncContext) -> list[Any]:
    return [ctx.asset(CONTENT, kind=Image), "x" * 500_000]


@workflow
def by_checkpoint() -> None:
    checkpointing()


@workflow
def by_step() -> None:
    stepping()


@workflow
def by_output() -> None:
    returning()


@workflow
def by_handle() -> None:
    naming()


@workflow
def inside_a_blob() -> None:
    hiding()


@workflow
def from_a_process() -> None:
    far()


@pytest.mark.parametrize("flow", [by_checkpoint, by_step, by_output, by_handle, inside_a_blob, from_a_process])
async def test_what_a_body_records_is_used_by_the_run(engine: Engine, flow: Any):
    run = await engine.start(flow)

    await run.result()

    assert DIGEST in await used_by(engine.store, run)
    assert await engine.store.used_blobs([DIGEST, digest_of(b"other")]) == {DIGEST}


async def test_an_input_is_used_by_the_run(engine: Engine):
    run = await engine.start(passing, image=await engine.asset(CONTENT, kind=Image))

    assert DIGEST in await used_by(engine.store, run)
    await run.result()


_given: list[Image] = []
_begun = asyncio.Event()


async def probe(doubt: Doubt) -> Any:
    return ("done", _given[0])


@node(once=True)
async def doubtful() -> Image:
    _begun.set()
    await asyncio.Event().wait()
    raise AssertionError


@node(once=True, probe=probe)
async def probed() -> Image:
    _begun.set()
    await asyncio.Event().wait()
    raise AssertionError


@workflow
def by_person() -> Image:
    return doubtful()


@workflow
def by_probe() -> Image:
    return probed()


async def lose(url: str, flow: Any) -> Image:
    """Start a run, leave its node in doubt, and return what it would have given."""
    global _begun
    _begun = asyncio.Event()  # of this test's loop
    async with Engine(url) as engine:
        _given[:] = [await engine.asset(CONTENT, kind=Image)]
        await engine.start(flow, run_id="lost")
        await _begun.wait()
        await engine.stop(grace_seconds=0)
    return _given[0]


async def test_what_a_person_says_is_used_from_then_on(sqlite_url: str):
    image = await lose(sqlite_url, by_person)

    async with Engine(sqlite_url, workflows=[], recover=False) as elsewhere:
        await (await elsewhere.get("lost")).resolve("doubtful", "done", output=image)
        run = await elsewhere.get("lost")
        # The run takes it up when an engine comes that knows the workflow, which may take its time.
        assert await used_by(elsewhere.store, run) == set()
        assert await elsewhere.store.used_blobs([DIGEST]) == {DIGEST}
    async with Engine(sqlite_url) as engine:
        run = await engine.get("lost")
        assert await run.result() == image
        assert await used_by(engine.store, run) == {DIGEST}


async def test_what_a_probe_says_is_used(sqlite_url: str):
    image = await lose(sqlite_url, by_probe)

    async with Engine(sqlite_url) as engine:
        run = await engine.get("lost")
        assert await run.result() == image
        assert await used_by(engine.store, run) == {DIGEST}
