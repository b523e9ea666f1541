"""Extra data of `gangline run --scenario night`: the fleet of `docs/sql.md` before that night.

`prepare_store` writes a store that no aggregator has open. `declared` returns the operators'
declarations, and `send_scheduler_reports` reports as the night's scheduler. `simulator/night.py`
has the hosts.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration

from ...contract.client.connection import DEADLINE_SECONDS
from ...contract.wire import advisory_pb2, outcome_pb2, recovery_pb2
from ...contract.wire.advisory_pb2_grpc import AdvisoryServiceStub
from ...contract.wire.outcome_pb2_grpc import OutcomeServiceStub
from ...contract.wire.recovery_pb2_grpc import RecoveryServiceStub
from ...contract.wire.telemetry_pb2 import HealthEvent

if TYPE_CHECKING:
    import duckdb
    import grpc

HOSTS = tuple(f"sim-{number:03}" for number in range(8))
#: The GPU whose memory breaks; until yesterday it was in another host. A test compares the UUID
#: with the simulator's.
BROKEN = "GPU-3d4c4be0-fec1-4b1f-b23e-db5faf9ef4e6"
BROKEN_HOST_BEFORE = "sim-002"
BROKEN_SLOT_BEFORE = "0000:43:00.0"
#: The slow host, the dead host, and the host that a scheduler took out.
SLOW, DEAD, OUT = "sim-006", "sim-000", "sim-007"
#: Settings of the aggregator: a host of eight is out, and advice needs a higher limit.
SETTINGS = ("advice_cluster_share_max=1", "advice_rack_hosts_max=8", "advice_job_hosts_max=8")
JOB, GPUS, CHECKPOINT_SECONDS = "123", 64, 1800
SECOND_US, DAY_US = 1_000_000, 86_400_000_000
#: Age of the broken GPU's earlier fault.
EARLIER_FAULT_SECONDS = 20 * 3600
#: Minutes of detection, decision, action and resumption, per reported recovery.
RECOVERY_MINUTES = ((6, 2, 5, 4), (9, 4, 7, 3))

_DECLARED = """time_zone = "UTC"
[[place]]
hosts = ["sim-[000-003]"]
rack = "r1"
power_domain = "pdu-1"
leaf = "leaf-1"
spine = "spine-1"
[[place]]
hosts = ["sim-[004-007]"]
rack = "r2"
power_domain = "pdu-2"
leaf = "leaf-2"
spine = "spine-1"
[[expected]]
name = "8 x H100"
model = "NVIDIA H100*"
gpus = 8
gpu_memory_gigabytes_min = 79
gpu_pcie_width_lanes = 16
nvlinks_per_gpu = 18
rdma_ports = 8
rdma_port_gigabits_per_second = 400
memory_gigabytes_min = 2160
[[maintenance]]
racks = ["r2"]
begin = {window:%Y-%m-%d}T08:00:00
end = {window:%Y-%m-%d}T12:00:00
who = "alice"
why = "new power feed"
[[override]]
hosts = ["sim-[004-007]"]
rule = "net.flaps"
until = {until:%Y-%m-%d}
who = "bob"
why = "the management switch is replaced"
[[override]]
hosts = ["sim-*"]
rule = "hardware.*"
until = {until:%Y-%m-%d}
who = "bob"
why = "modules are on order"
rollout = 0.2
[[cost]]
racks = ["r1"]
price_per_gpu_hour = 2.5
[[cost]]
racks = ["r2"]
price_per_gpu_hour = 1.2
spot = true
preemptions_per_hour = 0.004
[[tenant]]
name = "vision"
gpu_hours_per_delay_hour = 40
gpu_hours_per_currency_unit = 0.4
[thresholds]
"host.cpu_steal_ratio" = 0.2
[[place]]
hosts = ["spare-01"]
rack = "r3"
"""


def declared(now_us: int) -> str:
    """Return the operators' declarations as TOML. *now_us*: Unix time of the night."""
    today = datetime.fromtimestamp(now_us / SECOND_US, UTC).date()
    return _DECLARED.format(window=today + timedelta(days=4), until=today + timedelta(days=16))


def prepare_store(data: Path, now_us: int) -> None:
    """Create the store in the empty folder *data*, with its past. Raises StoreError, OSError."""
    from ..config import AggregatorConfig
    from ..store.journal import StoredEvent
    from ..store.store import Store

    store = Store.open(data, AggregatorConfig(data=data))
    try:
        store.in_transaction(lambda live: put_previous_state(live, now_us))
        at_ns = (now_us - EARLIER_FAULT_SECONDS * SECOND_US) * 1000
        store.append_events([StoredEvent(BROKEN_HOST_BEFORE, at_ns, at_ns, earlier_fault(at_ns))])
    finally:
        store.close(60.0)


def earlier_fault(at_ns: int) -> HealthEvent:
    """Return the broken GPU's fault in its earlier host, at a Unix time."""
    return HealthEvent(
        event_id=f"/gpu.xid/{BROKEN}/{at_ns}", device_kind="gpu", device=BROKEN, name="gpu.xid", code=94, count=1,
        wall_time_ns=at_ns, boottime_ns=1, message="NVRM: Xid (PCI:0000:43:00): 94, Contained memory error",
    )  # fmt: skip


