-- Version 21: what people declared of costs and tenants, as it is in force.
CREATE TABLE declared_costs (
    hosts VARCHAR, price_per_gpu_hour DOUBLE, preemptions_per_hour DOUBLE, said_at VARCHAR
);
COMMENT ON TABLE declared_costs IS
    'cost of GPUs of hosts, and preemption rate of spot hosts; NULL: not in the entry; 0 preemptions: declared not to be spot';
CREATE TABLE declared_tenants (
    tenant VARCHAR, gpu_hours_per_delay_hour DOUBLE, gpu_hours_per_currency_unit DOUBLE,
    gpu_hours_per_stranded_gpu_hour DOUBLE
);
COMMENT ON TABLE declared_tenants IS
    'exchange rates that convert a tenant''s delay, money and stranded GPUs to GPU-hours; NULL: not declared';
