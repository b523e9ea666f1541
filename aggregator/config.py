"""The aggregator's settings, and the parsing of listen addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..contract.otlp_logs import check_url
from ..contract.settings import SettingsError, constant, setting
from ..contract.tls import is_loopback
from .principal import check_name_patterns, check_trust_domain

#: Values of `listen_scores`: the next port after `listen`; no score process.
SCORES_AUTO, SCORES_OFF = "auto", "off"
PORT_MAX = 65535

_ADDRESS_PORT = "address:port, such as"

#: Shorter periods cost more than a newer operators' file is worth.
OPS_SECONDS_MIN = 0.5
#: Connections for callers other than agents.
CONNECTIONS_BESIDE_HOSTS = 10_000
#: Bytes of an agent's messages for each allowed row of readings.
BYTES_PER_ROW = 512

#: Headings of `--help-settings` and of docs/settings.md -> settings.
SETTINGS_BY_TASK: Mapping[str, tuple[str, ...]] = {
    "addresses, and the data folder": ("listen", "listen_scores", "listen_beyond_loopback", "data"),
    "logins, and limits of a caller (docs/security.md)": (
        "tls_certificate_file",
        "tls_key_file",
        "tls_client_ca_file",
        "listen_tokens",
        "certificate_names",
        "trust_domain",
        "connections_per_caller_max",
        "calls_per_caller_max",
    ),
    "size of the fleet, and its return after an outage (docs/architecture.md)": (
        "hosts_max",
        "agent_rows_per_second_max",
        "reconnects_per_second",
        "backlog_frames_per_second",
    ),
    "retention (docs/history.md)": (
        "history_on",
        "history_seconds",
        "retention_hours",
        "segments_hours",
        "segments_bytes_max",
        "rollups_1m_days",
        "rollups_1h_days",
        "history_days",
        "decisions_days",
        "disk_free_share_min",
        "backup_wal_bytes_max",
    ),
    "pace of the service (docs/performance.md)": (
        "judge_seconds",
        "commit_seconds",
        "queue_bytes_max",
        "ops_seconds",
    ),
    "SQL queries (docs/sql.md)": (
        "query_seconds",
        "query_running_max",
        "query_memory_bytes_max",
    ),
    "declarations about hosts (docs/declared.md)": ("declared",),
    "advice, and enforcing on hosts (docs/advice.md)": (
        "advice_shadow",
        "advice_rack_hosts_max",
        "advice_job_hosts_max",
        "advice_cluster_share_max",
        "advice_hosts_per_hour_max",
        "advice_verify_seconds",
        "advice_probation_seconds",
        "permit_unhealthy_share_max",
    ),
    "monitoring (docs/operations.md)": ("metrics_listen", "metrics_hosts", "otlp_logs"),
}


def parse_listen(
    text: str, *, beyond_loopback: bool, name: str = "listen", otherwise: str = ""
) -> tuple[str, int]:
    """Return (address, port). Raises SettingsError; its message names *otherwise* as also valid."""
    address, port = _address_port(text)
    if not port:
        raise SettingsError(
            f"{name} = {text!r}: expected {_ADDRESS_PORT} 127.0.0.1:7600{otherwise}"
        )
    if not is_loopback(address) and not beyond_loopback:
        raise SettingsError(
            f"{name} = {text!r}: {address or 'no address'} is not loopback, and without TLS all "
            "traffic would be unencrypted. Set tls_certificate_file and tls_key_file (`gangline "
            "admin cert` creates them), listen on 127.0.0.1, or use --set "
            "listen_beyond_loopback=true if the network is trusted"
        )
    return address, int(port)


def _address_port(text: str) -> tuple[str, str]:
    """Return (address, port) of *text*; the port is "" if it is invalid."""
    address, _, port = text.rpartition(":") if ":" in text else ("", "", "")
    digits = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX
    return address, port if digits else ""


def check_metrics(text: str) -> None:
    """Raise SettingsError unless *text* is address:port or empty."""
    if text and not _address_port(text)[1]:
        raise SettingsError(f"{_ADDRESS_PORT} 127.0.0.1:9477, or nothing for none")


def check_ops_seconds(seconds: float) -> None:
    """Raise ValueError unless *seconds* is a valid period of the operators' file, or 0 (off)."""
    if 0 < seconds < OPS_SECONDS_MIN:
        raise ValueError(f"0 (no file) or at least {OPS_SECONDS_MIN}")


