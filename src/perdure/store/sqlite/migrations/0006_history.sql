-- What a line of history is made of, beside what it drops: nodes that are tried again, what nodes are given in the place of what
-- edges and properties say (by node, then by handle), why and when it was created, and under which id somebody has asked for it.

ALTER TABLE run_branches ADD COLUMN retried TEXT NOT NULL DEFAULT '[]';
ALTER TABLE run_branches ADD COLUMN given TEXT NOT NULL DEFAULT '{}';
ALTER TABLE run_branches ADD COLUMN reason TEXT NOT NULL DEFAULT '';
ALTER TABLE run_branches ADD COLUMN asked_as TEXT NOT NULL DEFAULT '';
ALTER TABLE run_branches ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0; -- microseconds since 1970-01-01 UTC
