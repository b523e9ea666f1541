"""Parser of `dcgmi diag -j` output of DCGM 3 and 4, by GPU. Pure; the agent runs no diagnostic.

DCGM 4 renamed the report's key, names GPUs as entities, and lists serial numbers by entity. Test
names differ by version and are shown unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ..contract.text import counted

#: Size of a report; `dcgmi diag -r 4 -j -v` of 8 GPUs has about 100 KiB.
REPORT_BYTES_MAX = 4 << 20
DEPTH_MAX = 32
#: Number of tests, and of results per test.
TESTS_MAX, RESULTS_MAX = 512, 1024
TEXT_CHARACTERS_MAX = 200
#: The report's key in DCGM 3 and in DCGM 4.
KEYS = ("DCGM GPU Diagnostic", "DCGM Diagnostic")
_GPU_GROUPS = ("GPU", 1)
#: Keys in a result of DCGM 3 that name a device other than a GPU.
_OTHER_DEVICE = re.compile(r"((?:cpu|core|switch|nvswitch|link)\w{0,16}?)_(?:ids?|serials?)")
#: Statuses, the best first. An unknown status counts as a failure.
_RANKS = {"skip": 0, "not run": 0, "pass": 0, "warn": 1}
_RANK_OF_FAILURE = 2
#: dcgmi and its libraries print warnings before the report.
_FIRST_BRACE = re.compile(r"^[ \t]*\{", re.MULTILINE)


class Outcome(IntEnum):
    """Combined result of a GPU's tests; the number is sent as the event's code."""

    PASSED = 0
    WARNED = 1
    FAILED = 2


class NotAReport(ValueError):
    """The content is not a diagnostic's report; the message says what is expected."""


@dataclass(slots=True)
class GpuDiagnostic:
    """Results of a GPU: test names by status, and the texts of warnings and failures.

    `number`: DCGM's. `own_passes`: passed results that name this GPU. `unread`: parts of the report
    that could not be read.
    """

    number: str
    serial: str = ""
    passed: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])
    warned: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    texts: list[str] = field(default_factory=list[str])
    own_passes: int = 0
    unread: int = 0

    @property
    def outcome(self) -> Outcome | None:
        """Return the combined result; None if nothing was tested, or a part could not be read."""
        if self.failed:
            return Outcome.FAILED
        if self.warned:
            return Outcome.WARNED
        return Outcome.PASSED if self.own_passes and not self.unread else None

    @property
    def message(self) -> str:
        if self.failed or self.warned:
            return "; ".join(self.texts)[:1000]
        counts = f"{counted(len(self.passed), 'test')} passed, {len(self.skipped)} skipped"
        if self.unread:
            return f"{counts}, {self.unread} parts of the report cannot be read, so the result proves nothing"
        if not self.own_passes:
            return f"{counts}, none of the GPU itself, so the result proves nothing"
        return counts


@dataclass(frozen=True, slots=True)
class DiagnosticReport:
    """A report's versions and GPUs. `other_failures`: failures of devices that are not GPUs."""

    dcgm_version: str
    driver_version: str
    gpus: tuple[GpuDiagnostic, ...]
    other_failures: tuple[str, ...] = ()


@dataclass(slots=True)
class _Result:
    """A result. `gpus`: [] means all GPUs; `device`: a device that is not a GPU, or ""."""

    test: str
    gpus: list[str]
    device: str
    status: str
    texts: list[str]

    @property
    def rank(self) -> int:
        return _RANKS.get(self.status, _RANK_OF_FAILURE)


def parse_report(content: bytes) -> DiagnosticReport:
    """Return the report in the output of `dcgmi diag -j`. Raises NotAReport."""
    if len(content) > REPORT_BYTES_MAX:
        raise NotAReport(
            f"more than {REPORT_BYTES_MAX >> 20} MiB: expected the output of one dcgmi diag -j"
        )
    root = _load(content)
    key = next((known_key for known_key in KEYS if isinstance(root.get(known_key), dict)), "")
    if not key:
        keys = ", ".join(list(root)[:5])
        raise NotAReport(
            f"no {' or '.join(map(repr, KEYS))} in it but {keys or 'nothing'}: expected dcgmi diag -j"
        )
    body: dict[str, Any] = root[key]
    if error := body.get("runtime_error") or root.get("runtime_error"):
        raise NotAReport(f"the diagnostic did not run: {_text(error)}")
    serials = _serials(root) | _serials(body)
    results, unread = _all_results(body)
    # Numbers also come from results: a test may fail before the first result that names a GPU.
    numbers = dict.fromkeys([*serials, *(number for result in results for number in result.gpus)])
    if not numbers:
        numbers = dict.fromkeys(map(str, range(len(_items(body.get("GPU Device IDs Detected"))))))
    gpus = {
        number: GpuDiagnostic(number, serials.get(number, ""), unread=unread) for number in numbers
    }
    gpu_results = [result for result in results if not result.device]
    for result in gpu_results:
        for number in result.gpus or list(gpus):
            _add(gpus[number], result)
    if not gpus:
        texts = [text for result in gpu_results if result.rank for text in result.texts]
        failure = f", and it failed: {'; '.join(texts)[:400]}" if texts else ""
        raise NotAReport(f"it has no result of a GPU{failure}")
    if not gpu_results and not unread:
        raise NotAReport("it has no result of a GPU")
    sections = (body, root, _mapping(body.get("metadata")), _mapping(root.get("metadata")))
    return DiagnosticReport(
        _first(sections, "version", "DCGM Version"),
        _first(sections, "Driver Version Detected"),
        tuple(gpus.values()),
        tuple(
            f"{result.device}: {text}"
            for result in results
            if result.device and result.rank
            for text in result.texts
        ),
    )