def put_previous_state(live: duckdb.DuckDBPyConnection, now_us: int) -> None:
    """Insert hazard models, the days of a host, and the broken GPU's earlier place."""
    _put_models(live, now_us)
    live.execute(
        # The hottest GPU of the host came nearer to its limit each day, for three days.
        "INSERT INTO host_days (host, day, time, corrected_errors, headroom_celsius) SELECT $2, t::DATE, "
        "t + INTERVAL 3 MINUTE, 0.0, 14.0 + 3 * d FROM (SELECT d, date_trunc('day', make_timestamp($1)) - to_days(d::INT) AS t "
        "FROM range(3) AS r(d))",
        [now_us, SLOW],
    )
    live.execute(
        "INSERT INTO main.parts SELECT 'gpu', $1, $2, $3, t - INTERVAL 30 DAY, t - INTERVAL 19 HOUR, false "
        "FROM (SELECT make_timestamp($4) AS t)",
        [BROKEN, BROKEN_HOST_BEFORE, BROKEN_SLOT_BEFORE, now_us],
    )


def _put_models(live: duckdb.DuckDBPyConnection, now_us: int) -> None:
    """Store a model that was trained a week ago, and a worse model of yesterday."""
    from ..hazard.features import FEATURES
    from ..hazard.model import HazardModel
    from ..hazard.models import TrainingResult, store_model

    nine = datetime.fromtimestamp(now_us / SECOND_US, UTC).replace(
        hour=9, minute=0, second=0, microsecond=0, tzinfo=None
    )
    week, day = (str(nine - timedelta(days=days)) for days in (7, 1))
    model = HazardModel(
        "the store; ranking: made up", False, "all classes", -6.2, (0.9, *[0.0] * (len(FEATURES) - 1)),
        first_time=str((nine - timedelta(days=197)).replace(hour=0)), last_time=week, nodes=len(HOSTS), faults=31,
        metrics={"auc": 0.62, "recall": 0.21, "ece": 0.009}, calibration=((0.01, 0.012), (0.05, 0.043)),
    )  # fmt: skip
    worse = replace(model, last_time=day, faults=32)
    message = "log loss of the last 28 days 0.09120, {} 0.09{}"
    better = TrainingResult(model, True, message.format("the prior of published rates", "340"))
    refused = message.format(f"the one in use (of {week})", "070")
    store_model(live, now_us - 7 * DAY_US, better)
    result = TrainingResult(worse, False, f"{refused}: worse, so the one in use stays")
    store_model(live, now_us - DAY_US, result)


def send_scheduler_reports(channel: grpc.Channel, now_us: int) -> None:
    """Report the night's job, a host that is out, and recoveries. Raises grpc.RpcError."""
    advice: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
    nodes = [f"nodes/{host}" for host in HOSTS]
    gang = advisory_pb2.Gang(
        workload=JOB,
        nodes=nodes,
        gpus_count=GPUS,
        checkpoint_interval=Duration(seconds=CHECKPOINT_SECONDS),
        ttl=Duration(seconds=86_400),
    )
    advice.ReportGangs(
        advisory_pb2.ReportGangsRequest(actor="slurm", gangs=[gang]), timeout=DEADLINE_SECONDS
    )
    out = advisory_pb2.UnavailableNode(
        node=f"nodes/{OUT}", reason="burn-in after a new NIC", ttl=Duration(seconds=86_400)
    )
    advice.ReportUnavailableNodes(
        advisory_pb2.ReportUnavailableNodesRequest(actor="slurm", nodes=[out]),
        timeout=DEADLINE_SECONDS,
    )
    _report_recoveries(channel, now_us)


def report_outcome(channel: grpc.Channel, now_us: int) -> bool:
    """Report a job's end on the dead host once there is advice; return whether it was sent.

    Raises grpc.RpcError.
    """
    advice: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
    outcomes: Any = OutcomeServiceStub(channel)  # type: ignore[no-untyped-call]
    request = advisory_pb2.ListAdvisoriesRequest(node=f"nodes/{DEAD}")
    advisories = advice.ListAdvisories(request, timeout=DEADLINE_SECONDS).advisories
    if not advisories:
        return False
    ended = outcome_pb2.Outcome(
        outcome_id="job-7/1",
        advisory=advisories[0].name,
        workload="job-7",
        nodes=[f"nodes/{DEAD}"],
        interrupted=True,
        blamed_node=f"nodes/{DEAD}",
        end_reason="node failed",
        lost_gpu_hours=12.0,
    )
    ended.start_time.FromMicroseconds(now_us - 3600 * SECOND_US)
    ended.end_time.FromMicroseconds(now_us)
    outcomes.ReportOutcomes(
        outcome_pb2.ReportOutcomesRequest(outcomes=[ended]), timeout=DEADLINE_SECONDS
    )
    return True


def _report_recoveries(channel: grpc.Channel, now_us: int) -> None:
    recovery: Any = RecoveryServiceStub(channel)  # type: ignore[no-untyped-call]
    for number, minutes in enumerate(RECOVERY_MINUTES, 1):
        report = recovery_pb2.ReportRecoveryRequest(
            incident=f"incident-{number}",
            kind=recovery_pb2.RECOVERY_FREE_NODE,
            success=True,
            lost_gpu_hours=40.0 * number,
            workload="job-7",
            note="GPU lost",
        )
        times = [now_us - (7200 - 60 * sum(minutes[:count])) * SECOND_US for count in range(5)]
        names = ("fault_time", "detect_time", "decide_time", "act_time", "resume_time")
        for name, time_us in zip(names, times, strict=True):
            getattr(report, name).FromMicroseconds(time_us)
        recovery.ReportRecovery(report, timeout=DEADLINE_SECONDS)
