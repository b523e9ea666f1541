"""`gangline admin train`: a model of hazard from the faults that the store has on record."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import grpc

from ...cli import json_object
from ...contract.wire import admin_pb2
from ..config import AggregatorConfig
from ..durable_file import CopyError
from ..hazard.events import EventsError
from ..hazard.features import FEATURE_NAMES
from ..hazard.model import HazardModel
from ..hazard.models import Models, Trained
from ..scoring.evaluate import FAULT_RULES
from ..store.duckdb_file import FILE
from ..store.maintenance.backup import in_use, no_store
from ..store.store import Store
from .admin_store import add_store_options, channel, guarded, held, told
from .connection import FAILED, OK, CommandError, Way, way_of


def main(arguments: list[str]) -> int:
    """Train. 1: too few faults on record, or worse than the model in use, which stays; 3: see `compact`."""
    options = _parser().parse_args(arguments)
    return guarded("train", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if not (options.data / FILE).exists():
        raise CopyError(no_store(options.data))
    if in_use(options.data):
        done = _running(options.data, way_of(options), options.simulated)
    else:
        done = _stopped(options.data, options.simulated)
    if options.json:
        print(json_object({"accepted": done.accepted, "words": done.words, "model": json.loads(done.model.to_text())}))  # fmt: skip
    else:
        print(_said(done))
    return OK if done.accepted else FAILED


def _said(done: Trained) -> str:
    model = done.model
    weights = ", ".join(
        f"{name} {weight:.2f}"
        for name, weight in zip(FEATURE_NAMES, model.weights, strict=True)
        if weight
    )
    return (
        f"{model.faults} faults of {model.nodes} hosts, {model.first_time} to {model.last_time}\n"
        f"{model.source}: {weights or 'base only'}\n"
        f"out of fold: AUC {model.metrics['auc']:.3f}, recall in the top 5 % {model.metrics['recall']:.3f}, "
        f"ECE {model.metrics['ece']:.4f}\n"
        f"{'in use from now on' if done.accepted else 'refused'}: {done.words}"
    )


def _running(data: Path, way: Way, simulated: bool) -> Trained:
    with held(data, way):
        pass  # it raises where the aggregator there stores elsewhere, on whose record nobody asked to train
    with channel(way) as stub:
        try:
            done = stub.TrainHazard(admin_pb2.TrainHazardRequest(simulated=simulated))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise CommandError(str(error.details()), FAILED) from error
            raise told(error, data, way) from error
    return Trained(HazardModel.from_text(done.model), done.accepted, done.words)


def _stopped(data: Path, simulated: bool) -> Trained:
    store = Store.open(data, AggregatorConfig(data=data))
    try:
        models = Models(store, FAULT_RULES, time.time_ns)
        models.load()
        return models.train(simulated=simulated)
    except EventsError as error:
        raise CommandError(str(error), FAILED) from error
    finally:
        store.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin train",
        description="Learn how often a host fails from the findings on record, by what was before. The model is "
        "compared with the one in use on the last four weeks, from which it did not learn; it is used from the next "
        "judgement on, and refused when worse. Both stand in the table `models`.",
        epilog="exit codes: 0 it is in use, 1 refused or too little on record, 2 wrong usage, 3 no aggregator answers",
    )
    add_store_options(parser)
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="learn from the simulated hosts, not from the real ones; the model judges all of them",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser
