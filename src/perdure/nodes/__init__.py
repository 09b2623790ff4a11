"""Built-in node types, a module each, which is imported when one of its types is asked for."""

from perdure.graph.model import FOLDER, REDIS_STREAM, SCHEDULE, START

MODULES = {
    FOLDER: "perdure.nodes.folder",
    REDIS_STREAM: "perdure.nodes.redis_stream",
    SCHEDULE: "perdure.nodes.schedule",
    START: "perdure.nodes.start",
}
"""Which module declares which type."""
