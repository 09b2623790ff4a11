"""What has happened to a run: its events, what they add up to, and what must follow. Pure."""
