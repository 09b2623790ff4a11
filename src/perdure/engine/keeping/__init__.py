"""Runs and files over their lifetime: out of a database and into it, archived, compacted, deleted."""
