-- Runs whose tables alone count, and whose logs are written on the side: what others are told by their logs, as JSON. NULL of all
-- other runs.

ALTER TABLE run_state ADD COLUMN audit text;
