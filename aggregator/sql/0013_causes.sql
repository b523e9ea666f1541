-- Version 13: hazards of independent faults add. What each piece of evidence adds per hour, which fault several devices share,
-- and by how much the interval is wider for what is not known of causes. A host's speed is against a typical host.
ALTER TABLE evidence ADD COLUMN hazard_delta DOUBLE;
ALTER TABLE evidence ADD COLUMN shared_count INTEGER;
ALTER TABLE scores ADD COLUMN log_hazard_one_cause DOUBLE;
ALTER TABLE scores ADD COLUMN log_hazard_own_causes DOUBLE;
COMMENT ON COLUMN evidence.hazard_delta IS 'what it adds to the hazard per hour: without its fault the hazard is lower by this; NULL: from before version 13';
COMMENT ON COLUMN evidence.log_hazard_delta IS 'what it added to ln(hazard), in the order of scores.log_hazard_deltas';
COMMENT ON COLUMN evidence.shared_count IS 'how many devices of the host show this one fault; if several, the fault is in what they share';
COMMENT ON COLUMN scores.log_hazard_one_cause IS 'by how much the lower end of ln(hazard) is lower: all symptoms may have one cause; NULL: from before version 13';
COMMENT ON COLUMN scores.log_hazard_own_causes IS 'by how much the upper end of ln(hazard) is higher: devices with the same symptom may have separate causes';
COMMENT ON COLUMN scores.measured_speed IS 'speed of its slowest computing GPU, against the slowest of a typical host (before version 13: against the median GPU); NULL if none computed';
