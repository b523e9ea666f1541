"""The aggregator's settings."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from ..contract.otlp_logs import check_url
from ..contract.settings import SettingsError, setting
from .principal import check_name_patterns, check_trust_domain

# ----------------------------------------------------------------------
# What `address:port` a server may listen on, by its settings.

#: `listen_scores`: the port after that of `listen`; nowhere.
SCORES_AUTO, SCORES_OFF = "auto", "off"
PORT_MAX = 65535

#: What is wanted of an address.
_ADDRESS_PORT = "address:port, such as"


def parse_listen(
    text: str, *, beyond_loopback: bool, name: str = "listen", otherwise: str = ""
) -> tuple[str, int]:
    """Return (address, port) of `address:port`. Raises SettingsError with what would be right; *otherwise*: what else would."""
    address, port = _address_port(text)
    if not port:
        raise SettingsError(
            f"{name} = {text!r}: expected {_ADDRESS_PORT} 127.0.0.1:7600{otherwise}"
        )
    if not is_loopback(address) and not beyond_loopback:
        raise SettingsError(
            f"{name} = {text!r}: {address or 'no address'} is not loopback, and without TLS all would be "
            "plain text; set tls_certificate_file and tls_key_file (`gangline admin cert` makes them), "
            "listen on 127.0.0.1, or say --set listen_beyond_loopback=true if the network is trusted"
        )
    return address, int(port)


def _address_port(text: str) -> tuple[str, str]:
    """Return the address and the port of *text*, an empty port when that is none."""
    address, _, port = text.rpartition(":") if ":" in text else ("", "", "")
    digits = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX
    return address, port if digits else ""


def check_metrics(text: str) -> None:
    """Raise SettingsError for what is no address:port, nor empty."""
    if text and not _address_port(text)[1]:
        raise SettingsError(f"{_ADDRESS_PORT} 127.0.0.1:9477, or nothing for none")


def is_loopback(address: str) -> bool:
    """Say whether only this machine reaches *address*, which may be in brackets."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


#: A shorter period between two operators' files costs more than the file is worth.
OPS_SECONDS_MIN = 0.5


def check_ops_seconds(seconds: float) -> None:
    """Raise ValueError unless *seconds* is a period for the operators' file, or 0, which turns the file off."""
    if 0 < seconds < OPS_SECONDS_MIN:
        raise ValueError(f"0 (no file) or at least {OPS_SECONDS_MIN}")


