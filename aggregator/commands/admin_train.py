"""`gangline admin train`: trains a hazard model on stored faults, or a model of interference on stored co-locations."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import grpc

from ...cli import json_object
from ...contract.client.connection import (
    FAILED,
    OK,
    CommandError,
    ConnectionOptions,
    read_connection_options,
)
from ...contract.durable_file import CopyError
from ...contract.wire import admin_pb2
from ...fingerprints.interference import InterferenceError
from ..config import AggregatorConfig
from ..hazard.events import EventsError
from ..hazard.features import FEATURE_NAMES
from ..hazard.model import HazardModel
from ..hazard.models import ModelRegistry, TrainingResult
from ..runs.interference_models import InterferenceModels
from ..service.admin import trained_message
from ..store.maintenance.consistent_view import in_use, no_store_message
from ..store.store import Store
from ..store.store_folder import STORE_FILE
from .admin_store import add_store_options, admin_stub, call_error, guarded, held_store


def main(arguments: list[str]) -> int:
    """Train a model. Exit codes: 1 rejected, or too few faults; 3 the aggregator is silent."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.interference and options.simulated:
        parser.error("--interference excludes --simulated: simulated jobs train no model of it")
    return guarded("train", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if not (options.data / STORE_FILE).exists():
        raise CopyError(no_store_message(options.data))
    if options.interference:
        return _run_interference(options)
    if in_use(options.data):
        done = _running(options.data, read_connection_options(options), options.simulated)
    else:
        done = _stopped(options.data, options.simulated)
    if options.json:
        print(json_object({"accepted": done.accepted, "message": done.reason, "model": json.loads(done.model.to_text())}))  # fmt: skip
    else:
        print(_result_text(done))
    return OK if done.accepted else FAILED


def _run_interference(options: argparse.Namespace) -> int:
    if in_use(options.data):
        done = _interference_running(options.data, read_connection_options(options))
    else:
        done = _interference_stopped(options.data)
    if options.json:
        print(
            json_object(
                {
                    "accepted": done.accepted, "message": done.message, "pairs": done.pairs, "workloads": done.workloads,
                    "error_ratio": done.error_ratio, "physics_error_ratio": done.physics_error_ratio,
                }
            )
        )  # fmt: skip
    else:
        print(f"{done.pairs} co-locations of {done.workloads} workloads")
        print(f"{'in use from now on' if done.accepted else 'refused'}: {done.message}")
    return OK if done.accepted else FAILED


def _interference_running(
    data: Path, connection_options: ConnectionOptions
) -> admin_pb2.TrainedInterference:
    with held_store(data, connection_options):
        pass  # fails if the aggregator there has another store
    with admin_stub(connection_options) as stub:
        try:
            done: admin_pb2.TrainedInterference = stub.TrainInterference(
                admin_pb2.TrainInterferenceRequest()
            )
            return done
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise CommandError(str(error.details()), FAILED) from error
            raise call_error(error, data, connection_options) from error


def _interference_stopped(data: Path) -> admin_pb2.TrainedInterference:
    store = Store.open(data, AggregatorConfig(data=data))
    try:
        return trained_message(InterferenceModels(store, time.time_ns).train())
    except InterferenceError as error:
        raise CommandError(str(error), FAILED) from error
    finally:
        store.close()


def _result_text(done: TrainingResult) -> str:
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
        f"{'in use from now on' if done.accepted else 'refused'}: {done.reason}"
    )


def _running(data: Path, connection_options: ConnectionOptions, simulated: bool) -> TrainingResult:
    with held_store(data, connection_options):
        pass  # fails if the aggregator there has another store, whose record must not be used
    with admin_stub(connection_options) as stub:
        try:
            done = stub.TrainHazard(admin_pb2.TrainHazardRequest(simulated=simulated))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise CommandError(str(error.details()), FAILED) from error
            raise call_error(error, data, connection_options) from error
    return TrainingResult(HazardModel.from_text(done.model), done.accepted, done.message)


def _stopped(data: Path, simulated: bool) -> TrainingResult:
    store = Store.open(data, AggregatorConfig(data=data))
    try:
        models = ModelRegistry(store, time.time_ns)
        models.load()
        return models.train(simulated=simulated)
    except EventsError as error:
        raise CommandError(str(error), FAILED) from error
    finally:
        store.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin train",
        description="Trains the model of how often a host fails, from the stored findings. Compares the new model with the current "
        "one on the last four weeks, which the new one has not learned from. Rejects it if it is worse; otherwise the next "
        "judgment uses it. The table `models` has both. With --interference: trains the model of how much jobs slow each other, "
        "from the table `colocations`, and uses it if it predicts pairs that it has not learned from better than physics alone.",
        epilog="exit codes: 0 the model is in use, 1 rejected or too little data, 2 wrong usage, 3 no aggregator answers",
    )
    add_store_options(parser)
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="learn from the simulated hosts, not from the real ones; the model applies to all hosts",
    )
    parser.add_argument(
        "--interference",
        action="store_true",
        help="train the model of how much jobs slow each other, in place of the model of hazard",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser
