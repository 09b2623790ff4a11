"""perdure: a durable, resumable workflow engine. Graphs of Python steps that survive whatever happens to the process."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.errors import PerdureError
from perdure.graph.asking import ask
from perdure.graph.assets import Asset, Audio, Document, Image, Video
from perdure.graph.declare import Backoff, NodeType, Outputs, Stream, Workflow, node, workflow
from perdure.graph.inbox import inbox
from perdure.graph.itemfailure import ItemFailure
from perdure.graph.registry import declared_in
from perdure.graph.trace import after, collect, failures, first, stage, text, unless, when
from perdure.graph.triggers import Trigger, TriggerInput
from perdure.nodes import MODULES

if TYPE_CHECKING:
    from perdure.dispatch.assets import AssetFile
    from perdure.dispatch.context import Context, SyncContext
    from perdure.engine.attempts.probing import Doubt
    from perdure.engine.driving.interactions import Interaction
    from perdure.engine.engine import Engine
    from perdure.engine.runs.checkpoints import Checkpoint
    from perdure.engine.runs.run import Run
    from perdure.engine.settings import EngineSettings
    from perdure.engine.stored.progress import Progress
    from perdure.nodes.folder import folder
    from perdure.nodes.redis_stream import redis_stream
    from perdure.nodes.schedule import Tick, schedule
    from perdure.store.codecs import Codec, register_codec, register_type

__version__ = "0.1.0"

__all__ = [
    "Asset",
    "AssetFile",
    "Audio",
    "Backoff",
    "Checkpoint",
    "Codec",
    "Context",
    "Document",
    "Doubt",
    "Engine",
    "EngineSettings",
    "Image",
    "Interaction",
    "ItemFailure",
    "NodeType",
    "Outputs",
    "PerdureError",
    "Progress",
    "Run",
    "Stream",
    "SyncContext",
    "Tick",
    "Trigger",
    "TriggerInput",
    "Video",
    "Workflow",
    "after",
    "ask",
    "collect",
    "failures",
    "first",
    "folder",
    "inbox",
    "node",
    "redis_stream",
    "register_codec",
    "register_type",
    "schedule",
    "stage",
    "text",
    "unless",
    "when",
    "workflow",
]

_LATE = {
    "AssetFile": "perdure.dispatch.assets",
    "Checkpoint": "perdure.engine.runs.checkpoints",
    "Codec": "perdure.store.codecs",
    "Context": "perdure.dispatch.context",
    "Doubt": "perdure.engine.attempts.probing",
    "Engine": "perdure.engine.engine",
    "EngineSettings": "perdure.engine.settings",
    "Interaction": "perdure.engine.driving.interactions",
    "Progress": "perdure.engine.stored.progress",
    "Run": "perdure.engine.runs.run",
    "SyncContext": "perdure.dispatch.context",
    "Tick": "perdure.nodes.schedule",
    "folder": "perdure.nodes.folder",
    "redis_stream": "perdure.nodes.redis_stream",
    "register_codec": "perdure.store.codecs",
    "register_type": "perdure.store.codecs",
    "schedule": "perdure.nodes.schedule",
}
"""Names whose modules take a while to load: declaring workflows does not need them."""


declared_in(MODULES)


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
