-- Version 14: outcomes are counted by hazard. Those of before say nothing of it, and have no part in any factor.
ALTER TABLE outcomes ADD COLUMN expected_by_hazard DOUBLE[];
COMMENT ON COLUMN outcomes.expected_by_hazard IS
    'expected_interruptions by the hazard of its hosts at that time: about 0.0003, 0.003, 0.03 and 0.3 an hour; NULL: of before version 14, or its hosts were not scored';
ALTER TABLE outcomes ADD COLUMN interruptions_by_hazard DOUBLE[];
COMMENT ON COLUMN outcomes.interruptions_by_hazard IS
    'the interruption by the same: of the blamed host when it came, else of all its hosts; zero where that was not scored, or was UNHEALTHY when the job began';
CREATE TABLE hazard_calibration (
    time TIMESTAMP, hazard_per_hour DOUBLE, outcomes DOUBLE, host_hours DOUBLE, interruptions DOUBLE,
    expected DOUBLE, interruptions_counted DOUBLE, expected_counted DOUBLE, factor DOUBLE
);
COMMENT ON TABLE hazard_calibration IS
    'what outcomes say of hosts of about such a hazard, and by what it is multiplied, as judging has it since then';