@dataclass(frozen=True)
class AggregatorConfig:
    """Every limit of the service, with its unit. Filled by `contract.settings.load`."""

    listen: str = setting("127.0.0.1:7600", description="address:port; port 0 takes any free one")
    listen_beyond_loopback: bool = setting(
        False,
        description="allow plain text on an address that other machines reach; with TLS it is not needed",
    )
    data: Path = setting(  # noqa: RUF009 - a Path is immutable
        Path("var/aggregator"), description="folder of the store, made if missing"
    )
    commit_seconds: float = setting(
        2.0,
        low=0.01,
        high=60,
        description="a commit at least this often while something waits; two and a half times as long while that is little",
    )
    commit_rows: int = setting(
        122_880,
        low=1,
        high=1_000_000,
        description="a commit as soon as so many rows wait; a row group of DuckDB costs least a row",
    )
    queue_bytes_max: int = setting(
        256 << 20,
        low=1 << 20,
        description="readings in memory that wait for a commit; at the limit streams are not read further",
    )
    retention_hours: int = setting(
        24,
        low=1,
        high=24 * 366,
        description="hours that readings stay in the live file where none of them can leave for Parquet",
    )
    history_days: int = setting(
        14,
        low=1,
        high=3660,
        description="days of scores, evidence, events and cleared findings kept; of advice at least a month, of advisories 400",
    )
    decisions_days: int = setting(
        30,
        low=1,
        high=3660,
        description="days that decisions (plans, evaluations, resizes, recoveries) are kept",
    )
    decisions_bytes_max: int = setting(
        256 << 20,
        low=1 << 20,
        high=1 << 40,
        description="bytes of their requests and answers; beyond, the oldest decisions go",
    )
    decision_inputs_bytes_max: int = setting(
        1 << 30,
        low=0,
        high=1 << 40,
        description="bytes of what they were computed from; beyond, the oldest goes, and its decisions can no longer be replayed; 0: none is kept",
    )
    credit_frames: int = setting(
        64, low=1, high=4096, description="frames a host may have on their way without a receipt"
    )
    hosts_max: int = setting(20_000, low=1, description="hosts; a further one is refused")
    ops_seconds: float = setting(
        15.0,
        low=0,
        high=3600,
        check=check_ops_seconds,
        description="maximum age of the operators' file that a query reads; without queries it is written once in eight times as long; "
        "0: never written, and gangline sql, explain and Query do not work",
    )
    ops_rows_max: int = setting(
        200_000,
        low=1000,
        high=5_000_000,
        description="readings of the last minutes per table in the operators' file; fewer minutes beyond",
    )
    permit_unhealthy_share_max: float = setting(
        0.05,
        low=0.0,
        high=1.0,
        description="with more of the hosts UNHEALTHY (and more than one) a permit to enforce is withheld",
    )
    judge_seconds: float = setting(
        1.0, low=0.05, high=60, description="how often all hosts are judged"
    )
    # Late frames and agents that come back
    backlog_frames_per_second: int = setting(
        2,
        low=1,
        high=10_000,
        description="late frames taken of a host, or two for each live one; the rest wait, live ones do not",
    )
    reconnects_per_second: int = setting(
        200,
        low=1,
        high=100_000,
        description="registrations taken a second; of more each agent is told when to come",
    )

    # access
    tls_certificate_file: str = setting(
        "", description="the server's certificate with its chain, PEM; empty: plain text"
    )
    tls_key_file: str = setting("", description="its key, PEM, not encrypted")
    tls_client_ca_file: str = setting(
        "",
        description="the CA of callers' certificates, PEM: on `listen` a caller must then show one; empty: "
        "callers log in with a token",
    )
    listen_tokens: str = setting(
        "",
        description="address:port of a second port, for callers with a token in place of a certificate; "
        "empty: none",
    )
    certificate_names: tuple[str, ...] = setting(
        (),
        check=check_name_patterns,
        description="ROLE=PATTERN with {name}, for certificates without a spiffe:// name, as "
        "agent={name}.gpu.example",
    )
    trust_domain: str = setting(
        "",
        check=check_trust_domain,
        description="the trust domain of spiffe:// names; empty: any that the CA signs",
    )
    access_look_seconds: float = setting(
        2.0,
        low=0.1,
        high=60,
        description="how often certificates, tokens and connections are looked at",
    )
    login_seconds_max: float = setting(
        30.0,
        low=1,
        high=600,
        description="a connection on which nobody has logged in is ended after so long",
    )
    connections_max: int = setting(
        30_000,
        low=16,
        high=1_000_000,
        description="connections to a port; a further one is refused",
    )
    connections_unknown_max: int = setting(
        1024,
        low=1,
        description="connections on which nobody has logged in yet; the oldest are ended",
    )
    connections_unknown_per_address_max: int = setting(
        128, low=1, description="of them from one address; the newest are ended"
    )
    connections_per_caller_max: int = setting(
        8, low=1, description="connections of one login; the oldest are ended"
    )
    calls_per_caller_max: int = setting(
        64, low=1, description="calls of one login at once, streams too; a further one is refused"
    )
    streams_per_connection_max: int = setting(
        100, low=1, high=10_000, description="calls on one connection at once; further ones wait"
    )
    message_bytes_max: int = setting(
        4 << 20,
        low=1 << 20,
        high=64 << 20,
        description="a longer message is refused by gRPC itself: a frame has 1 MiB, a registration less",
    )
    agent_calls_per_minute_max: float = setting(
        600.0,
        low=1,
        description="calls of an agent that has logged in: registrations, streams, events; 20 s' worth at once",
    )
    agent_frames_per_second_max: float = setting(
        20.0,
        low=1,
        description="frames of an agent that has logged in; further ones are read later",
    )
    agent_bytes_per_second_max: float = setting(
        float(2 << 20),
        low=1 << 16,
        description="bytes of its messages; further ones are read later",
    )
    agent_rows_per_second_max: float = setting(
        4000.0, low=100, description="readings' rows of its frames; further ones are read later"
    )
    # own health
    metrics_listen: str = setting(
        "",
        check=check_metrics,
        description="address:port of /metrics, the aggregator's own figures for Prometheus, in plain HTTP for "
        "whoever reaches it; empty: off",
    )
    otlp_logs: str = setting(
        "",
        check=check_url,
        description="address of an OpenTelemetry collector, as http://127.0.0.1:4318: findings and advice are sent there as log records; empty: off",
    )
    metrics_hosts: bool = setting(
        False,
        description="on /metrics also state, score, hazard, relative speed, silence and open advice of each host, by its name: "
        "six series a host at most",
    )

    # query: SQL through the service
    query_seconds: float = setting(
        10.0, low=0.1, high=3600, description="a query through the service is cut off after so long"
    )
    query_running_max: int = setting(
        4,
        low=1,
        high=64,
        description="queries that run at once; a further one is told to try again",
    )
    query_running_per_caller_max: int = setting(
        2,
        low=1,
        high=64,
        description="of them of one login; a further one is told to wait for its own",
    )
    query_memory_bytes_max: int = setting(
        2 << 30,
        low=128 << 20,
        description="memory of one query; past it the query ends, with words",
    )
    query_threads: int = setting(2, low=1, high=64, description="threads of one query")
    query_rows_max: int = setting(
        1_000_000, low=1, description="rows of one answer; there it is cut, and says so"
    )
    query_bytes_max: int = setting(
        256 << 20, low=1 << 20, description="bytes of one answer; there it is cut, and says so"
    )
    query_log_bytes_max: int = setting(
        16 << 20,
        low=1 << 16,
        description="size of queries.log; three older ones are kept beside it",
    )
    # history
    history_on: bool = setting(
        True,
        description="closed five minutes of readings leave the live file for Parquet, and are rolled up",
    )
    history_seconds: float = setting(
        5.0,
        low=0.1,
        high=3600,
        description="how often history looks whether there is something to do",
    )
    history_rows_max: int = setting(
        122_880,
        low=1000,
        high=10_000_000,
        description="readings sorted at a time for a Parquet file, fewer of wide tables; 1 to 3 kB of memory each",
    )
    history_memory_bytes_max: int = setting(
        384 << 20,
        low=64 << 20,
        high=1 << 40,
        description="memory that DuckDB sorts them in; what needs more is spilled to disk",
    )
    live_bytes_max: int = setting(
        64 << 30,
        low=64 << 20,
        high=1 << 50,
        description="bytes of the live file in use; beyond, its oldest closed five minutes are dropped",
    )
    segments_hours: int = setting(
        72,
        low=1,
        high=24 * 3660,
        description="hours of readings kept as Parquet, by when they were received",
    )
    segments_bytes_max: int = setting(
        1 << 40, low=1 << 20, high=1 << 60, description="bytes of them; beyond, the oldest go"
    )
    rollups_1m_days: int = setting(
        14, low=1, high=3660, description="days of rollups by minute kept"
    )
    rollups_1m_bytes_max: int = setting(
        1 << 40, low=1 << 20, high=1 << 60, description="bytes of them; beyond, the oldest go"
    )
    rollups_1h_days: int = setting(
        400, low=1, high=36_600, description="days of rollups by hour kept"
    )
    rollups_1h_bytes_max: int = setting(
        1 << 40, low=1 << 20, high=1 << 60, description="bytes of them; beyond, the oldest go"
    )
    disk_free_bytes_min: int = setting(
        20 << 30,
        low=0,
        high=1 << 50,
        description="with less free the disk is almost full: the oldest readings go first (the lesser of "
        "this and disk_free_share_min counts)",
    )
    disk_free_share_min: float = setting(
        0.05, low=0.0, high=0.9, description="the same as a share of the disk"
    )

    # backup
    backup_wal_bytes_max: int = setting(
        2 << 30,
        low=1 << 20,
        description="a backup is ended, with words, once so much came in while it copied the live file",
    )

    # declared: what people say of hosts (docs/declared.md)
    declared: str = setting(
        "",
        description="a folder of .toml, .csv and .json files, or one of them, with places, expected hardware, "
        "maintenance, overrides, thresholds; read again when it changes and on SIGHUP; empty: none",
    )

    # advice
    advice_shadow: bool = setting(
        False,
        description="advice is worked out and kept, and nobody is told: ops.advice_shadow reports it",
    )
    advice_rack_hosts_max: int = setting(
        2,
        low=1,
        high=10_000,
        description="hosts of a rack that may be out at once, whoever took them out",
    )
    advice_job_hosts_max: int = setting(
        2, low=1, high=10_000, description="hosts of a job that may be out at once"
    )
    advice_cluster_share_max: float = setting(
        0.02,
        low=0.0,
        high=1.0,
        description="share of all hosts that may be out at once; one may be always",
    )
    advice_hosts_per_hour_max: int = setting(
        8,
        low=1,
        high=10_000,
        description="hosts that advice takes out in an hour; then a breaker opens",
    )
    advice_proposal_seconds: float = setting(
        3600.0, low=60, high=86_400, description="advice that nobody answers expires after so long"
    )
    advice_lease_seconds: float = setting(
        600.0,
        low=10,
        high=86_400,
        description="who accepted advice and is silent for so long has lost it",
    )
    advice_hold_seconds: float = setting(
        7200.0,
        low=120,
        high=604_800,
        description="what advice set on a host ends after so long, unless renewed",
    )
    advice_verify_seconds: float = setting(
        900.0,
        low=10,
        high=604_800,
        description="a host is well for so long before its return is proposed",
    )
    advice_probation_seconds: float = setting(
        604_800.0,
        low=60,
        high=31_536_000,
        description="a host that came back is on probation for so long",
    )
    outcomes_half_life_days: float = setting(
        90.0,
        low=1,
        high=3650,
        description="an outcome that schedulers reported counts half after so many days; none counts after 400",
    )

    # scores and plans: a process of its own for whoever asks for them in a loop
    listen_scores: str = setting(
        SCORES_AUTO,
        description="address:port where the score process answers ScoreService, PlacementService and RecoveryService, which "
        "`listen` answers too: judging and ingest do not delay it; with TLS as on `listen`; auto: the port after that of `listen`; "
        "off or empty: no such process",
    )


def declared_path(config: AggregatorConfig) -> Path | None:
    """Return where people's declarations are; None: nowhere."""
    return Path(config.declared) if config.declared else None
