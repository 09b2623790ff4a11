"""Runs kept in a PostgreSQL database, shared by any number of engines."""
