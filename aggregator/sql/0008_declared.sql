-- Version 8: what people declared, as it is in force, and the versions that were.
CREATE TABLE declared_versions (
    number UINTEGER, hash VARCHAR, taken TIMESTAMP, files VARCHAR[], notes VARCHAR[]
);
COMMENT ON TABLE declared_versions IS
    'each version of the declarations that came into force; the highest number is in force; hash is of its files';
CREATE TABLE declared_files (number UINTEGER, file VARCHAR, text VARCHAR);
COMMENT ON TABLE declared_files IS
    'contents of the files of the last versions; after a restart with an invalid file the last valid version is read from here';
CREATE TABLE declared_places (
    host VARCHAR, field VARCHAR, value VARCHAR, source VARCHAR, said_at VARCHAR, counts BOOLEAN
);
COMMENT ON TABLE declared_places IS
    'locations of each host by source: file, topograph, label (of the agent) or hardware; counts: this source is used';
CREATE TABLE declared_windows (
    hosts VARCHAR, begins TIMESTAMP, ends TIMESTAMP, who VARCHAR, why VARCHAR, said_at VARCHAR
);
COMMENT ON TABLE declared_windows IS 'maintenance windows in force; UTC';
CREATE TABLE declared_overrides (
    what VARCHAR, hosts VARCHAR, since TIMESTAMP, until TIMESTAMP, who VARCHAR, why VARCHAR,
    said_at VARCHAR
);
COMMENT ON TABLE declared_overrides IS
    'noise: on which hosts, until when, and why; since is NULL for any earlier time; UTC';
CREATE TABLE declared_expected (
    name VARCHAR, model VARCHAR, hosts VARCHAR, item VARCHAR, value VARCHAR, tells VARCHAR,
    said_at VARCHAR
);
COMMENT ON TABLE declared_expected IS 'what hosts must have, by the model of their GPUs or by name';
CREATE TABLE declared_thresholds (
    name VARCHAR, value DOUBLE, default_value DOUBLE, low DOUBLE, high DOUBLE, unit VARCHAR,
    tells VARCHAR
);
COMMENT ON TABLE declared_thresholds IS 'thresholds of rules: as declared, else the default';
