"""/metrics of an executor, for alert rules and for operators."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gangline.cli import main as command
from gangline.contract.client.connection import CommandError
from gangline.executors.command import serving_metrics
from gangline.executors.ledger import Entry, UnsavedLedger
from gangline.executors.metrics import ExecutorFigures
from gangline.executors.model import Advice, Node, SchedulerState
from tests.processes import free_port

ACTIONS = frozenset(["AVOID"])


def figures_of(figures: ExecutorFigures) -> dict[str, float]:
    text, _ = figures.render("text/plain")
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def advice(name: str, state: str, action: str = "AVOID") -> Advice:
    return Advice(name, "1", action, state, "n1", expires=1500.0)


def test_from_advice_to_done() -> None:
    """Figures: open advice, answers, marks, their age, and their duration."""
    clock, ledger = Clock(), UnsavedLedger()
    figures = ExecutorFigures(marks_max=3, wall=clock, started=1000.0)
    nodes = {"n1": Node("n1", "Ready"), "n2": Node("n2", "Ready", out="cordoned")}
    state = SchedulerState(nodes, {}, {})
    known = {
        advised.name: advised
        for advised in (advice("a1", "PROPOSED"), advice("a2", "PROPOSED", "REBOOT"))
    }
    figures.observe(known, state, ledger, ACTIONS)
    figures_now = figures_of(figures)
    assert figures_now["gangline_executor_open_advice"] == 1  # the reboot is left to people
    assert figures_now["gangline_executor_foreign_nodes"] == 1
    assert (
        figures_now["gangline_executor_marks_left"] == 3
        and figures_now["gangline_executor_lease"] == 0
    )
    clock.now += 0.3
    figures.count_action("PlaceHold", "")
    figures.count_action("PlaceHold", "no route to host")
    figures.count_action("RenewLease", "")
    entry = Entry(
        "a1", "n1", "AVOID", "", 0, 1000.0, 1500.0, "hold", "gangline_a1", "set", 1000.3, 1500.0
    )
    entry.answered = "DONE"
    ledger.add(entry)
    figures.count_answer("a1", "DONE")
    figures.count_answer("a9", "DONE")  # of an earlier run: its duration is unknown
    figures.observe({"a1": advice("a1", "DONE")}, state, ledger, ACTIONS)
    clock.now += 60
    figures.count_action("RenewLease", "")
    figures_now = figures_of(figures)
    assert figures_now["gangline_executor_actions_total PlaceHold ok"] == 1
    assert figures_now["gangline_executor_actions_total PlaceHold failed"] == 1
    assert figures_now["gangline_executor_answers_total DONE"] == 2
    assert figures_now["gangline_executor_done_seconds_count"] == 1
    assert figures_now["gangline_executor_done_seconds_bucket 0.5"] == 1
    assert figures_now["gangline_executor_oldest_mark_seconds"] == pytest.approx(60)
    assert figures_now["gangline_executor_action_age_seconds"] == pytest.approx(60)
    assert figures_now["gangline_executor_open_advice"] == 0
    assert (
        figures_now["gangline_executor_marks_left"] == 2
        and figures_now["gangline_executor_overdue_seconds"] == 0
    )
    clock.now = 1600.0
    assert figures_of(figures)["gangline_executor_overdue_seconds"] == 100


def test_it_is_served_where_an_address_is_set() -> None:
    figures, port = ExecutorFigures(), free_port()
    with serving_metrics("", figures), pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1.0)
    url = f"http://127.0.0.1:{port}/metrics"
    with serving_metrics(f"127.0.0.1:{port}", figures), urllib.request.urlopen(url, timeout=30) as answer:  # fmt: skip
        assert answer.read().startswith(
            b"# HELP gangline_executor_actions_total steps carried out "
        )


def test_a_scraper_gets_the_form_that_it_asks_for() -> None:
    """Prometheus asks for OpenMetrics first; a person's curl asks for anything, and reads the older form."""
    of_prometheus = (
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
    )
    text, media_type = ExecutorFigures().render(of_prometheus)
    assert text.endswith(b"# EOF\n")
    assert media_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    for accept in ("", "*/*", "text/plain"):
        text, media_type = ExecutorFigures().render(accept)
        assert b"# EOF" not in text
        assert media_type.startswith("text/plain; version=0.0.4; charset=utf-8")


def test_an_address_that_is_none_or_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["executor", "slurm", "--set", "metrics_listen=9479"]) == 2
    assert "expected ADDRESS:PORT" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(CommandError, match="name a free port"),
            serving_metrics(address, ExecutorFigures()),
        ):
            pass
