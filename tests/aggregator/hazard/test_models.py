"""`gangline admin train`: from recorded findings to the model in use, replaced by better ones."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gangline import cli
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.errors import InsufficientData, ResourceExhausted
from gangline.aggregator.hazard.events import EventsError
from gangline.aggregator.hazard.features import FEATURE_NAMES as NAMES_OF_FEATURES
from gangline.aggregator.hazard.features import HISTORY_FEATURE_NAMES, MEASURED_FORM, features_of
from gangline.aggregator.hazard.history import units_of
from gangline.aggregator.hazard.measured import MEASURED, read_host_days
from gangline.aggregator.hazard.model import HazardModel, prior
from gangline.aggregator.hazard.models import (
    ModelRegistry,
    TrainingResult,
    store_model,
    train_and_compare,
)
from gangline.aggregator.hazard.store_history import DAY_US, read_incidents, read_recording
from gangline.aggregator.model import Finding
from gangline.aggregator.scoring.features import FaultHistory
from gangline.aggregator.service.admin import AdminService
from gangline.aggregator.store.store import Store
from gangline.contract.wire import admin_pb2
from tests.aggregator.hazard.fleets import DAYS, NODES, days_of, planted, recording
from tests.aggregator.run_time import set_run_time
from tests.processes import GUARD_SECONDS

NOW_US = 1_795_168_800 * 1_000_000
NAMES = ("gpu.xid", "gpu.lost")
HOSTS = 60


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """Open a store at a fixed time."""
    config = AggregatorConfig(data=folder, commit_seconds=0.01, ops_seconds=3600.0)
    store = Store.open(folder, config, lambda: NOW_US * 1000)
    try:
        yield store
    finally:
        store.close()


def put(
    connection: Any, seed: int = 3, days: int = 120, simulated: bool = False, now_us: int = NOW_US
) -> None:
    """Record the faults of an invented fleet, half of them as past findings."""
    source = random.Random(seed)
    for number in range(HOSTS):
        connection.execute(
            "INSERT INTO hosts (host, node_index, simulated) VALUES (?, ?, ?)",
            [f"node-{number}", number, simulated],
        )
    begin = now_us - days * DAY_US
    open_since: dict[str, float] = {}
    for row in recording(seed, HOSTS, days, rate=0.006):
        at_us = begin + int(row["event_time"] * DAY_US)
        if row["event_type"] == "fault_start":
            open_since[row["node_id"]] = at_us
            continue
        since = open_since.pop(row["node_id"])
        values = [row["node_id"], source.choice(NAMES), since, at_us]
        table = source.choice(("findings", "past_findings"))
        connection.execute(
            f"INSERT INTO {table} (host, name, since, cleared) "
            "VALUES (?, ?, make_timestamp(?::BIGINT), make_timestamp(?::BIGINT))",
            values,
        )


@pytest.mark.slow
def test_findings_of_one_incident_are_one_fault(tmp_path: Path) -> None:
    """A lost GPU has two findings; a kill during maintenance leaves a finding twice."""
    with opened(tmp_path) as store:

        def insert(connection: Any) -> None:
            connection.execute("INSERT INTO hosts (host, node_index, simulated) VALUES ('a', 0, false), ('s', 1, true)")  # fmt: skip
            for table, host, name, since, cleared in (
                ("findings", "a", "gpu.xid", 10.0, 11.0),
                ("past_findings", "a", "gpu.xid", 10.0, 11.0),
                ("findings", "a", "gpu.lost", 10.005, 10.5),
                ("findings", "a", "gpu.xid", 12.0, None),
                ("findings", "a", "clock.offset", 5.0, 6.0),
                ("findings", "s", "gpu.xid", 7.0, 8.0),
                ("findings", "gone", "gpu.xid", 7.0, 8.0),
            ):
                moments = [None if day is None else int(NOW_US - (20 - day) * DAY_US) for day in (since, cleared)]  # fmt: skip
                connection.execute(
                    f"INSERT INTO {table} (host, name, since, cleared) "
                    "VALUES (?, ?, make_timestamp(?::BIGINT), make_timestamp(?::BIGINT))",
                    [host, name, *moments],
                )

        store.in_transaction(insert)
        with store.reading() as cursor:
            stored_recording = read_recording(cursor, NOW_US, simulated=False)
            assert read_recording(cursor, NOW_US, simulated=True).faults.nodes == ("s",)
            restored = FaultHistory.of(read_incidents(cursor, NOW_US))
    assert stored_recording.faults.nodes == ("a",)
    ten = 10 / 24  # it is ten o'clock, and days begin at 00:00
    assert stored_recording.faults.start.tolist() == pytest.approx([ten, ten + 2.0])
    assert stored_recording.faults.end.tolist() == pytest.approx([ten + 1.0, float("inf")])
    assert stored_recording.faults.end_days == pytest.approx(ten + 10.0)
    # A day later, in a judgement: an open fault still counts, an unknown host never failed.
    standing = frozenset({("a", NOW_US - 8 * DAY_US, "driver")})
    judged = restored.after({"new": 0, "a": 1}, standing, NOW_US + DAY_US)
    features = features_of(judged.state(("new", "a"), NOW_US + DAY_US))
    assert features.shape == (2, len(HISTORY_FEATURE_NAMES))
    assert not features[0].any()
    assert features[1, HISTORY_FEATURE_NAMES.index("faults_30d")] == pytest.approx(
        math.log1p(math.exp(-11 / 30) + math.exp(-9 / 30))
    )


@pytest.mark.slow
def test_what_findings_leave_behind_is_kept_longer_than_they(tmp_path: Path) -> None:
    """Two weeks of history teach nothing: a cleared finding's times stay, its text goes."""
    with opened(tmp_path) as store:
        store.in_transaction(
            lambda connection: connection.execute(
                "INSERT INTO findings (host, name, subject, message, since, cleared) "
                "SELECT 'a', 'gpu.xid', '', 'long message', make_timestamp(? - d * ?), make_timestamp(? - d * ?) "
                "FROM (VALUES (5), (100), (500)) t(d)",
                [NOW_US, DAY_US, NOW_US, DAY_US],
            )
        )
    set_run_time(tmp_path, NOW_US - 600 * DAY_US, NOW_US)
    with opened(tmp_path) as store:
        store.submit_findings([Finding("b", "gpu.xid", "", "new", NOW_US * 1000)])
        store.request_commit()
    with opened(tmp_path) as store, store.reading() as cursor:
        counts = [
            cursor.execute(f"SELECT count(*) FROM {table} WHERE host = 'a'").fetchall()
            for table in ("findings", "past_findings")
        ]
        assert counts == [[(1,)], [(1,)]]


