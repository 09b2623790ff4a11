-- What earlier runs of a version took is asked for by whoever looks at one, however many runs there are.

CREATE INDEX run_state_completed ON run_state (project_id, workflow, workflow_version, ended_at, run_id)
    WHERE status = 'completed';
