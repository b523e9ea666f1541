-- Version 11: what was measured of each host at the beginning of each day, for longer than its scores are kept: a
-- hazard is learned from months. Columns are those of `scores.features`, in their units.
CREATE TABLE host_days (
    host VARCHAR, day DATE, time TIMESTAMP, corrected_errors DOUBLE, remaps_waiting DOUBLE, link_errors DOUBLE,
    link_downs DOUBLE, speed DOUBLE, headroom_celsius DOUBLE, silent_seconds DOUBLE, gpus_unread DOUBLE,
    faults_of_others DOUBLE, gpus DOUBLE
);
COMMENT ON TABLE host_days IS
    'measurements of each host at its first score of each UTC day (time), within the hour after 00:00, for 400 days: training data of models besides the faults; NULL: unknown';