@pytest.mark.slow
def test_a_host_that_was_out_before_the_first_day_is_not_up(tmp_path: Path) -> None:
    """A remap failed fifty days before the first day: the host counted as never failed."""
    with opened(tmp_path) as store:
        rows = [
            ("stands", 450, None),
            ("returned", 450, 100),
            ("long ago", 450, 420),
            ("new", 90, 89),
        ]
        for host, since, cleared in rows:
            moments = [
                None if days_ago is None else NOW_US - days_ago * DAY_US
                for days_ago in (since, cleared)
            ]

            def insert(connection: Any, host: str = host, moments: Any = moments) -> None:
                connection.execute(
                    "INSERT INTO past_findings VALUES (?, 'gpu.xid', make_timestamp(?::BIGINT), make_timestamp(?::BIGINT))",
                    [host, *moments],
                )
                connection.execute("INSERT INTO hosts (host, simulated) VALUES (?, false)", [host])

            store.in_transaction(insert)
        with store.reading() as cursor:
            faults = read_recording(cursor, NOW_US, simulated=False).faults
            assert set(read_incidents(cursor, NOW_US)) == {"new"}, "what is judged by is as it was"
    index_of = {faults.nodes[node]: index for index, node in enumerate(faults.node)}
    assert set(index_of) == {"stands", "returned", "new"}
    assert [float(faults.start[index_of[name]]) for name in ("stands", "returned")] == [-np.inf] * 2
    assert faults.end[index_of["stands"]] == np.inf
    assert round(faults.end_days) == 90, "it begins with what is known, not with what stood"
    units = units_of(faults)
    assert not (units.node == faults.nodes.index("stands")).any()


@pytest.mark.slow
def test_so_many_hosts_that_too_few_days_are_looked_at_are_told_of_as_that(tmp_path: Path) -> None:
    """With 400 days on record the error was "50.0 days are on record; expected at least 56"."""
    with opened(tmp_path) as store:
        store.in_transaction(
            lambda connection: connection.execute(
                "INSERT INTO hosts (host, simulated) SELECT 'node-' || i, false FROM range(30000) t(i)"
            ).execute(
                "INSERT INTO past_findings SELECT 'node-1', 'gpu.xid', make_timestamp(us), make_timestamp(us + 1000000) "
                "FROM (SELECT $now - d * $day AS us FROM range(1, 400) t(d))",
                {"now": NOW_US, "day": DAY_US},
            )
        )
        with pytest.raises(EventsError) as refused:
            ModelRegistry(store, lambda: NOW_US * 1000).train()
    assert "of 30000 hosts no more than 50 days are used" in str(refused.value)
    assert "at most 26785 hosts" in str(refused.value)


