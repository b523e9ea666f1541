"""Parser of `dcgmi diag -j` output of DCGM 3 and 4, by GPU. Pure; the agent runs no diagnostic.

DCGM 4 renamed the report's key, names GPUs as entities, and lists serial numbers by entity. Test names differ by version
and are shown unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

#: Of a report; `dcgmi diag -r 4 -j -v` of 8 GPUs has about 100 KiB.
REPORT_BYTES_MAX = 4 << 20
DEPTH_MAX = 32
#: Of tests, and of results of a test.
TESTS_MAX, RESULTS_MAX = 512, 1024
TEXT_CHARACTERS_MAX = 200
#: The report's key of DCGM 3 and of DCGM 4.
KEYS = ("DCGM GPU Diagnostic", "DCGM Diagnostic")
_GPU_GROUPS = ("GPU", 1)


class Outcome(IntEnum):
    """How the tests of a GPU ended, together; the number travels as the event's code."""

    PASSED = 0
    WARNED = 1
    FAILED = 2


class NotAReport(ValueError):
    """That is no report of a diagnostic; the words say what would be."""


@dataclass(slots=True)
class GpuDiagnostic:
    """What a report says of the GPU that DCGM numbers so. Names of tests by how they ended; words of those that did not pass."""

    number: str
    serial: str = ""
    passed: list[str] = field(default_factory=list[str])
    skipped: list[str] = field(default_factory=list[str])
    warned: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    texts: list[str] = field(default_factory=list[str])

    @property
    def outcome(self) -> Outcome | None:
        """None: every test was skipped, which says nothing."""
        if self.failed:
            return Outcome.FAILED
        if self.warned:
            return Outcome.WARNED
        return Outcome.PASSED if self.passed else None

    @property
    def message(self) -> str:
        """One line for people."""
        if self.failed or self.warned:
            return "; ".join(self.texts)[:1000]
        return f"{len(self.passed)} tests passed, {len(self.skipped)} skipped"


@dataclass(frozen=True, slots=True)
class DiagnosticReport:
    """A report: by whom, and of which GPUs."""

    dcgm_version: str
    driver_version: str
    gpus: tuple[GpuDiagnostic, ...]


def parse_report(content: bytes) -> DiagnosticReport:
    """Return what `dcgmi diag -j` printed. Raises NotAReport."""
    if len(content) > REPORT_BYTES_MAX:
        raise NotAReport(
            f"more than {REPORT_BYTES_MAX >> 20} MiB: expected the output of one dcgmi diag -j"
        )
    root = _load(content)
    key = next((each for each in KEYS if isinstance(root.get(each), dict)), "")
    if not key:
        found = ", ".join(list(root)[:5])
        raise NotAReport(
            f"no {' or '.join(map(repr, KEYS))} in it but {found or 'nothing'}: expected dcgmi diag -j"
        )
    body: dict[str, Any] = root[key]
    if error := body.get("runtime_error") or root.get("runtime_error"):
        raise NotAReport(f"the diagnostic did not run: {_text(error)}")
    serials = _serials(root) | _serials(body)
    gpus: dict[str, GpuDiagnostic] = {
        number: GpuDiagnostic(number, serial) for number, serial in serials.items()
    }
    for name, results in _tests(body):
        for numbers, status, texts in _results(name, results):
            for number in numbers or list(gpus):
                _add(gpus.setdefault(number, GpuDiagnostic(number)), name, status, texts)
    if not any(each.passed or each.skipped or each.warned or each.failed for each in gpus.values()):
        raise NotAReport("it has no result of a GPU")
    places = (body, root, _mapping(body.get("metadata")), _mapping(root.get("metadata")))
    return DiagnosticReport(
        _first(places, "version", "DCGM Version"),
        _first(places, "Driver Version Detected"),
        tuple(gpus.values()),
    )


def _load(content: bytes) -> dict[str, Any]:
    text = content.decode(errors="replace").strip()
    if not text:
        raise NotAReport("nothing in it: expected the output of dcgmi diag -j")
    if not text.startswith("{"):
        raise NotAReport(f"it begins with {text[:30]!r}: expected JSON, as dcgmi diag -j prints it")
    _check_depth(text)
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotAReport(f"not JSON: {error}") from None
    assert isinstance(root, dict)  # it begins with a brace
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
    """Return DCGM's number of a GPU -> its serial number ("": it says none): of DCGM 3, or of DCGM 4."""
    found: dict[str, str] = {}
    for number, serial in _mapping(part.get("GPU Device Serials")).items():
        found[str(number)] = _text(serial)
    for group in _list(part.get("entity_groups")):
        if group.get("entity_group") in _GPU_GROUPS or group.get("entity_group_id") == 1:
            for entity in _list(group.get("entities")):
                found[str(entity.get("entity_id", ""))] = _text(entity.get("serial_num") or "")
    return found


def _tests(body: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    count = 0
    for category in _list(body.get("test_categories")):
        for test in _list(category.get("tests")):
            count += 1
            results = _list(test.get("results"))
            if count > TESTS_MAX or len(results) > RESULTS_MAX:
                raise NotAReport(f"more than {TESTS_MAX} tests, or {RESULTS_MAX} results of one")
            summary = _mapping(test.get("test_summary"))
            if not results and summary:
                results = [summary]
            yield _text(test.get("name") or "test without a name"), results


def _results(
    name: str, results: list[dict[str, Any]]
) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yield (GPUs, status, words) of each result. No GPUs: of all; what is of another kind of device is left out."""
    for each in results:
        if "entity_id" in each:
            is_gpu = each.get("entity_group") in _GPU_GROUPS or each.get("entity_group_id") == 1
            if not is_gpu:
                continue
            numbers = [str(each["entity_id"])]
        else:
            ids = each.get("gpu_ids", each.get("gpu_id", ""))
            numbers = [part.strip() for part in str(ids).split(",") if part.strip()]
        texts, errors = list[str](), False
        for warning in _warnings(each):
            texts.append(f"{name}: {_text(warning.get('warning', ''))}")
            errors |= bool(warning.get("error_id"))
        status = str(each.get("status", "")).strip().lower()
        if status == "pass" and errors:
            status = "warn"  # DCGM 284: it passes with an error beside it
        yield numbers, status, texts or [f"{name}: {status or 'no status'}"]


def _warnings(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = result.get("warnings", result.get("warning"))
    items = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return [each if isinstance(each, dict) else {"warning": each} for each in items if each]


def _add(gpu: GpuDiagnostic, name: str, status: str, texts: list[str]) -> None:
    places = {"pass": gpu.passed, "skip": gpu.skipped, "not run": gpu.skipped, "warn": gpu.warned}
    # what we do not know did not pass
    place = places.get(status, gpu.failed)
    if name not in place:
        place.append(name)
    if place is gpu.failed or place is gpu.warned:
        gpu.texts += texts


def _first(places: tuple[Mapping[str, Any], ...], *names: str) -> str:
    return next((_text(place[name]) for place in places for name in names if place.get(name)), "")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    text = "".join(c if c.isprintable() else " " for c in str(value)[:TEXT_CHARACTERS_MAX])
    return text.strip()
