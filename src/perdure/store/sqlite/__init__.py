"""Runs kept in one SQLite file."""