@pytest.mark.slow
def test_what_was_simulated_before_is_no_part_of_the_recording_of_real_hosts(
    tmp_path: Path,
) -> None:
    """Ninety simulated days, then fifty real ones: they counted as 140 without a fault."""
    with opened(tmp_path) as store:
        store.in_transaction(
            lambda connection: connection.execute(
                "INSERT INTO hosts (host, node_index, simulated) VALUES ('real', 0, false), ('made-up', 1, true)"
            )
        )
        store.in_transaction(
            lambda connection: connection.execute(
                "INSERT INTO scores (time, host, version) "
                "SELECT make_timestamp($now - days * $day), host, 1 FROM (VALUES ('real', 50), ('made-up', 140)) t(host, days)",
                {"now": NOW_US, "day": DAY_US},
            )
        )
        with store.reading() as cursor:
            stored_recordings = [
                read_recording(cursor, NOW_US, simulated=stored_recording)
                for stored_recording in (False, True)
            ]
    assert [round(stored_recording.faults.end_days) for stored_recording in stored_recordings] == [
        50,
        140,
    ]


@pytest.mark.slow
def test_outcomes_stay_as_long_as_the_times_of_faults(tmp_path: Path) -> None:
    """Outcomes move every hazard: after two weeks a restart lost most, and all fell fivefold."""
    with opened(tmp_path) as store:
        store.in_transaction(
            lambda connection: connection.execute(
                "INSERT INTO outcomes (time, outcome, interrupted, expected_interruptions) "
                "SELECT make_timestamp($now - days * $day), days || ' days', true, 0.1 FROM (VALUES (100), (500)) t(days)",
                {"now": NOW_US, "day": DAY_US},
            )
        )
    set_run_time(tmp_path, NOW_US - 600 * DAY_US, NOW_US)
    with opened(tmp_path) as store:
        store.submit_findings([Finding("b", "gpu.xid", "", "new", NOW_US * 1000)])
        store.request_commit()
    with opened(tmp_path) as store, store.reading() as cursor:
        assert cursor.execute("SELECT outcome FROM outcomes").fetchall() == [("100 days",)]


@pytest.mark.slow
def test_a_model_is_trained_kept_and_in_use_after_a_restart(tmp_path: Path) -> None:
    """After two months the fleet's own record replaces the prior of another cluster."""
    with opened(tmp_path) as store:
        models = ModelRegistry(store, lambda: NOW_US * 1000)
        models.load()
        assert models.in_use == prior()
        with pytest.raises(EventsError, match="no fault is on record"):
            models.train()
        store.in_transaction(put)
        result = models.train()
        assert result.accepted, result.reason
        assert models.in_use is result.model
        assert result.model.first_time < result.model.last_time == "2026-11-20 10:00:00"
    with opened(tmp_path) as store:
        models = ModelRegistry(store, lambda: NOW_US * 1000)
        models.load()
        assert models.in_use == result.model
        with store.reading() as cursor:
            rows = cursor.execute(
                "SELECT accepted, faults, metrics['ece'], metrics['hazard_spread'] FROM models"
            ).fetchall()
    assert rows == [(True, result.model.faults, result.model.metrics["ece"], result.model.spread)]


def put_planted(connection: Any) -> None:
    """Record hosts whose errors rise before faults, measured two minutes after midnight."""
    faults, values = planted()
    begin_us = NOW_US - NOW_US % DAY_US - DAYS * DAY_US
    nodes = pa.array(faults.nodes)
    days = np.arange(DAYS) * DAY_US + begin_us + 120_000_000
    tables = {
        "hosts": {"host": nodes, "node_index": np.arange(NODES), "simulated": np.zeros(NODES, dtype=bool)},
        "past_findings": {
            "host": nodes.take(faults.node),
            "name": pa.array(["gpu.xid"] * len(faults.node)),
            "since": pa.array((begin_us + faults.start * DAY_US).astype(np.int64), pa.timestamp("us")),
            "cleared": pa.array((begin_us + faults.end * DAY_US).astype(np.int64), pa.timestamp("us")),
        },
        "host_days": {
            "host": nodes.take(np.repeat(np.arange(NODES), DAYS)),
            "time": pa.array(np.tile(days, NODES), pa.timestamp("us")),
            **{feature.name: values[..., number].ravel() for number, feature in enumerate(MEASURED)},
        },
    }  # fmt: skip
    for table, columns in tables.items():
        connection.register("new_rows", pa.table(columns))
        connection.execute(f"INSERT INTO {table} BY NAME FROM new_rows")
        connection.unregister("new_rows")


