"""Large values of bodies: kept while they are named, and with patience where they cannot be kept at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure import Engine, Outputs, node, workflow
from perdure.errors import StoreFull
from perdure.ids import RunId
from perdure.store.blobs import FolderBlobs
from tests.engine.engines import assert_whole

LARGE = "long " * 200_000


class Both(Outputs):
    text: str
    same: str


@node
def plain() -> str:
    return LARGE


@node
async def on_loop() -> str:
    return LARGE


@node
def twice() -> Both:
    return Both(text=LARGE, same=LARGE)


@node
def length(text: str) -> int:
    return len(text)


@workflow
def measured() -> list[int]:
    given = twice()
    return [length(plain()), length(on_loop()), length(given.text), length(given.same)]


@pytest.mark.parametrize("refused", [0, 1, 3])
async def test_a_large_value_waits_for_room_and_arrives_whole(
    store_url: str, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """The first tries to keep one find no room, in whichever way it is kept."""
    tries = 0
    put_unnamed, put = FolderBlobs._put_unnamed, FolderBlobs._put  # pyright: ignore[reportPrivateUsage]

    def count() -> None:
        nonlocal tries
        tries += 1
        if tries <= refused:
            raise StoreFull("There is no room.")

    def counted_unnamed(self: FolderBlobs, content: bytes) -> str:
        count()
        return put_unnamed(self, content)

    def counted(self: FolderBlobs, digest: str, content: bytes) -> None:
        count()
        put(self, digest, content)

    monkeypatch.setattr(FolderBlobs, "_put_unnamed", counted_unnamed)
    monkeypatch.setattr(FolderBlobs, "_put", counted)
    async with Engine(store_url) as engine:
        run = await engine.start(measured)

        assert await run.result() == [len(LARGE)] * 4

        await assert_whole(engine, run)
    assert tries > refused


async def test_a_database_behind_a_link_has_its_values_by_all_its_names(tmp_path: Path) -> None:
    place, link = tmp_path / "place", tmp_path / "link.db"
    place.mkdir()
    link.symlink_to(place / "perdure.db")
    async with Engine(f"sqlite:///{link}") as engine:
        await (await engine.start(measured, run_id="r")).result()

    async with Engine(f"sqlite:///{place / 'perdure.db'}") as engine:
        run = await engine.get(RunId("r"))

        assert await run.result() == [len(LARGE)] * 4
        await assert_whole(engine, run)
    assert sorted(os.listdir(tmp_path)) == ["link.db", "place"]
