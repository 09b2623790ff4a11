"""Where node bodies execute, and what they can ask for meanwhile."""
