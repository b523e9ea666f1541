-- Version 9: what a score was computed from, so that it computes again from its row; intervals of the speed.
ALTER TABLE scores ADD COLUMN relative_speed_lower DOUBLE;
ALTER TABLE scores ADD COLUMN relative_speed_upper DOUBLE;
ALTER TABLE scores ADD COLUMN hazard_model VARCHAR;
ALTER TABLE scores ADD COLUMN log_hazard_base DOUBLE;
ALTER TABLE scores ADD COLUMN log_hazard_deltas DOUBLE[];
ALTER TABLE scores ADD COLUMN hazard_spread DOUBLE;
ALTER TABLE scores ADD COLUMN measured_speed DOUBLE;
ALTER TABLE scores ADD COLUMN speed_error DOUBLE;
ALTER TABLE scores ADD COLUMN relative_speed_factors DOUBLE[];
ALTER TABLE scores ADD COLUMN features MAP(VARCHAR, DOUBLE);
COMMENT ON TABLE scores IS
    'scores of each host with their inputs: on change, and every 5 minutes. hazard_per_hour = exp(log_hazard_base + list_sum(log_hazard_deltas)), score = exp(-hazard_per_hour * horizon_seconds / 3600)';
COMMENT ON COLUMN scores.hazard_model IS 'model of the hazard: `trained`, the end of its data, and the first 8 of sha256(models.model); prior: published rates, because no model is trained; NULL: from before version 9';
COMMENT ON COLUMN scores.log_hazard_base IS 'ln(hazard per hour) with no evidence';
COMMENT ON COLUMN scores.log_hazard_deltas IS 'what each piece of evidence added to it, in order';
COMMENT ON COLUMN scores.hazard_spread IS 'factor up and down of the hazard''s 90 % interval';
COMMENT ON COLUMN scores.measured_speed IS 'speed of its slowest computing GPU against its peers; NULL if none computed';
COMMENT ON COLUMN scores.speed_error IS 'standard error of measured_speed';
COMMENT ON COLUMN scores.relative_speed_factors IS 'speed factor of each piece of evidence; those below 1 cost speed';
COMMENT ON COLUMN scores.features IS 'inputs of a model (returned_*, failed_before, faults_*d), and others kept for later models; NULL if unknown';
