"""Runs as their users hold them."""
