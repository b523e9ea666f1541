-- Where parts have been, for the live file and for the operators' file: both have the table `parts`.
CREATE SCHEMA IF NOT EXISTS history;
CREATE OR REPLACE MACRO history.by_part(part) AS TABLE
SELECT host, slot, kind, first_seen, last_seen, present, device
FROM main.parts WHERE ops.is_part(device, part) ORDER BY first_seen, last_seen;
COMMENT ON MACRO TABLE history.by_part IS
    'the hosts and slots that a part was in, first to last (the beginning of its name is enough): SELECT host, slot, last_seen, present FROM history.by_part(''GPU-3d4c4be0'')';

CREATE OR REPLACE MACRO history.by_slot(host_name, slot_name) AS TABLE
SELECT device, kind, first_seen, last_seen, present
FROM main.parts WHERE host = host_name AND slot = slot_name ORDER BY first_seen, last_seen;
COMMENT ON MACRO TABLE history.by_slot IS
    'the parts that were in a slot of a host: SELECT left(device, 12) AS gpu, last_seen, present FROM history.by_slot(''sim-002'', ''0000:43:00.0'')';

CREATE OR REPLACE VIEW history.moved AS
SELECT kind, device, count(*) AS places_count, list(host || ' ' || slot ORDER BY first_seen) AS places
FROM main.parts GROUP BY kind, device HAVING count(*) > 1 ORDER BY device;
COMMENT ON VIEW history.moved IS 'parts that were in more than one place: FROM history.moved';

CREATE OR REPLACE MACRO history.names_of(host_name) AS TABLE
SELECT o.host, count(DISTINCT o.device) AS parts_count, min(o.first_seen) AS first_seen,
    max(o.last_seen) AS last_seen
FROM main.parts AS p JOIN main.parts AS o USING (kind, device, slot)
WHERE p.host = host_name GROUP BY o.host ORDER BY first_seen;
COMMENT ON MACRO TABLE history.names_of IS
    'names of hosts with the same parts in the same slots, such as of a renamed host: FROM history.names_of(''sim-000'')';
