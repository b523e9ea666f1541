-- Version 13: hazards of independent faults add. What each piece of evidence adds per hour, which fault several devices share,
-- and by how much the interval is wider for what is not known of causes. A host's speed is against a typical host.
ALTER TABLE evidence ADD COLUMN hazard_delta DOUBLE;
ALTER TABLE evidence ADD COLUMN shared_count INTEGER;
ALTER TABLE scores ADD COLUMN log_hazard_one_cause DOUBLE;
ALTER TABLE scores ADD COLUMN log_hazard_own_causes DOUBLE;
COMMENT ON COLUMN evidence.hazard_delta IS 'what it adds to the hazard per hour: without its fault the hazard is lower by that; NULL: of before version 13';
COMMENT ON COLUMN evidence.log_hazard_delta IS 'what it added to ln(hazard), in the order of scores.log_hazard_deltas';
COMMENT ON COLUMN evidence.shared_count IS 'how many devices of the host show this one fault: of several it is what they share, and none of theirs';
COMMENT ON COLUMN scores.log_hazard_one_cause IS 'what the interval''s lower end of ln(hazard) is lower by: all symptoms may have one cause; NULL: of before version 13';
COMMENT ON COLUMN scores.log_hazard_own_causes IS 'what the interval''s upper end of ln(hazard) is higher by: devices that show the same may each have a cause of their own';
COMMENT ON COLUMN scores.measured_speed IS 'of its slowest computing GPU, against the slowest of a typical host (of before version 13: against the median GPU); NULL where none computed';
