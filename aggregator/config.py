"""The aggregator's settings, and the parsing of listen addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..contract.otlp_logs import check_url
from ..contract.settings import SettingsError, setting
from ..contract.tls import is_loopback
from .principal import check_name_patterns, check_trust_domain

#: Values of `listen_scores`: the next port after `listen`; no score process.
SCORES_AUTO, SCORES_OFF = "auto", "off"
PORT_MAX = 65535

_ADDRESS_PORT = "address:port, such as"

#: Shorter periods cost more than a newer operators' file is worth.
OPS_SECONDS_MIN = 0.5


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
    commit_rows: int = setting(
        122_880,
        "the writer commits as soon as this many rows wait; a full row group of DuckDB is cheapest "
        "per row",
        low=1,
        high=1_000_000,
    )
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
    decisions_bytes_max: int = setting(
        256 << 20,
        "bytes of the requests and answers of decisions; beyond the limit the oldest decisions are "
        "deleted",
        low=1 << 20,
        high=1 << 40,
    )
    decision_inputs_bytes_max: int = setting(
        1 << 30,
        "bytes of the stored inputs of decisions; beyond the limit the oldest inputs are deleted, "
        "and their decisions can no longer be replayed; 0: no inputs are kept",
        low=0,
        high=1 << 40,
    )
    credit_frames: int = setting(
        64, "unacknowledged frames that a host may have in flight", low=1, high=4096
    )
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
    ops_rows_max: int = setting(
        200_000,
        "rows of recent readings per table in the operators' file; with more rows it covers fewer "
        "minutes",
        low=1000,
        high=5_000_000,
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
    access_look_seconds: float = setting(
        2.0, "time between two checks of certificates, tokens and connections", low=0.1, high=60
    )
    login_seconds_max: float = setting(
        30.0, "a connection without a login is closed after this time", low=1, high=600
    )
    connections_max: int = setting(
        30_000,
        "maximum number of connections to a port; further connections are refused",
        low=16,
        high=1_000_000,
    )
    connections_unknown_max: int = setting(
        1024,
        "maximum number of connections without a login; beyond the limit the oldest are closed",
        low=1,
    )
    connections_unknown_per_address_max: int = setting(
        128, "maximum number of these per address; beyond the limit the newest are closed", low=1
    )
    connections_per_caller_max: int = setting(
        8, "maximum number of connections per login; beyond the limit the oldest are closed", low=1
    )
    calls_per_caller_max: int = setting(
        64, "concurrent calls per login, including streams; further calls are refused", low=1
    )
    streams_per_connection_max: int = setting(
        100, "concurrent calls per connection; further calls wait", low=1, high=10_000
    )
    message_bytes_max: int = setting(
        4 << 20,
        "maximum size of a message; gRPC rejects longer ones; a frame has at most 1 MiB, a "
        "registration less",
        low=1 << 20,
        high=64 << 20,
    )
    agent_calls_per_minute_max: float = setting(
        600.0,
        "calls of a logged-in agent: registrations, streams, events; a burst may use 20 s of this "
        "rate",
        low=1,
    )
    agent_frames_per_second_max: float = setting(
        20.0, "frames of a logged-in agent; further frames are read later", low=1
    )
    agent_bytes_per_second_max: float = setting(
        float(2 << 20), "bytes of an agent's messages; further messages are read later", low=1 << 16
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
    query_running_per_caller_max: int = setting(
        2,
        "concurrent queries per login; a further query is rejected until one of them ends",
        low=1,
        high=64,
    )
    query_memory_bytes_max: int = setting(
        2 << 30,
        "memory per query; a query that needs more fails with an error message",
        low=128 << 20,
    )
    query_threads: int = setting(2, "threads per query", low=1, high=64)
    query_rows_max: int = setting(
        1_000_000, "rows per answer; a longer answer is truncated, and says so", low=1
    )
    query_bytes_max: int = setting(
        256 << 20, "bytes per answer; a longer answer is truncated, and says so", low=1 << 20
    )
    query_log_bytes_max: int = setting(
        16 << 20,
        "maximum size of queries.log before it is rotated; three older files are kept",
        low=1 << 16,
    )
    # history
    history_on: bool = setting(
        True,
        "readings move from the live file to Parquet and are rolled up, once their five minutes "
        "are complete",
    )
    history_seconds: float = setting(
        5.0, "time between two checks for readings to move, roll up or delete", low=0.1, high=3600
    )
    history_rows_max: int = setting(
        122_880,
        "rows sorted at a time for a Parquet file, fewer for wide tables; each takes 1 to 3 kB of "
        "memory",
        low=1000,
        high=10_000_000,
    )
    history_memory_bytes_max: int = setting(
        384 << 20,
        "memory that DuckDB sorts these rows in; a larger sort spills to disk",
        low=64 << 20,
        high=1 << 40,
    )
    live_bytes_max: int = setting(
        64 << 30,
        "maximum bytes of the live file in use; beyond the limit its oldest five minutes are "
        "dropped",
        low=64 << 20,
        high=1 << 50,
    )
    segments_hours: int = setting(
        72,
        "hours that readings are kept as Parquet, counted from when they were received",
        low=1,
        high=24 * 3660,
    )
    segments_bytes_max: int = setting(
        1 << 40,
        "maximum bytes of these; beyond the limit the oldest are deleted",
        low=1 << 20,
        high=1 << 60,
    )
    rollups_1m_days: int = setting(14, "days that rollups by minute are kept", low=1, high=3660)
    rollups_1m_bytes_max: int = setting(
        1 << 40,
        "maximum bytes of these; beyond the limit the oldest are deleted",
        low=1 << 20,
        high=1 << 60,
    )
    rollups_1h_days: int = setting(400, "days that rollups by hour are kept", low=1, high=36_600)
    rollups_1h_bytes_max: int = setting(
        1 << 40,
        "maximum bytes of these; beyond the limit the oldest are deleted",
        low=1 << 20,
        high=1 << 60,
    )
    disk_free_bytes_min: int = setting(
        20 << 30,
        "with less free space the disk counts as almost full, and the oldest readings are deleted "
        "first; the lesser of this and disk_free_share_min applies",
        low=0,
        high=1 << 50,
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
    advice_proposal_seconds: float = setting(
        3600.0, "unanswered advice expires after this time", low=60, high=86_400
    )
    advice_lease_seconds: float = setting(
        600.0,
        "lease of accepted advice: it ends if its holder does not report for this time",
        low=10,
        high=86_400,
    )
    advice_hold_seconds: float = setting(
        7200.0,
        "effects of advice on a host end after this time, unless renewed",
        low=120,
        high=604_800,
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
    outcomes_half_life_days: float = setting(
        90.0,
        "half-life in days of an outcome that schedulers reported; after 400 days it no longer "
        "counts",
        low=1,
        high=3650,
    )

    # scores and plans: a separate process for callers that poll
    listen_scores: str = setting(
        SCORES_AUTO,
        "address:port of the score process, which also serves ScoreService, PlacementService and "
        "RecoveryService, undelayed by judging and ingest; TLS as on `listen`; auto: the port "
        "after that of `listen`; off or empty: no such process",
    )


def declared_path(config: AggregatorConfig) -> Path | None:
    """Return the path of the declarations; None if unset."""
    return Path(config.declared) if config.declared else None
