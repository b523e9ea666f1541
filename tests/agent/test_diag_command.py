"""`gangline diag import`: reports of DCGM 3 and 4, and invalid reports."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline import cli
from gangline.agent.collectors import dcgm_fields
from gangline.agent.diagnostic import (
    DEPTH_MAX,
    REPORT_BYTES_MAX,
    NotAReport,
    Outcome,
    parse_report,
)
from gangline.agent.inventory import HostDevice
from tests.agent import test_release_command as release_world
from tests.agent.fakes import KeptEvents
from tests.agent.test_gpu_release import A, B

UUIDS = [f"GPU-{n:08x}-0000-0000-0000-000000000000" for n in range(2)]
SERIALS = ["1650523000001", "1650523000002"]


def dcgm3(**changes: Any) -> dict[str, Any]:
    """Return a report as DCGM 3.3 prints it: GPUs by number in strings, serial numbers by number."""
    pcie = [{"gpu_id": "0", "status": "Pass"}, {"gpu_id": "1", "status": "Fail", **changes}]
    return {
        "DCGM GPU Diagnostic": {
            "version": "3.3.8",
            "Driver Version Detected": "535.161.08",
            "GPU Device IDs": ["2330", "2330"],
            "GPU Device Serials": dict(zip("01", SERIALS, strict=True)),
            "test_categories": [
                {"category": "Deployment", "tests": [
                    {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "Pass"}]}]},
                {"category": "Integration", "tests": [
                    {"name": "PCIe", "results": pcie},
                    {"name": "EUD Test", "results": [{"gpu_id": "0", "status": "Skip"}]}]},
            ],
        }
    }  # fmt: skip


def dcgm4(**changes: Any) -> dict[str, Any]:
    """Return a report as DCGM 4.4 prints it: another key, entities, a summary of each test."""

    def of(number: int, **more: Any) -> dict[str, Any]:
        return {
            "entity_group": "GPU",
            "entity_group_id": 1,
            "entity_id": number,
            "status": "Pass",
            **more,
        }

    cpu = {"entity_group": "CPU", "entity_group_id": 7, "entity_id": 0, "status": "Fail"}
    return {
        "DCGM Diagnostic": {
            "test_categories": [
                {"category": "Hardware", "tests": [
                    {"name": "memory", "results": [of(0), of(1, **changes)], "test_summary": {"status": "Pass"}},
                    {"name": "cpu_eud", "results": [cpu], "test_summary": {"status": "Fail"}}]},
            ],
        },
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": [
            {"entity_id": n, "device_id": "2330", "serial_num": serial} for n, serial in enumerate(SERIALS)]}],
        "metadata": {"DCGM Version": "4.4.2", "Driver Version Detected": "580.95.05"},
    }  # fmt: skip


def parsed(report: object) -> list[tuple[str, Outcome | None, str]]:
    return [
        (gpu.serial, gpu.outcome, gpu.message)
        for gpu in parse_report(json.dumps(report).encode()).gpus
    ]


def test_a_report_of_dcgm_3() -> None:
    warnings = [{"warning": "replays on GPU 1 above 8", "error_id": 32}]
    assert parsed(dcgm3(warnings=warnings)) == [
        (SERIALS[0], Outcome.PASSED, "2 tests passed, 1 skipped"),
        (SERIALS[1], Outcome.FAILED, "PCIe: replays on GPU 1 above 8"),
    ]
    assert parsed(dcgm3(warnings="in one string"))[1][2] == "PCIe: in one string"
    assert parsed(dcgm3())[1][2] == "PCIe: fail"


def test_a_report_of_dcgm_4() -> None:
    report = parse_report(json.dumps(dcgm4()).encode())
    assert (report.dcgm_version, report.driver_version) == ("4.4.2", "580.95.05")
    assert [gpu.outcome for gpu in report.gpus] == [Outcome.PASSED] * 2, "the CPU is no GPU"
    failed = dcgm4(status="Fail", warnings=[{"warning": "DBE", "error_id": 3, "error_severity": 2}])
    assert parsed(failed)[1] == (SERIALS[1], Outcome.FAILED, "memory: DBE")


def test_a_pass_with_an_error_beside_it_is_a_warning() -> None:
    """DCGM 284: memory that could not be allocated, and so was not tested, passed."""
    odd = dcgm4(warnings=[{"warning": "could not allocate 75%", "error_id": 21}])
    assert parsed(odd)[1][1] is Outcome.WARNED


def test_a_status_that_we_do_not_know_did_not_pass() -> None:
    assert parsed(dcgm4(status="Exploded"))[1][1] is Outcome.FAILED


def test_skipped_tests_prove_nothing() -> None:
    report = dcgm4()
    for result in report["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"]:
        result["status"] = "Skip"
    assert [outcome for _, outcome, _ in parsed(report)] == [None, None]


def test_a_failure_before_any_gpu_is_named_is_of_all() -> None:
    """libcuda could not be loaded, all other tests were skipped, and each GPU passed."""
    report = dcgm3()["DCGM GPU Diagnostic"]
    del report["GPU Device Serials"]
    report["test_categories"] = [
        {"category": "Deployment", "tests": [
            {"name": "Denylist", "results": [{"status": "Pass"}]},
            {"name": "CUDA Main Library", "results": [{"status": "Fail", "warnings": "Cannot open libcuda.so.1"}]}]},
        {"category": "Integration", "tests": [
            {"name": "PCIe", "results": [{"gpu_ids": "0,1", "status": "Skip"}]}]},
    ]  # fmt: skip
    failed = [("", Outcome.FAILED, "CUDA Main Library: Cannot open libcuda.so.1")] * 2
    assert parsed({"DCGM GPU Diagnostic": report}) == failed
    del report["test_categories"][1]
    report["GPU Device IDs Detected"] = ["20b5", "20b5"]
    assert parsed({"DCGM GPU Diagnostic": report}) == failed
    del report["GPU Device IDs Detected"]
    with pytest.raises(
        NotAReport, match="no result of a GPU, and it failed: CUDA Main Library: Cannot"
    ):
        parsed({"DCGM GPU Diagnostic": report})


def test_what_passed_of_no_gpu_is_no_pass_of_one() -> None:
    """The denylist was empty, and no test of the GPU ran."""
    report = dcgm3()
    tests = report["DCGM GPU Diagnostic"]["test_categories"]
    tests[0]["tests"][0]["results"] = [{"status": "Pass"}]
    del tests[1]["tests"][0]
    assert parsed(report) == [
        (
            SERIALS[0],
            None,
            "1 test passed, 1 skipped, none of the GPU itself, so the result proves nothing",
        ),
        (
            SERIALS[1],
            None,
            "1 test passed, 0 skipped, none of the GPU itself, so the result proves nothing",
        ),
    ]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("Fail", Outcome.FAILED), ("Warn", Outcome.WARNED), ("Skip", Outcome.PASSED)],
)
def test_a_summary_that_is_worse_than_its_results_counts(status: str, outcome: Outcome) -> None:
    """The summary of `software` failed, its results were skipped, and GPUs passed."""
    report = dcgm4()
    results = [
        {"entity_group": "GPU", "entity_group_id": 1, "entity_id": n, "status": "Skip"}
        for n in (0, 1)
    ]
    summary = {
        "status": status,
        "warnings": [{"warning": "Fabric manager is not running", "error_id": 20}],
    }
    report["DCGM Diagnostic"]["test_categories"] += [
        {
            "category": "Deployment",
            "tests": [{"name": "software", "results": results, "test_summary": summary}],
        }
    ]
    assert [gpu for _, gpu, _ in parsed(report)] == [outcome] * 2
    if outcome:
        assert parsed(report)[0][2] == "software: Fabric manager is not running"


def test_a_failure_of_another_device_is_told_and_counts_for_no_gpu() -> None:
    """A Grace CPU failed; in the form of DCGM 3 all GPUs passed, because the failure named no GPU."""
    assert parse_report(json.dumps(dcgm4()).encode()).other_failures == ("CPU 0: cpu_eud: fail",)
    report = dcgm3()
    tests = report["DCGM GPU Diagnostic"]["test_categories"]
    tests[0]["tests"][0]["results"] = [{"cpu_ids": "0,1", "status": "Pass"}]
    tests[1]["tests"][0]["results"] = [{"cpu_ids": "1", "status": "Fail", "warnings": "core 7"}]
    whole = parse_report(json.dumps(report).encode())
    assert whole.other_failures == ("cpu 1: PCIe: core 7",)
    assert [(gpu.outcome, gpu.passed) for gpu in whole.gpus] == [(None, [])] * 2


def test_words_before_the_report_and_an_empty_test() -> None:
    """nv-hostengine prints warnings on the same stream; an unreadable test may be the failed one."""
    before = b"WARNING: nv-hostengine is running as a non-root user; {some} tests may be skipped.\n"
    report = dcgm3()
    [of_0, of_1] = parse_report(before + json.dumps(report).encode()).gpus
    assert (of_0.outcome, of_1.outcome) == (Outcome.PASSED, Outcome.FAILED)
    report["DCGM GPU Diagnostic"]["test_categories"][0]["tests"].insert(0, None)
    [of_0, of_1] = parse_report(before + json.dumps(report).encode()).gpus
    assert (of_0.outcome, of_1.outcome) == (None, Outcome.FAILED)
    assert "1 parts of the report cannot be read, so the result proves nothing" in of_0.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "nothing in it"),
        (b"+-----\n| Diagnostic", "expected JSON, as dcgmi diag -j prints it"),
        (b"[1]", "expected JSON"),
        (b"{", "not JSON"),
        (b'{"fruit": 1}', "but fruit"),
        (b'{"DCGM Diagnostic": 3}', "no 'DCGM GPU Diagnostic' or 'DCGM Diagnostic'"),
        (b'{"DCGM Diagnostic": {"test_categories": []}}', "no result of a GPU"),
        (b'{"DCGM Diagnostic": {"runtime_error": "busy"}}', "did not run: busy"),
        (b'{"a":' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}", "nested deeper than"),
        (b" " * (REPORT_BYTES_MAX + 1), "more than 4 MiB"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused_with_what_would_be(content: bytes, message: str) -> None:
    with pytest.raises(NotAReport, match=message):
        parse_report(content)


def test_more_tests_than_any_report_has_are_refused() -> None:
    report = dcgm4()
    tests = report["DCGM Diagnostic"]["test_categories"][0]["tests"]
    tests += [{"name": f"t{n}", "results": []} for n in range(600)]
    with pytest.raises(NotAReport, match="more than 512 tests"):
        parsed(report)


def test_brackets_within_texts_are_not_depth() -> None:
    parsed(dcgm4(warnings=[{"warning": '"[' + "[" * 100}]))


def test_the_thirteen_systems_and_seven_conditions_of_dcgm() -> None:
    assert len(dcgm_fields.HEALTH_SYSTEMS) == 13 and len(dcgm_fields.POLICY_CONDITIONS) == 7


Told = tuple[KeptEvents, list[str]]
Run = Callable[[object, list[str]], tuple[int, str, str]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """Yield an agent with two GPUs with serial numbers: its event sink, and the command's options."""
    gpus = [
        HostDevice("gpu", uuid, {"pci_address": address, "serial": serial})
        for uuid, address, serial in zip(UUIDS, (A, B), SERIALS, strict=True)
    ]
    sink = KeptEvents()
    monkeypatch.setattr(release_world, "GPUS", gpus)
    monkeypatch.setattr(release_world, "KeptEvents", lambda: sink)
    with release_world.Agent(tmp_path).running() as agent:
        yield sink, ["--socket", str(agent.socket)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that imports a report; it returns exit code, output and error output."""

    def run(content: object, options: list[str]) -> tuple[int, str, str]:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        code = cli.main(["diag", "import", "-", *options])
        output, errors = capsys.readouterr()
        return code, output, errors

    return run


def test_a_report_becomes_an_event_of_each_gpu(told: Told, run: Run) -> None:
    sink, options = told
    report = dcgm3(warnings=[{"warning": "replays", "error_id": 32}])
    output = f"{UUIDS[0]} passed: 2 tests passed, 1 skipped\n{UUIDS[1]} failed: PCIe: replays\n"
    assert run(report, options)[:2] == (cli.OK, output)
    assert [(e.name, e.device, e.code) for e in sink.events] == [
        ("gpu.diagnostic", UUIDS[0], 0),
        ("gpu.diagnostic", UUIDS[1], 2),
    ]
    failed = sink.events[1]
    assert failed.message == "dcgmi diag: PCIe: replays"
    assert failed.attributes["failed"] == "PCIe" and failed.attributes["dcgm_version"] == "3.3.8"
    run(report, options)
    assert len({event.event_id for event in sink.events}) == 2, "the same report is no news"


def test_a_script_reads_json(told: Told, run: Run) -> None:
    """A burn-in pipeline had to parse sentences to see which GPU failed."""
    _, options = told
    report = dcgm3(warnings=[{"warning": "replays", "error_id": 32}])
    code, output, errors = run(report, [*options, "--json"])
    document = json.loads(output)
    assert (code, errors, document["format"]) == (cli.OK, "", cli.JSON_FORMAT)
    assert [(row["gpu"], row["outcome"], row["imported"]) for row in document["gpus"]] == [
        (UUIDS[0], "passed", True),
        (UUIDS[1], "failed", True),
    ]
    code, output, errors = run(report, ["--socket", "/nowhere/agent.sock", "--json"])
    assert (code, errors) == (cli.FAILED, "")
    for row in json.loads(output)["gpus"]:
        assert row["imported"] is False and "/nowhere/agent.sock" in row["error"]


def test_a_gpu_without_serial_number_is_named_by_hand(told: Told, run: Run) -> None:
    sink, options = told
    report = dcgm4()
    del report["entity_groups"]
    code, _, error = run(report, options)
    assert code == cli.USAGE
    assert "no serial number for GPU 0, 1. Give its UUID: --gpu 0=GPU-..." in error
    named = [word for n, uuid in enumerate(UUIDS) for word in ("--gpu", f"{n}={uuid}")]
    assert run(report, [*options, *named])[0] == cli.OK
    assert [event.device for event in sink.events] == UUIDS


def test_a_report_of_another_host_is_refused(told: Told, run: Run) -> None:
    """A report that was copied to the wrong host would return a broken GPU to service."""
    sink, options = told
    report = dcgm4()
    report["entity_groups"][0]["entities"][0]["serial_num"] = "999"
    code, _, error = run(report, options)
    assert code == cli.FAILED and "no GPU of this host has the serial number '999'" in error
    assert [event.device for event in sink.events] == [UUIDS[1]]


def test_without_an_agent_it_is_said(tmp_path: Path, run: Run) -> None:
    code, _, error = run(dcgm4(), ["--run-folder", str(tmp_path)])
    assert code == cli.FAILED and "agent.sock" in error
    code, _, error = run(b"no", ["--run-folder", str(tmp_path)])
    assert code == cli.USAGE
    assert error.startswith("gangline diag: standard input: it begins with 'no'")
