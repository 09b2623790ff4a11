"""What is to be called in a round of the loop is called, whatever becomes of the rest."""

from __future__ import annotations

import asyncio

import pytest

from perdure.engine.recording.rounds import Rounds


def test_what_ends_the_program_ends_only_its_own_work() -> None:
    rounds = Rounds()
    called: list[str] = []

    def act(name: str) -> None:
        called.append(name)
        if name == "first":
            rounds.soon(act, "later")
        if name == "leaves":
            raise SystemExit(3)

    async def main() -> None:
        for name in ("first", "leaves", "second", "third"):
            rounds.soon(act, name)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)

    with pytest.raises(SystemExit):
        asyncio.run(main())

    assert called == ["first", "leaves", "second", "third", "later"]
