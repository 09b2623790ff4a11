"""Built-in node types, a module each, which is imported when one of its types is asked for."""

from perdure.graph.model import FOLDER, REDIS_STREAM, SCHEDULE, START
from perdure.graph.registry import declared_in

declared_in(
    {
        FOLDER: "perdure.nodes.folder",
        REDIS_STREAM: "perdure.nodes.redis_stream",
        SCHEDULE: "perdure.nodes.schedule",
        START: "perdure.nodes.start",
    }
)
