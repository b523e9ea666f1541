-- Version 14: outcomes are counted by hazard. Those of before say nothing of it, and have no part in any factor.
ALTER TABLE outcomes ADD COLUMN expected_by_hazard DOUBLE[];
COMMENT ON COLUMN outcomes.expected_by_hazard IS
    'expected_interruptions by the hazard of its hosts at that time: about 0.0003, 0.003, 0.03 and 0.3 an hour; NULL: from before version 14, or its hosts were not scored';
ALTER TABLE outcomes ADD COLUMN interruptions_by_hazard DOUBLE[];
COMMENT ON COLUMN outcomes.interruptions_by_hazard IS
    'the interruption by the same hazards: of the blamed host at that time, else of all its hosts; zero for a host that was not scored, or was UNHEALTHY when the job began';
CREATE TABLE hazard_calibration (
    time TIMESTAMP, hazard_per_hour DOUBLE, outcomes DOUBLE, host_hours DOUBLE, interruptions DOUBLE,
    expected DOUBLE, interruptions_counted DOUBLE, expected_counted DOUBLE, factor DOUBLE
);
COMMENT ON TABLE hazard_calibration IS
    'calibration by outcomes: for hosts of about this hazard, the factor that judging uses from then on';
