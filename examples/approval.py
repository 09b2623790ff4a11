"""A notice that two people approve before it is put up, and a reminder to take it down again.

perdure run examples/approval.py --run-id notice --input "subject=The lift is out of order"
perdure answer notice/editor/1 true
perdure answer notice/caretaker/1 true
perdure resume notice

Both are asked at the same time, and answer in any order, from anywhere that reaches the database. While they think, and while
the notice hangs, the run is a few rows: no process has to live. `perdure answer notice/editor/1` shows the draft and asks.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from perdure import Context, Engine, SyncContext, ask, node, text, when, workflow


@node
def draft(subject: str) -> str:
    return f"NOTICE\n\n{subject}. We are sorry for the trouble.\n"


@node
def put_up(ctx: SyncContext, notice: str, board: str) -> str:
    """Put the notice on the board. The file is named after the run, so that doing it again changes nothing."""
    path = Path(board) / f"{ctx.run_id.replace('/', '-')}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notice, encoding="utf-8")
    return str(path)


@node
async def remind(ctx: Context, path: str, seconds: float) -> str:
    """Wait as long as the notice should hang, however often the program is stopped meanwhile."""
    await ctx.sleep(seconds)
    return f"time to take down {path}"


@workflow
def notice(subject: str, board: str = "board", seconds: float = 2.0) -> str | None:
    written = draft(subject)
    is_well_written = ask.named("editor")("Is this well written?", schema=bool, show=written)
    is_true = ask.named("caretaker")(
        text("Is this so: ", subject, "?"), schema=bool, deadline=timedelta(days=3), default=False
    )
    with when(is_well_written), when(is_true):
        reminder = remind(put_up(written, board), seconds)
    return reminder


async def main() -> None:
    """Start a run, play both people, and wait for the reminder."""
    async with Engine() as engine:
        run = await engine.start(notice, subject="The lift is out of order")
        await run.wait()
        for question in await run.questions():
            print(f"{question.prompt} yes ({question.interaction_id})")
            await run.answer(question.interaction_id, True, by=question.node_id)
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
