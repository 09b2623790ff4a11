-- Nothing to do: here one transaction writes at a time, and sees all that others have written before it.
SELECT 1;
