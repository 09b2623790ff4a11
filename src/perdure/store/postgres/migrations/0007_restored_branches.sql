-- Whether a line of history begins with what its parent was at `cut_seq`, instead of with what the run was when it was created.

ALTER TABLE run_branches ADD COLUMN restored bigint NOT NULL DEFAULT 0 CHECK (restored = 0 OR restored = 1);
