-- Nothing to do: here no table is locked by itself.
SELECT 1;
