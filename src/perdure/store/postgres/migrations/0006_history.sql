-- What a line of history is made of, beside what it drops: nodes that are tried again, what nodes are given in the place of what
-- edges and properties say (by node, then by handle), why and when it was created, and under which id somebody has asked for it.

ALTER TABLE run_branches
    ADD COLUMN retried text NOT NULL DEFAULT '[]',
    ADD COLUMN given text NOT NULL DEFAULT '{}',
    ADD COLUMN reason text NOT NULL DEFAULT '',
    ADD COLUMN asked_as text NOT NULL DEFAULT '',
    ADD COLUMN created_at bigint NOT NULL DEFAULT 0; -- microseconds since 1970-01-01 UTC