@dataclass(frozen=True)
class AggregatorConfig:
    """Every setting of the service, with its unit. Loaded by `contract.settings.load`."""

    listen: str = setting("127.0.0.1:7600", "address:port; port 0 takes any free one")
    listen_beyond_loopback: bool = setting(
        False, "allow plain text on an address that other machines reach; with TLS it is not needed"
    )
    data: Path = setting(  # noqa: RUF009 - a Path is immutable
        Path("var/aggregator"), description="folder of the store, made if missing"
    )
    commit_seconds: float = setting(
        2.0,
        "longest time between two commits while rows wait; two and a half times as long if few "
        "rows wait",
        low=0.01,
        high=60,
    )
    commit_rows: int = constant(122_880, "a full row group of DuckDB is cheapest per row")
    queue_bytes_max: int = setting(
        256 << 20,
        "bytes of readings in memory that wait for a commit; at the limit the aggregator stops "
        "reading streams",
        low=1 << 20,
    )
    retention_hours: int = setting(
        24,
        "hours that readings stay in the live file if they cannot be moved to Parquet",
        low=1,
        high=24 * 366,
    )
    history_days: int = setting(
        14,
        "days that scores, evidence, events and cleared findings are kept; advice is kept for at "
        "least a month, advisories for 400 days",
        low=1,
        high=3660,
    )
    decisions_days: int = setting(
        30,
        "days that decisions (plans, evaluations, resizes, recoveries) are kept",
        low=1,
        high=3660,
    )
    decisions_bytes_max: int = constant(
        256 << 20, "decisions_days limits decisions; 256 MiB is a safeguard"
    )
    decision_inputs_bytes_max: int = constant(1 << 30, "the inputs of decisions take at most 1 GiB")
    credit_frames: int = constant(64, "the aggregator adapts the credit to its load")
    hosts_max: int = setting(20_000, "maximum number of hosts; further hosts are rejected", low=1)
    ops_seconds: float = setting(
        15.0,
        "a query has the operators' file written anew if it is older; the file that the query reads "
        "is older under load, because a query waits a few seconds at most and files that take long "
        "are written every 15 to 30 s; gangline sql prints the age. Without queries it is written "
        "eight times less often; 0: it is never written, and gangline sql, explain and Query do "
        "not work",
        low=0,
        high=3600,
        check=check_ops_seconds,
    )
    ops_rows_max: int = constant(
        200_000, "the operators' file covers fewer minutes if a table has more rows"
    )
    permit_unhealthy_share_max: float = setting(
        0.05,
        "if a greater share of the hosts (and more than one) is UNHEALTHY, the permit to enforce "
        "is withheld",
        low=0.0,
        high=1.0,
    )
    judge_seconds: float = setting(
        1.0, "time between two judgments of all hosts", low=0.05, high=60
    )
    # Late frames and agents that come back
    backlog_frames_per_second: int = setting(
        2,
        "late frames accepted per host, or two for each live frame; other late frames wait, live "
        "frames do not",
        low=1,
        high=10_000,
    )
    reconnects_per_second: int = setting(
        200,
        "registrations accepted per second; beyond the limit each agent is told when to retry",
        low=1,
        high=100_000,
    )

    # access
    tls_certificate_file: str = setting(
        "", "the server's certificate with its chain, PEM; empty: plain text"
    )
    tls_key_file: str = setting("", "its key, PEM, not encrypted")
    tls_client_ca_file: str = setting(
        "",
        "the CA of callers' certificates, PEM; every caller on `listen` must then present one; "
        "empty: callers log in with a token",
    )
    listen_tokens: str = setting(
        "",
        "address:port of a second listener, for callers that have a token instead of a "
        "certificate; empty: none",
    )
    certificate_names: tuple[str, ...] = setting(
        (),
        "ROLE=PATTERN with {name}, for certificates without a spiffe:// name, for example "
        "agent={name}.gpu.example",
        check=check_name_patterns,
    )
    trust_domain: str = setting(
        "",
        "the trust domain of spiffe:// names; empty: any domain that the CA signs",
        check=check_trust_domain,
    )
    access_look_seconds: float = constant(2.0, "certificates and tokens are checked every 2 s")
    login_seconds_max: float = constant(30.0, "a connection has 30 s to log in")
    connections_max: int = constant(0, "it is computed from hosts_max")
    connections_unknown_max: int = constant(1024, "it bounds connections without a login")
    connections_unknown_per_address_max: int = constant(
        128, "it bounds connections without a login"
    )
    connections_per_caller_max: int = setting(
        8, "maximum number of connections per login; beyond the limit the oldest are closed", low=1
    )
    calls_per_caller_max: int = setting(
        64, "concurrent calls per login, including streams; further calls are refused", low=1
    )
    streams_per_connection_max: int = constant(100, "calls_per_caller_max limits calls")
    message_bytes_max: int = constant(4 << 20, "the largest valid message has 4 MiB")
    agent_calls_per_minute_max: float = constant(600.0, "an agent makes a few calls an hour")
    agent_frames_per_second_max: float = constant(
        20.0, "an agent sends a frame a second, and 20 a second after an outage"
    )
    agent_bytes_per_second_max: float = constant(
        0.0, "it is computed from agent_rows_per_second_max"
    )
    agent_rows_per_second_max: float = setting(
        4000.0, "rows of readings in an agent's frames; further frames are read later", low=100
    )
    # own health
    metrics_listen: str = setting(
        "",
        "address:port of /metrics, the aggregator's own metrics for Prometheus, in plain HTTP "
        "without a login; empty: off",
        check=check_metrics,
    )
    otlp_logs: str = setting(
        "",
        "address of an OpenTelemetry collector, for example http://127.0.0.1:4318, which receives "
        "findings and advice as log records; empty: off",
        check=check_url,
    )
    metrics_hosts: bool = setting(
        False,
        "/metrics also shows state, score, hazard, relative speed, silence and open advice of each "
        "host by name: at most six series per host",
    )

    # query: SQL through the service
    query_seconds: float = setting(
        10.0, "a query through the service is stopped after this time", low=0.1, high=3600
    )
    query_running_max: int = setting(
        4, "concurrent queries; a further query is rejected and may be retried", low=1, high=64
    )
    query_running_per_caller_max: int = constant(0, "it is half of query_running_max")
    query_memory_bytes_max: int = setting(
        2 << 30,
        "memory per query; a query that needs more fails with an error message",
        low=128 << 20,
    )
    query_threads: int = constant(2, "two threads leave the service its cores")
    query_rows_max: int = constant(
        1_000_000,
        "query_seconds and query_memory_bytes_max limit a query; an answer has at most a million rows",
    )
    query_bytes_max: int = constant(
        256 << 20,
        "query_seconds and query_memory_bytes_max limit a query; an answer has at most 256 MiB",
    )
    query_log_bytes_max: int = constant(16 << 20, "four files of 16 MiB are kept")
    # history
    history_on: bool = setting(
        True,
        "readings move from the live file to Parquet and are rolled up, once their five minutes "
        "are complete",
    )
    history_seconds: float = setting(
        5.0, "time between two checks for readings to move, roll up or delete", low=0.1, high=3600
    )
    history_rows_max: int = constant(122_880, "it is a batch size")
    history_memory_bytes_max: int = constant(384 << 20, "a larger sort uses the disk")
    live_bytes_max: int = constant(64 << 30, "disk_free_share_min protects the disk")
    segments_hours: int = setting(
        72,
        "hours that readings are kept as Parquet, counted from when they were received",
        low=1,
        high=24 * 3660,
    )
    segments_bytes_max: int = setting(
        1 << 40,
        "maximum bytes of readings in Parquet; beyond the limit the oldest are deleted",
        low=1 << 20,
        high=1 << 60,
    )
    rollups_1m_days: int = setting(14, "days that rollups by minute are kept", low=1, high=3660)
    rollups_1m_bytes_max: int = constant(
        1 << 40, "rollups_1m_days and disk_free_share_min limit the history"
    )
    rollups_1h_days: int = setting(400, "days that rollups by hour are kept", low=1, high=36_600)
    rollups_1h_bytes_max: int = constant(
        1 << 40, "rollups_1h_days and disk_free_share_min limit the history"
    )
    disk_free_bytes_min: int = constant(
        20 << 30, "disk_free_share_min sets the reserve, which is at most 20 GiB"
    )
    disk_free_share_min: float = setting(
        0.05, "the same, as a share of the disk", low=0.0, high=0.9
    )

    # backup
    backup_wal_bytes_max: int = setting(
        2 << 30,
        "a backup fails with an error message if more data than this arrives while it copies the "
        "live file",
        low=1 << 20,
    )

    # declarations about hosts (docs/declared.md)
    declared: str = setting(
        "",
        "a folder of .toml, .csv and .json files, or one such file, with places, expected "
        "hardware, maintenance, overrides, thresholds; reloaded when it changes and on SIGHUP; "
        "empty: none",
    )

    # advice
    advice_shadow: bool = setting(
        False,
        "shadow mode: advice is computed and stored but not issued; ops.advice_shadow reports it",
    )
    advice_rack_hosts_max: int = setting(
        2,
        "hosts of a rack that may be out of service at once, no matter who took them out",
        low=1,
        high=10_000,
    )
    advice_job_hosts_max: int = setting(
        2, "hosts of a job that may be out of service at once", low=1, high=10_000
    )
    advice_cluster_share_max: float = setting(
        0.02,
        "share of all hosts that may be out of service at once; one host is always allowed",
        low=0.0,
        high=1.0,
    )
    advice_hosts_per_hour_max: int = setting(
        8,
        "hosts that advice may take out of service in an hour; beyond the limit a circuit breaker "
        "opens",
        low=1,
        high=10_000,
    )
    advice_proposal_seconds: float = constant(3600.0, "advice that still holds is proposed again")
    advice_lease_seconds: float = constant(600.0, "an executor chooses the lease when it accepts")
    advice_hold_seconds: float = constant(
        7200.0, "it bounds the effects of an aggregator that has died"
    )
    advice_verify_seconds: float = setting(
        900.0,
        "a host must be healthy for this time before its return is proposed",
        low=10,
        high=604_800,
    )
    advice_probation_seconds: float = setting(
        604_800.0,
        "a host that returned to service is on probation for this time",
        low=60,
        high=31_536_000,
    )
    outcomes_half_life_days: float = constant(
        90.0,
        "a shorter time is noise for a small fleet, a longer one outlives a generation of hosts",
    )

    # scores and plans: a separate process for callers that poll
    listen_scores: str = setting(
        SCORES_AUTO,
        "address:port of the score process, which also serves ScoreService, PlacementService, "
        "RecoveryService and InterferenceService, undelayed by judging and ingest; TLS as on `listen`; auto: the port "
        "after that of `listen`; off or empty: no such process",
    )

    @property
    def connection_limit(self) -> int:
        """Maximum number of connections to a port."""
        return self.connections_max or self.hosts_max + CONNECTIONS_BESIDE_HOSTS

    @property
    def agent_bytes_limit(self) -> float:
        """Bytes a second of an agent's messages; further messages are read later."""
        return self.agent_bytes_per_second_max or BYTES_PER_ROW * self.agent_rows_per_second_max

    @property
    def caller_queries_limit(self) -> int:
        """Concurrent queries per login, so that others can ask."""
        return self.query_running_per_caller_max or max(1, self.query_running_max // 2)


def declared_path(config: AggregatorConfig) -> Path | None:
    """Return the path of the declarations; None if unset."""
    return Path(config.declared) if config.declared else None
