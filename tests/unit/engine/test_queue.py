"""Nodes that wait for their place, and for their time."""

from __future__ import annotations

import asyncio

from perdure.engine.driving.queue import Queue
from perdure.ids import NodeId


async def test_a_time_for_which_a_node_no_longer_waits_does_not_come():
    """A node is to be tried again at some time, goes back meanwhile, fails once more, and has to wait again."""
    queue = Queue(asyncio.get_running_loop().call_later, on_due=lambda: None)
    node_id = NodeId("a")
    queue.add(node_id, "free", delay_seconds=0.02)
    queue.add(node_id, "free")
    assert queue.of("free").popleft() == node_id
    queue.add(node_id, "free", delay_seconds=60)

    await asyncio.sleep(0.05)

    assert not queue.of("free")
    assert not queue.is_empty
    queue.abandon()