@pytest.mark.slow
def test_what_was_measured_is_learned_from_the_store(tmp_path: Path) -> None:
    """Two months of rising errors before faults were in the store, and no model used them."""
    with opened(tmp_path) as store:
        store.in_transaction(put_planted)
        models = ModelRegistry(store, lambda: NOW_US * 1000)
        result = models.train()
        assert result.accepted, result.reason
        assert result.model.source == f"the store; ranking: {MEASURED_FORM.name}"
        assert result.model.weights[NAMES_OF_FEATURES.index("corrected_errors")] > 0.2
        assert result.model.first_time == "2026-06-13 00:00:00"
        with store.reading() as cursor:
            stored_recording = read_recording(cursor, NOW_US, simulated=False)
    direct, values = planted()
    assert stored_recording.faults.start == pytest.approx(direct.start, abs=1e-6)
    days = days_of(values, direct)
    assert stored_recording.days_measured is not None
    node, day = np.nonzero(days.row >= 0)
    assert np.array_equal(stored_recording.days_measured.at(node, day), days.at(node, day))
    # A host that registers during the read, with the first index, is ignored.
    with opened(tmp_path) as store:
        store.in_transaction(
            lambda connection: connection.execute(
                "INSERT INTO hosts (host, node_index, simulated) VALUES ('a-new-one', 0, false)"
            )
        )
        with store.reading() as cursor:
            again = read_host_days(
                cursor, stored_recording.faults, stored_recording.first_us, stored_recording.last_us
            )
    assert again is not None and np.array_equal(again.row, stored_recording.days_measured.row)
    # The comparison with the model in use has the measured columns as well.
    without = train_and_compare(stored_recording._replace(days_measured=None), prior())
    assert result.model.metrics["log_loss"] < 0.9 * without.model.metrics["log_loss"]


@pytest.mark.slow
def test_one_that_is_worse_than_the_one_in_use_is_refused(tmp_path: Path) -> None:
    """Training after a burst must not replace a better model; the refused one is recorded."""
    with opened(tmp_path) as store:
        store.in_transaction(put)
        models = ModelRegistry(store, lambda: NOW_US * 1000)
        best = models.train().model
        # The model in use has learned from the last weeks; a new model is compared on these weeks before it learns from them.
        again = models.train()
        assert not again.accepted
        assert models.in_use is best
        assert "worse, so the one in use stays" in again.reason
        with store.reading() as cursor:
            rows = cursor.execute("SELECT accepted FROM models ORDER BY rowid").fetchall()
    assert rows == [(True,), (False,)]


@pytest.mark.slow
def test_too_short_a_record_is_refused_in_words(tmp_path: Path) -> None:
    """Training starts a week after the installation."""
    with opened(tmp_path) as store:
        store.in_transaction(lambda connection: put(connection, days=30))
        with pytest.raises(EventsError, match="expected at least 56"):
            ModelRegistry(store, lambda: NOW_US * 1000).train()


def test_faults_that_all_lie_in_the_last_weeks_are_refused_in_words(tmp_path: Path) -> None:
    """30 faults on record gave "0 fault starts": the last four weeks are only compared."""
    with opened(tmp_path) as store:

        def insert(connection: Any) -> None:
            put(connection, days=27)
            connection.execute(
                "INSERT INTO scores (time, host) VALUES (make_timestamp(?::BIGINT), 'node-0')",
                [NOW_US - 90 * DAY_US],
            )

        store.in_transaction(insert)
        reason = "before the last 28 days, which are kept to compare on: 0 fault starts"
        with pytest.raises(EventsError, match=reason):
            ModelRegistry(store, lambda: NOW_US * 1000).train()


def test_a_model_that_cannot_be_read_leaves_the_prior(tmp_path: Path) -> None:
    """A row of a newer version: judging continues."""
    with opened(tmp_path) as store:
        store.in_transaction(
            lambda connection: connection.execute(
                "INSERT INTO models (time, accepted, model) VALUES (now()::TIMESTAMP, true, '{}')"
            )
        )
        models = ModelRegistry(store, lambda: NOW_US * 1000)
        models.load()
        assert models.in_use.is_prior


