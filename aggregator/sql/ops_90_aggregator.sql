-- The aggregator itself: how it is now, and how it came to that.
CREATE OR REPLACE VIEW ops.aggregator AS
SELECT
    figure, arg_max(value, time) AS value, min(value) AS least_last_hour,
    max(value) AS most_last_hour, max(time) AS time,
    greatest(0, date_diff('millisecond', max(time), ops.taken())) / 1000.0 AS age_seconds,
    any_value(description) AS description
FROM main.own_health
WHERE time > least((SELECT max(time) FROM main.own_health), ops.taken()) - INTERVAL 1 HOUR AND time <= ops.taken()
GROUP BY figure ORDER BY figure;
COMMENT ON VIEW ops.aggregator IS
    'the aggregator''s latest metrics about itself, and their range within the hour before: FROM ops.aggregator';

CREATE OR REPLACE MACRO ops.aggregator_history(figure_name) AS TABLE
SELECT
    time, value,
    CASE WHEN value >= lag(value) OVER (ORDER BY time)
        THEN (value - lag(value) OVER (ORDER BY time))
            / nullif(date_diff('millisecond', lag(time) OVER (ORDER BY time), time) / 1000.0, 0)
    END AS rise_per_second
FROM main.own_health WHERE figure = figure_name ORDER BY time;
COMMENT ON MACRO TABLE ops.aggregator_history IS
    'a metric of the aggregator over time, and how fast it rises: FROM ops.aggregator_history(''lag_seconds'')';
