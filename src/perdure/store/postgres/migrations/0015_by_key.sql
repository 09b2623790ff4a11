-- As 0013, and by the key of the archive's table whatever its statistics say: plans are made while it is empty and kept while it grows, and
-- of all its indexes only that of the key is in this order.

CREATE OR REPLACE FUNCTION require_unarchived(project text, begun text[]) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (
        SELECT FROM unnest(begun) AS b (run_id),
                    LATERAL (SELECT a.project_id, a.run_id
                               FROM run_archives AS a
                              WHERE (a.project_id, a.run_id) >= (project, b.run_id)
                              ORDER BY a.project_id, a.run_id LIMIT 1) AS found
         WHERE found.project_id = project AND found.run_id = b.run_id
    ) THEN
        RAISE EXCEPTION 'a run that was to begin has just been archived' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN true;
END
$$;
