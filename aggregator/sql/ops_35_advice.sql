-- What was advised, decided and what came of it. `ops.advisories` is another thing: what the policy recommends for
-- what stands now, decided by nobody.
CREATE OR REPLACE VIEW ops.advice AS
SELECT
    advisory, subject, action, then_action, scope, state, state_message, waiting_gpu_hours,
    acting_gpu_hours, act_by, message, reason, basis, confidence, owner, proposed, expires,
    time AS changed, hosts, devices, job, count, arithmetic, hazard_per_hour, shadow
FROM main.advisories
QUALIFY row_number() OVER (PARTITION BY advisory ORDER BY revision DESC) = 1
ORDER BY state NOT IN ('PROPOSED', 'ACCEPTED', 'DEFERRED'), proposed DESC, advisory;
COMMENT ON VIEW ops.advice IS
    'the current state of every advisory, open ones first, with its price and how that is computed: SELECT advisory, subject, action, state, waiting_gpu_hours, acting_gpu_hours FROM ops.advice';

CREATE OR REPLACE VIEW ops.advice_history AS
SELECT time, number, kind, advisory, host, message, body, shadow
FROM main.advice_decisions ORDER BY time DESC, number DESC;
COMMENT ON VIEW ops.advice_history IS
    'every decision about advice with its reason, newest first; HeldBack: needed, but not advised: SELECT time, kind, advisory, host, message FROM ops.advice_history';

-- Of a month up to the last decision: advisories are kept for longer than what was held back.
CREATE OR REPLACE VIEW ops.advice_shadow AS
SELECT
    action, reason, NULL AS held_back, count(*) AS advisories, count(DISTINCT subject) AS subjects,
    sum(waiting_gpu_hours) AS waiting_gpu_hours, sum(acting_gpu_hours) AS acting_gpu_hours,
    min(proposed) AS first, max(proposed) AS last
FROM ops.advice WHERE shadow AND changed > (SELECT max(time) FROM main.advice_decisions) - INTERVAL 30 DAY
GROUP BY action, reason
UNION ALL
SELECT
    -- By the numbers of `advisories/advisory.py`, from 1.
    [
        'AVOID', 'DRAIN_AFTER_JOB', 'DRAIN_AT_CHECKPOINT', 'EVICT_NOW', 'RESET_GPU', 'REBOOT', 'RETURN_TO_SERVICE', 'RUN_DIAGNOSTIC',
        'CAP_POWER', 'DRAIN_P2P', 'DRAIN_AND_RESET', 'RECOVER_IMEX_DOMAIN', 'INSPECT'
    ][(body ->> 'action')::INTEGER] AS action,
    NULL, message, 0, count(DISTINCT host), NULL, NULL, min(time), max(time)
FROM main.advice_decisions WHERE shadow AND kind = 'HeldBack' AND time > (SELECT max(time) FROM main.advice_decisions) - INTERVAL 30 DAY
GROUP BY ALL
ORDER BY held_back NULLS FIRST, advisories DESC, subjects DESC, action, reason;
COMMENT ON VIEW ops.advice_shadow IS
    'what would have been advised in shadow mode (advice_shadow) within the last 30 days, and at what price; then what limits or price held back, and why: FROM ops.advice_shadow';

CREATE OR REPLACE VIEW ops.outcomes AS
SELECT
    o.time, o.outcome, o.advisory, a.action, a.subject, o.followed, o.interrupted, o.blamed_host,
    o.end_reason, o.lost_gpu_hours, a.waiting_gpu_hours, a.acting_gpu_hours,
    o.lost_gpu_hours - least(a.waiting_gpu_hours, a.acting_gpu_hours) AS regret_gpu_hours,
    o.job, o.hosts, o.started, o.ended, o.reporter, o.host_hours, o.expected_interruptions, o.decision, o.plan_option,
    o.throughput, o.queue_seconds, o.domains_spanned
FROM main.outcomes AS o LEFT JOIN ops.advice AS a USING (advisory)
ORDER BY o.time DESC, o.outcome;
COMMENT ON VIEW ops.outcomes IS
    'what happened after advice: followed or not, its cost, and regret: how much more it cost than the cheaper of acting and waiting was predicted to: SELECT advisory, followed, interrupted, regret_gpu_hours FROM ops.outcomes';

-- As judging has it (`aggregator/scoring/calibration.py`): a row for each hazard that factors are told of.
CREATE OR REPLACE VIEW ops.hazard_calibration AS
SELECT
    outcomes, host_hours, interruptions, expected, factor, hazard_per_hour, interruptions_counted,
    expected_counted, time
FROM main.hazard_calibration ORDER BY hazard_per_hour;
COMMENT ON VIEW ops.hazard_calibration IS
    'reported interruptions against those that scores had expected, by hazard, and the same weighted by age; factor: by how much hazards were too small, by which they are now multiplied: FROM ops.hazard_calibration';

CREATE OR REPLACE VIEW ops.unavailable AS
SELECT u.host, u.who, u.why, u.since, u.until, s.state
FROM main.unavailable AS u LEFT JOIN ops.scores_now AS s USING (host)
WHERE u.until > ops.taken() ORDER BY u.until, u.host;
COMMENT ON VIEW ops.unavailable IS
    'hosts that a scheduler or a person took out and reported: limits of advice count them: FROM ops.unavailable';

CREATE OR REPLACE VIEW ops.gangs AS
SELECT
    workload, len(hosts) AS hosts_count, CASE WHEN gpus > 0 THEN gpus END AS gpus,
    CASE WHEN checkpoint_seconds > 0 THEN checkpoint_seconds END AS checkpoint_seconds,
    reporter, time AS reported, until, hosts
FROM main.gangs WHERE until > ops.taken() ORDER BY len(hosts) DESC, workload;
COMMENT ON VIEW ops.gangs IS
    'running gangs and their checkpoint intervals, as schedulers report them; ops.jobs shows what agents see: SELECT workload, hosts_count, checkpoint_seconds, until FROM ops.gangs';
