-- Version 12: which state a piece of evidence puts its GPU in, so that each GPU has its own in SQL, too.
ALTER TABLE evidence ADD COLUMN gpu_state VARCHAR;
COMMENT ON COLUMN evidence.gpu_state IS 'the state of its GPU, if this evidence has the reason of that state; HEALTHY: other evidence has it, or none; NULL: not of a GPU with readings, or from before version 12';