def _load(content: bytes) -> dict[str, Any]:
    text = content.decode(errors="replace").strip()
    if not text:
        raise NotAReport("nothing in it: expected the output of dcgmi diag -j")
    begin = _FIRST_BRACE.search(text)
    if begin is None or text.startswith("["):
        raise NotAReport(f"it begins with {text[:30]!r}: expected JSON, as dcgmi diag -j prints it")
    text = text[begin.start() :]
    _check_depth(text)
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotAReport(f"not JSON: {error}") from None
    assert isinstance(root, dict)  # the text starts with a brace
    return root


def _check_depth(text: str) -> None:
    depth = 0
    quoted = escaped = False
    for character in text:
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in "{[":
            depth += 1
            if depth > DEPTH_MAX:
                raise NotAReport(
                    f"nested deeper than {DEPTH_MAX}: expected the output of dcgmi diag -j"
                )
        elif character in "}]":
            depth -= 1


def _serials(part: Mapping[str, Any]) -> dict[str, str]:
    """Return DCGM's number of a GPU -> its serial number, or "": from DCGM 3 or DCGM 4."""
    serials: dict[str, str] = {}
    for number, serial in _mapping(part.get("GPU Device Serials")).items():
        serials[str(number)] = _text(serial)
    for group in _list(part.get("entity_groups")):
        if group.get("entity_group") in _GPU_GROUPS or group.get("entity_group_id") == 1:
            for entity in _list(group.get("entities")):
                serials[str(entity.get("entity_id", ""))] = _text(entity.get("serial_num") or "")
    return serials


def _all_results(body: Mapping[str, Any]) -> tuple[list[_Result], int]:
    """Return all results, and the number of unreadable tests and results, which may have failed."""
    all_results: list[_Result] = []
    tests = unread = 0
    for category in _items(body.get("test_categories")):
        for test in _items(_mapping(category).get("tests")):
            tests += 1
            results = _items(_mapping(test).get("results"))
            if tests > TESTS_MAX or len(results) > RESULTS_MAX:
                raise NotAReport(f"more than {TESTS_MAX} tests, or {RESULTS_MAX} results of one")
            unread += not isinstance(test, dict) or sum(
                not isinstance(result, dict) for result in results
            )
            all_results += _results_of(_mapping(test))
    return all_results, unread


def _results_of(test: Mapping[str, Any]) -> list[_Result]:
    """Return a test's results, and its summary if the summary is worse than all results."""
    name = _text(test.get("name") or "test without a name")
    results = [_result(name, entry) for entry in _list(test.get("results"))]
    if summary := _mapping(test.get("test_summary")):
        whole = _result(name, summary)
        if not results or whole.rank > max(entry.rank for entry in results):
            results.append(whole)
    return results


def _result(name: str, result: Mapping[str, Any]) -> _Result:
    gpus: list[str] = []
    device = next(
        (
            f"{match[1]} {_text(result[key])}"
            for key in result
            if (match := _OTHER_DEVICE.fullmatch(key))
        ),
        "",
    )
    if "entity_id" in result:
        entity = _text(result["entity_id"])
        if result.get("entity_group") in _GPU_GROUPS or result.get("entity_group_id") == 1:
            gpus = [entity]
        else:
            device = f"{_text(result.get('entity_group') or 'entity')} {entity}"
    else:
        ids = result.get("gpu_ids", result.get("gpu_id", ""))
        gpus = [part.strip() for part in str(ids).split(",") if part.strip()]
    texts, errors = list[str](), False
    for warning in _warnings(result):
        texts.append(f"{name}: {_text(warning.get('warning', ''))}")
        errors |= bool(warning.get("error_id"))
    status = str(result.get("status", "")).strip().lower()
    if status == "pass" and errors:
        status = "warn"  # DCGM 284: it can pass and report an error
    return _Result(
        name, gpus, "" if gpus else device, status, texts or [f"{name}: {status or 'no status'}"]
    )


def _warnings(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    warnings = result.get("warnings", result.get("warning"))
    items = (
        [warnings] if isinstance(warnings, str) else warnings if isinstance(warnings, list) else []
    )
    return [item if isinstance(item, dict) else {"warning": item} for item in items if item]


def _add(gpu: GpuDiagnostic, result: _Result) -> None:
    tests_by_status = {
        "pass": gpu.passed,
        "skip": gpu.skipped,
        "not run": gpu.skipped,
        "warn": gpu.warned,
    }
    # An unknown status counts as a failure.
    tests = tests_by_status.get(result.status, gpu.failed)
    if result.test not in tests:
        tests.append(result.test)
    gpu.own_passes += tests is gpu.passed and bool(result.gpus)
    if result.rank:
        gpu.texts += result.texts


def _first(places: tuple[Mapping[str, Any], ...], *names: str) -> str:
    return next((_text(place[name]) for place in places for name in names if place.get(name)), "")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in _items(value) if isinstance(item, dict)]


def _text(value: Any) -> str:
    text = "".join(c if c.isprintable() else " " for c in str(value)[:TEXT_CHARACTERS_MAX])
    return text.strip()
