-- A run may leave for the archive while a statement that begins one with the same id is on its way: its row is gone then, and where it
-- is now came too late to be seen by that statement. A function sees what was committed until it is called. What it refuses is to be
-- tried again (40001), and finds the archive.

CREATE FUNCTION require_unarchived(project text, begun text[]) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT FROM run_archives AS a WHERE a.project_id = project AND a.run_id = ANY (begun)) THEN
        RAISE EXCEPTION 'a run that was to begin has just been archived' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN true;
END
$$;
