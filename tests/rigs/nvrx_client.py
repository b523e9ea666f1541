"""Runs the launcher client of NVIDIA's resiliency extension as its launcher does, and prints the result as JSON.

A separate program, because the client's imports are not Gangline's: `tests/nvrx.py` starts it with
the client's folder on PYTHONPATH. Torch is not installed: of the package `fault_tolerance`, which
imports it, only the requested modules are loaded, below an empty fake.
"""

from __future__ import annotations

import http.client
import json
import logging
import sys
import time
import types
from typing import Any


def _without_torch() -> None:
    import nvidia_resiliency_ext  # type: ignore[import-not-found]

    package = types.ModuleType("nvidia_resiliency_ext.fault_tolerance")
    package.__path__ = [f"{nvidia_resiliency_ext.__path__[0]}/fault_tolerance"]
    sys.modules[package.__name__] = package
    sys.modules["torch"] = types.ModuleType("torch")


def health(endpoint: str, calls: str, echo: str = "", method: str = "") -> dict[str, Any]:
    """Call the node's health check *calls* times, each by a new channel, as the launcher does before each rendezvous.

    With *echo*, a socket, alternate with *method* there, by a new channel too.
    """
    import grpc
    from nvidia_resiliency_ext.shared_utils.health_check import (  # type: ignore[import-not-found]
        NodeHealthCheck,
    )

    answers, seconds, echo_seconds = [], [], []
    check = NodeHealthCheck(endpoint=endpoint)
    for _ in range(int(calls)):
        began = time.perf_counter()
        answers.append(check())
        seconds.append(time.perf_counter() - began)
        if echo:
            began = time.perf_counter()
            with grpc.insecure_channel(f"unix://{echo}") as channel:
                ask: Any = channel.unary_unary(method)
                ask(b"x" * 60, timeout=60.0)
            echo_seconds.append(time.perf_counter() - began)
    return {"answers": answers, "seconds": seconds, "echo_seconds": echo_seconds}


def segment(folder: str) -> dict[str, Any]:
    """Ask whether this launcher's segment may join; None where the check does not apply to it."""
    _without_torch()
    from nvidia_resiliency_ext.fault_tolerance.segment_health_check import (  # type: ignore[import-not-found]
        get_segment_health_check,
    )

    check = get_segment_health_check(folder)
    return {"healthy": check() if check else None}


def attribution(endpoint: str, log_path: str, enforce: str, polls: str) -> dict[str, Any]:
    """Submit a log of a failed cycle, and poll its verdict, as the launcher's poller does."""
    from nvidia_resiliency_ext.shared_utils import (  # type: ignore[import-not-found]
        health_check,
    )

    kind = health_check.AttributionService
    if not hasattr(kind, "request_terminal_analysis"):  # 0.6 shows the answer only in its log
        service = kind(endpoint)
        service._do_submit_log(log_path)
        seconds = []
        for _ in range(int(polls)):
            began = time.perf_counter()
            service._get_results(log_path)
            seconds.append(time.perf_counter() - began)
        answers = _plain(endpoint, log_path, int(polls))
        return {"stop_requested": False, "seconds": seconds, "answer_seconds": answers}
    service = kind(endpoint, enforce_stop=enforce == "enforce")
    service._submit_log(log_path)
    service.request_terminal_analysis()
    seconds = []
    for _ in range(int(polls)):
        service._terminal_pending = service._terminal_pending or log_path
        began = time.perf_counter()
        service._poll_once()
        seconds.append(time.perf_counter() - began)
    return {
        "answer_seconds": _plain(endpoint, log_path, int(polls)), "stop_requested": service.stop_requested(), "stop_seen": service.stop_verdict_observed(),
        "pending": service._terminal_pending, "seconds": seconds,
    }  # fmt: skip


def _plain(endpoint: str, log_path: str, calls: int) -> list[float]:
    """Return the seconds of *calls* answers without the client's TLS context, which the client
    creates again for each call.
    """
    seconds = []
    for _ in range(calls if calls > 1 else 0):
        began = time.perf_counter()
        connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
        connection.request("GET", f"/logs?log_path={log_path}&wait=false")
        connection.getresponse().read()
        connection.close()
        seconds.append(time.perf_counter() - began)
    return seconds


def cycles(folder: str, plan: str) -> dict[str, Any]:
    """Write cycle-info files from *plan*, a JSON list of {job, attempt, cycle, start, end, log,
    active, standby, ranks}.
    """
    _without_torch()
    from nvidia_resiliency_ext.fault_tolerance.cycle_info_writer import (  # type: ignore[import-not-found]
        CycleInfoReporter,
        CycleInfoWriter,
    )

    writer = CycleInfoWriter(folder)
    for load in json.loads(plan):
        writer.write_cycle_start(
            job_id=load["job"], attempt_index=load["attempt"], cycle_number=load["cycle"], cycle_start_time=load["start"],
            cycle_log_file=load["log"], active_nodes=CycleInfoReporter._format_nodes(load["active"]),
            standby_nodes=CycleInfoReporter._format_nodes(load["standby"]), active_ranks=load["ranks"],
        )  # fmt: skip
        if load["end"]:
            writer.update_cycle_end(load["job"], load["attempt"], load["cycle"], load["end"])
    writer._current_cycle = None  # a launcher that goes on
    writer.shutdown()
    return {}


def main() -> None:
    """Run one of the functions above with the arguments given."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger().addHandler(Kept())
    logging.getLogger("nvrx").setLevel(logging.INFO)
    logging.getLogger("nvrx").addHandler(Kept())
    what = {function.__name__: function for function in (health, segment, attribution, cycles)}[
        sys.argv[1]
    ]
    print(json.dumps({**what(*sys.argv[2:]), "log": lines}))


if __name__ == "__main__":
    main()
