"""The aggregator's figures of itself: pulled, kept in SQL, shown in the exposition; none per host."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from gangline.aggregator import metrics
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.monitoring import monitor, probes
from gangline.aggregator.monitoring.metrics import FIGURES, PREFIX
from gangline.aggregator.monitoring.probes import SPAN_SECONDS, LoopLag
from gangline.aggregator.server import Aggregator, StartError
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.store_folder import StoreError
from gangline.contract.exposition import ExpositionFormat
from gangline.contract.server import http_server
from gangline.contract.server.metric_families import Histogram
from tests.aggregator.conftest import Agent, Lab, with_operators_file
from tests.processes import GUARD_SECONDS
from tests.promtool import PROMTOOL, needs_promtool

RULES = Path(__file__).parents[3] / "packaging/prometheus/gangline.rules.yml"

TCP = b"""  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1DB0 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:1DB0 0100007F:D2A4 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0100007F:D2A4 0100007F:1DB0 01 00000000:00000000 00:00000000 00000000     0        0 3 1
   3: 0100007F:1DB0 0100007F:D2A6 06 00000000:00000000 00:00000000 00000000     0        0 4 1
"""


def scraped(port: int, accept: str = "") -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept} if accept else {}
    )
    with urllib.request.urlopen(request, timeout=GUARD_SECONDS) as answer:
        return str(answer.read().decode())


@pytest.fixture(autouse=True)
def _pulled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the cache of a second, so that each scrape gets current figures."""
    monkeypatch.setattr(monitor, "PULL_SECONDS_MIN", 0.0)


async def _scrape_live(lab: Lab, hosts: int) -> tuple[str, str]:
    """Return both forms of a live aggregator that has stored a frame of each of *hosts* hosts."""
    async with lab.aggregator(metrics_listen="127.0.0.1:0") as aggregator:
        for number in range(hosts):
            agent = Agent(host=f"host-{number}", run_id=bytes([number]) * 16)
            async with lab.agent(aggregator, agent) as connection:
                await connection.send(agent.message(1))
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(GUARD_SECONDS):
            while not aggregator.store.ops_write_seconds:  # until then its age is not known
                await asyncio.sleep(0.005)
        texts = [
            await loop.run_in_executor(None, scraped, aggregator.metrics_port, accept)
            for accept in (ExpositionFormat.OPENMETRICS.value, "text/plain")
        ]
    return texts[0], texts[1]


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[str, str]]:
    """Number of hosts -> both forms of a live aggregator that had a frame of each."""
    with pytest.MonkeyPatch.context() as patch, with_operators_file(live=True):
        patch.setattr(monitor, "PULL_SECONDS_MIN", 0.0)
        return {
            hosts: asyncio.run(
                _scrape_live(Lab(tmp_path_factory.mktemp("scraped") / "data"), hosts)
            )
            for hosts in (1, 6)
        }


@pytest.mark.slow
@pytest.mark.parametrize("form", list(ExpositionFormat))
def test_both_forms_are_read_by_prometheus_own_parsers(
    scrapes: dict[int, tuple[str, str]], form: ExpositionFormat
) -> None:
    """A scrape with one wrong line is dropped whole, and the aggregator's own alarms with it."""
    text = scrapes[1][form is ExpositionFormat.TEXT]
    parse: Any = openmetrics_parser if form is ExpositionFormat.OPENMETRICS else plain_parser
    families = {f.name: f for f in parse.text_string_to_metric_families(text)}
    names = {PREFIX + figure.name for figure in FIGURES}
    assert names <= families.keys() | {f"{name}_total" for name in families}
    assert all(f.documentation for f in families.values())
    samples = {
        (s.name, tuple(s.labels.items())): s.value for f in families.values() for s in f.samples
    }
    assert samples[PREFIX + "frames_total", ()] == 1
    assert samples[PREFIX + "rows_total", ()] == 2
    assert samples[PREFIX + "receipts_total", ()] == 1
    assert samples[PREFIX + "hosts", ()] == 1
    calls = PREFIX + "method_calls_total"
    assert samples[calls, (("method", "TelemetryService/RegisterNode"),)] == 1
    assert samples[PREFIX + "alarm", (("alarm", "aggregator.lag"),)] == 0
    count = samples[PREFIX + "commit_seconds_count", ()]
    assert count == samples[PREFIX + "commit_seconds_bucket", (("le", "+Inf"),)] >= 1


def test_more_hosts_are_no_more_series(scrapes: dict[int, tuple[str, str]]) -> None:
    """A label per host would be ten thousand series of each figure, in every scrape."""
    (first, _), (sixth, _) = scrapes[1], scrapes[6]
    series = [{line.rpartition(" ")[0] for line in text.splitlines()} for text in (first, sixth)]
    assert series[0] == series[1]
    assert "host-" not in sixth


@needs_promtool
def test_promtool_has_nothing_to_say(scrapes: dict[int, tuple[str, str]]) -> None:
    """Names without base units, counters without `_total`, missing help: its linter knows them all."""
    text = scrapes[1][1]
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_rules_name_series_that_there_are(scrapes: dict[int, tuple[str, str]]) -> None:
    """An alert on a renamed series never fires, unnoticed."""
    text = scrapes[1][1]
    exposed = set(re.findall(r"^(gangline_aggregator\w*)", text, re.MULTILINE))
    named = set(re.findall(r"gangline_aggregator\w*", RULES.read_text()))
    assert named and named <= exposed


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    """A file with one wrong expression stops Prometheus from starting."""
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_failed_call_is_counted_by_method_and_code(
    lab: Any, connect: Any, make_agent: Any
) -> None:
    """Without the counter, refused agents look like silent ones."""

    async def refused() -> str:
        async with lab.aggregator(metrics_listen="127.0.0.1:0") as aggregator:
            connection = connect(aggregator.port, make_agent())
            with pytest.raises(Exception, match="run_id"):
                await connection.register(run_id=b"short")
            await connection.close()
            return await asyncio.get_running_loop().run_in_executor(
                None, scraped, aggregator.metrics_port
            )

    text = asyncio.run(refused())
    method = 'method="TelemetryService/RegisterNode"'
    assert f'method_failures_total{{code="INVALID_ARGUMENT",{method}}} 1.0' in text


@pytest.mark.usefixtures("operators_file")
def test_own_figures_are_asked_in_sql_in_both_files(lab: Any, make_agent: Any, until: Any) -> None:
    """Without Prometheus, the aggregator's own SQL has its version and its start time."""

    async def run() -> None:
        async with lab.aggregator() as aggregator:
            await until(lambda: aggregator.store.commit_seconds.count)

    asyncio.run(run())
    for file in ("gangline.duckdb", "operators.duckdb"):
        figures = dict(lab.rows("SELECT figure, value FROM ops.aggregator", file))
        missing = {figure.name for figure in FIGURES} - figures.keys()
        assert figures.keys() <= monitor.DESCRIPTIONS.keys()
        assert missing <= {"snapshot_age_seconds"}  # the file may not have been written yet
        assert figures["disk_free_bytes"] > 0 and figures["frames"] == 0
        history = lab.rows("FROM ops.aggregator_history('frames')", file)
        assert [value for _, value, _ in history] == [0.0]


def test_a_rate_does_not_reach_over_a_restart(tmp_path: Path) -> None:
    """Counters restart at 0 with each start: 5 after 100 is neither a fall of 95 nor a rise."""
    store = Store.open(tmp_path / "data")
    second = 1_000_000_000
    base = 1_700_000_000 * second
    readings = [(0, 10.0), (15, 100.0), (30, 5.0), (45, 35.0)]
    store.submit_own_health(
        [(base + index * second, "frames", value, "x") for index, value in readings]
    )
    store.close()
    with duckdb.connect(str(tmp_path / "data/gangline.duckdb"), read_only=True) as base_file:
        rows = base_file.execute("SELECT rise_per_second FROM ops.aggregator_history('frames')")
        assert [row[0] for row in rows.fetchall()] == [None, 6.0, None, 2.0]


def test_what_cannot_be_read_is_left_out_not_zero(tmp_path: Path) -> None:
    """A missing folder does not have zero bytes free: an alarm would report it as full."""
    seen = probes.read_resource_usage(tmp_path / "gone", {1}, 0, proc=tmp_path)
    assert seen.disk_free_bytes is seen.database_bytes is seen.snapshot_age_seconds is None
    assert seen.memory_bytes is seen.descriptors is seen.connections is None


def test_connections_are_those_established_to_our_port() -> None:
    """Excluded: the listening socket, the other end on the same machine, and sockets in TIME_WAIT."""
    assert probes.established(TCP, 0x1DB0) == 1
    assert probes.established(TCP, 0x1DB1) == 0
    assert probes.established(b"", 7600) == 0


