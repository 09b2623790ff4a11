-- The end of a log, for statements that need it of some runs only: whoever names a table waits for those who have locked it, and a
-- function names it when it is called. It sees what the statement sees that calls it.

CREATE FUNCTION last_events(project text, run text, most bigint)
RETURNS TABLE (seq bigint, branch_id bigint, epoch bigint, event_type text) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT e.seq, e.branch_id, e.epoch, e.event_type
      FROM run_events AS e WHERE e.project_id = project AND e.run_id = run ORDER BY e.seq DESC LIMIT most;
END
$$;