def test_the_last_that_was_accepted_is_in_use_though_our_clock_was_ahead(tmp_path: Path) -> None:
    """Trained a day ahead, then at the right time: `ops.models` and a restart had the first."""
    first, second, third = (
        replace(
            prior(),
            first_time="2026-10-01 09:00:00",
            last_time=f"2026-11-{day} 09:00:00",
            nodes=day,
            calibration=((0.1, 0.1),),
            metrics={"auc": 0.6},
        )
        for day in (20, 19, 21)
    )
    with opened(tmp_path) as store:
        models = ModelRegistry(store, lambda: NOW_US * 1000)
        for now_us, model, is_better in (
            (NOW_US + DAY_US, first, True),
            (NOW_US, second, True),
            (NOW_US + 1, third, False),
        ):
            result = TrainingResult(model, is_better, "")
            store.in_transaction(partial(store_model, now_us=now_us, result=result))
        models.load()
        assert models.in_use == second
        with store.reading() as cursor:
            rows = cursor.execute("SELECT nodes, status FROM ops.models WHERE nodes > 0").fetchall()
    assert rows == [(19, "in use"), (21, "refused"), (20, "replaced")]


@pytest.mark.slow
def test_the_command_on_a_stopped_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a record or a store, the command fails with a reason."""
    assert cli.main(["admin", "train", "--data", str(tmp_path / "none")]) == cli.FAILED
    with opened(tmp_path / "store"):
        pass
    capsys.readouterr()
    assert cli.main(["admin", "train", "--data", str(tmp_path / "store")]) == cli.FAILED
    assert "no fault is on record" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_trains_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The output for operators, and for scripts."""
    with opened(tmp_path) as store:
        store.in_transaction(put)
    monkeypatch.setattr("time.time_ns", lambda: NOW_US * 1000)
    assert cli.main(["admin", "train", "--data", str(tmp_path), "--json"]) == cli.OK
    result = json.loads(capsys.readouterr().out)
    assert result["accepted"]
    assert HazardModel.from_text(json.dumps(result["model"])).nodes == HOSTS
    assert cli.main(["admin", "train", "--data", str(tmp_path)]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("the store; ranking: ")
    assert lines[2].startswith("out of fold: AUC 0.") and lines[3].startswith("refused: log loss")


@pytest.mark.slow
async def test_a_running_aggregator_takes_the_new_model_over(
    lab: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a restart, the next judgement has the new model."""
    async with lab.aggregator() as aggregator:
        address = ["--data", str(lab.folder), "--aggregator", f"127.0.0.1:{aggregator.port}"]
        assert aggregator.models.in_use.is_prior
        assert await asyncio.to_thread(cli.main, ["admin", "train", *address]) == cli.FAILED
        assert "no fault is on record" in capsys.readouterr().err
        now_us = time.time_ns() // 1000
        await asyncio.to_thread(
            aggregator.store.in_transaction,
            lambda connection: put(connection, simulated=True, now_us=now_us),
        )
        command = ["admin", "train", "--simulated", *address]
        assert await asyncio.to_thread(cli.main, command) == cli.OK
        assert "in use from now on: log loss of the last 28 days" in capsys.readouterr().out
        assert not aggregator.models.in_use.is_prior


async def test_who_hangs_up_does_not_have_two_models_trained_at_once() -> None:
    """Aborted trainings in a loop: each held a thread for advice, until all were busy."""
    begun, go = threading.Event(), threading.Event()

    class Slow:
        def train(self, *, simulated: bool) -> Any:
            begun.set()
            assert go.wait(GUARD_SECONDS)
            raise EventsError("no fault is on record")

    service, request = AdminService(None, 0, Slow(), None), admin_pb2.TrainHazardRequest()  # type: ignore[arg-type]
    request_task = asyncio.create_task(service.TrainHazard(request, None))
    await asyncio.to_thread(begun.wait, GUARD_SECONDS)
    request_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request_task
    with pytest.raises(ResourceExhausted, match="already being trained"):
        await service.TrainHazard(request, None)
    go.set()
    async with asyncio.timeout(GUARD_SECONDS):
        while True:
            try:
                await service.TrainHazard(request, None)
            except ResourceExhausted:
                await asyncio.sleep(0)
            except InsufficientData:
                break