def test_connections_of_the_port_for_tokens_are_counted_too(tmp_path: Path) -> None:
    """Operators use this port: a flood there must be visible."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_bytes(TCP)
    (tmp_path / "net/tcp6").write_bytes(b"")
    ports = {0x1DB0, 0xD2A4}
    assert probes.read_resource_usage(tmp_path, ports, 0, proc=tmp_path).connections == 2
    assert probes.read_resource_usage(tmp_path, {0x1DB0}, 0, proc=tmp_path).connections == 1


@given(st.lists(st.floats(0, 100), max_size=60), st.floats(0.01, 1.0))
def test_a_quantile_is_the_end_of_its_bucket(values: list[float], share: float) -> None:
    """p99 of a histogram is never below the true one, and never past the bucket that holds it."""
    histogram = Histogram((1.0, 5.0, 20.0))
    for value in values:
        histogram.observe(value)
    estimate = histogram.quantile(share)
    if not values:
        assert estimate is None
        return
    true = sorted(values)[max(0, int(-(-share * len(values) // 1)) - 1)]
    assert estimate is not None and estimate >= true
    assert estimate == next((b for b in histogram.bounds if true <= b), histogram.max)


def test_a_quantile_leaves_out_what_came_before() -> None:
    """The p99 of the last minute, not of the last month."""
    histogram = Histogram((1.0, 5.0))
    histogram.observe(4.0)
    before = list(histogram.counts)
    assert histogram.quantile(0.99, before) is None
    histogram.observe(0.5)
    assert histogram.quantile(0.99, before) == 1.0


def test_loop_lag_remembers_the_worst_for_a_span_or_two() -> None:
    """A stall of three seconds between two scrapes must show in the next."""
    lag = LoopLag()
    lag._task = object()  # type: ignore[assignment]  # as if it watched
    lag._now = lambda: 0.0
    lag._due = 1.0
    lag.note(100.0, 3.0)
    lag.note(101.0, 0.1)
    assert lag.seconds == 3.0
    lag.note(100.0 + SPAN_SECONDS, 0.2)
    assert lag.seconds == 3.0
    lag.note(100.0 + 2 * SPAN_SECONDS, 0.1)
    assert lag.seconds == 0.2


def test_a_loop_that_stands_still_shows_before_it_moves_again() -> None:
    """The thread that scrapes sees the stall while it lasts, not only afterwards."""
    lag = LoopLag()
    lag._task = object()  # type: ignore[assignment]
    lag._due, lag._now = 10.0, lambda: 14.0
    assert lag.seconds == 4.0


def test_too_few_descriptors_are_told_with_the_way_out() -> None:
    """A limit of 1,000 descriptors is reached at the thousandth host, hours later, without any log line."""
    message = metrics.open_files_warning(1024, 20_000)
    assert "LimitNOFILE=20512" in message and "513th host" in message
    assert metrics.open_files_warning(20_512, 20_000) == ""
    assert metrics.open_files_warning(-1, 20_000) == ""  # no limit


def test_the_soft_limit_becomes_the_hard_one() -> None:
    """systemd starts services with a soft limit of 1024 and a hard limit of half a million: no user
    should need to know.
    """
    code = (
        "import resource; from gangline.aggregator import metrics as descriptors;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard));"
        "print(descriptors.raise_open_files_limit() == (hard, hard))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_a_taken_port_for_metrics_is_told_before_anything_is_written(lab: Any) -> None:
    """Two aggregators on one machine: the second says which setting, not a traceback."""

    async def run() -> None:
        async with lab.aggregator(metrics_listen="127.0.0.1:0") as aggregator:
            other = Aggregator(
                AggregatorConfig(
                    listen="127.0.0.1:0", data=lab.folder / "other",
                    metrics_listen=f"127.0.0.1:{aggregator.metrics_port}",
                )
            )  # fmt: skip
            with pytest.raises(StartError, match="metrics_listen"):
                await other.start()
            assert not (lab.folder / "other").exists()

    asyncio.run(run())


@pytest.mark.slow
def test_advice_that_this_version_cannot_read_is_told_in_words(lab: Any) -> None:
    """A downgrade ended in a traceback at each start: the old version could not read the stored advice."""

    async def run() -> None:
        async with lab.aggregator():
            pass
        with duckdb.connect(str(lab.folder / "gangline.duckdb")) as connection:
            connection.execute(
                "INSERT INTO advice_events BY NAME "
                "SELECT 1000000 AS number, now() AS time, 'OfTomorrow' AS kind, '{}' AS body"
            )
        with pytest.raises(StartError, match=r"the advice that is stored in .*data cannot be read"):
            await Aggregator(lab.config()).start()

    asyncio.run(run())


def test_a_store_that_cannot_be_opened_leaves_no_socket(lab: Any) -> None:
    """The next attempt, seconds later by systemd, must have the port again."""

    async def run() -> None:
        (lab.folder).mkdir(parents=True)
        (lab.folder / "gangline.duckdb").write_bytes(b"not a database at all")
        aggregator = Aggregator(lab.config(metrics_listen="127.0.0.1:0"))
        with pytest.raises(StoreError):
            await aggregator.start()
        http_server.listener("127.0.0.1", aggregator.metrics_port).close()

    asyncio.run(run())
