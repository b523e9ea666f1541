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
    'each host as judged, with what it was computed from: when it changed, and every 5 minutes. hazard_per_hour = exp(log_hazard_base + list_sum(log_hazard_deltas)), score = exp(-hazard_per_hour * horizon_seconds / 3600)';
COMMENT ON COLUMN scores.hazard_model IS 'which model the hazard is of: `trained`, the end of its data, and the first 8 of sha256(models.model); prior: rates of the public record, none was trained; NULL: of before version 9';
COMMENT ON COLUMN scores.log_hazard_base IS 'ln(hazard per hour) with no evidence';
COMMENT ON COLUMN scores.log_hazard_deltas IS 'what each piece of evidence added to it, in the order in which they were added';
COMMENT ON COLUMN scores.hazard_spread IS 'factor up and down of the hazard''s 90 % interval';
COMMENT ON COLUMN scores.measured_speed IS 'of its slowest computing GPU against its peers; NULL where none computed';
COMMENT ON COLUMN scores.speed_error IS 'standard error of measured_speed';
COMMENT ON COLUMN scores.relative_speed_factors IS 'of each piece of evidence; those below 1 cost speed';
COMMENT ON COLUMN scores.features IS 'what a model is told (returned_*, failed_before, faults_*d), and what is kept beside it for models to come; NULL where something was not known';
