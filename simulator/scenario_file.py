"""Reads `world.toml` and checks that every field is present, of its type, and within bounds."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from .faults import AMOUNT_RANGES, DEFAULT_AMOUNT_RANGE, EFFECTS
from .scenario import (
    DAYS_MAX,
    ENDS,
    EXPOSURES,
    HOSTS_MAX,
    PERS,
    SORTS,
    AfterReturn,
    FaultClass,
    FleetLayout,
    Frailty,
    JobShapes,
    Pair,
    PartVariation,
    Repair,
    Scenario,
    ScenarioError,
    WorldSettings,
)

PATH = Path(__file__).with_name("world.toml")
#: A longer file is refused before it is read.
FILE_BYTES_MAX = 1 << 20
#: Limit of the hosts of an NVLink domain: 576 GPUs, the greatest number that NVIDIA gives for fifth-generation
#: switches.
NVLINK_HOSTS_MAX = 72
#: Limit of the deviation of the logarithm of a lognormal quantity.
SIGMA_MAX = 5.0
#: Fields of a table that are not chosen numbers.
_TEXT_FIELDS = ("name", "source", "assumed", "chosen")
#: Limit of any number in a world, in its unit.
NUMBER_MAX = 1e12

T = TypeVar("T")


def load(path: Path = PATH) -> WorldSettings:
    """Read and check *path*. Raises ScenarioError with a message."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ScenarioError(f"longer than {FILE_BYTES_MAX} bytes")
        return parse(data.decode())
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8: save it with that encoding") from error
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from error


def parse(text: str) -> WorldSettings:
    """Return the world that *text* describes. Raises ScenarioError for an invalid text."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise ScenarioError(f"not TOML: {error}") from error
    known = {"fleet", "spread", "jobs", "repair", "after_return", "frailty", "class", "scenario"}
    if unknown := sorted(tables.keys() - known):
        raise ScenarioError(f"unknown table [{unknown[0]}]: expected {', '.join(sorted(known))}")
    classes = {n: _build(FaultClass, f"class.{n}", t, n) for n, t in _named_tables(tables, "class")}
    scenarios = {
        n: _scenario(n, t, tables.get("jobs")) for n, t in _named_tables(tables, "scenario")
    }
    settings = WorldSettings(
        fleet=_build(FleetLayout, "fleet", tables.get("fleet")),
        spread=_build(PartVariation, "spread", tables.get("spread")),
        jobs=_build(JobShapes, "jobs", tables.get("jobs")),
        repair=_build(Repair, "repair", tables.get("repair")),
        after_return=_build(AfterReturn, "after_return", tables.get("after_return")),
        frailty=_build(Frailty, "frailty", tables.get("frailty")),
        classes=classes,
        scenarios=scenarios,
    )
    _check(settings)
    return settings


def _named_tables(tables: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    found = tables.get(name)
    if not isinstance(found, dict) or not found:
        raise ScenarioError(f"[{name}.NAME]: expected at least one such table")
    return list(found.items())


def _scenario(name: str, table: Any, jobs: Any) -> Scenario:
    """Return a scenario; its `jobs` override the file's [jobs]."""
    where, overrides = f"scenario.{name}", None
    if isinstance(table, dict) and "jobs" in table:
        overrides = _typed(f"[{where}] jobs", table["jobs"], dict, "a table")
        table = {key: value for key, value in table.items() if key != "jobs"}
    scenario = _build(Scenario, where, table, name)
    if overrides is None:
        return scenario
    return replace(scenario, jobs=_build(JobShapes, f"{where}.jobs", {**(jobs or {}), **overrides}))


def _build(kind: type[T], where: str, table: Any, name: str = "") -> T:
    """Return a *kind* from a table: every field there, of its type, finite, and none unknown."""
    if not isinstance(table, dict):
        raise ScenarioError(f"[{where}]: expected a table")
    wanted = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {"name": name} if "name" in wanted else {}
    for key, value in table.items():
        if key not in wanted or key == "name":
            raise ScenarioError(f"[{where}] {key}: unknown; expected {', '.join(wanted)}")
        values[key] = _value(f"[{where}] {key}", str(wanted[key].type), value)
    missing = [n for n, f in wanted.items() if n not in values and f.default is MISSING]
    if missing:
        raise ScenarioError(f"[{where}] {missing[0]}: missing")
    return kind(**values)


def _value(where: str, type_name: str, value: Any) -> Any:
    if type_name == "str":
        return _typed(where, value, str, "text")
    if type_name == "bool":
        return _typed(where, value, bool, "true or false")
    if type_name == "int":
        return _typed(where, value, int, "a whole number")
    if type_name == "float":
        return _number(where, value)
    items = _typed(where, value, list, "a list")
    if type_name == "tuple[str, ...]":
        return tuple(_typed(where, item, str, "texts") for item in items)
    if type_name == "tuple[int, ...]":
        return tuple(_typed(where, item, int, "whole numbers") for item in items)
    numbers = tuple(_number(where, item) for item in items)
    if type_name == "Pair" and (len(numbers) != 2 or numbers[0] > numbers[1]):
        raise ScenarioError(f"{where}: {value}: expected [least, greatest]")
    return numbers


def _typed(where: str, value: Any, kind: type[Any], expected: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ScenarioError(f"{where}: {value!r}: expected {expected}")
    if kind is int and not -NUMBER_MAX <= int(value) <= NUMBER_MAX:
        raise ScenarioError(f"{where}: expected at most {NUMBER_MAX:g}")
    return value


def _number(where: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= NUMBER_MAX
    ):
        raise ScenarioError(f"{where}: {_shortened(value)}: expected a number")
    return float(value)


def _shortened(value: object) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"


def _check(settings: WorldSettings) -> None:
    for name in ("rack_hosts", "cooling_racks", "leaf_hosts", "spine_leaf_groups"):
        _check_bounds(f"[fleet] {name}", getattr(settings.fleet, name), 1, 10_000)
    after = settings.after_return
    if len(after.until_days) != len(after.per_1000_node_days) or not after.until_days:
        raise ScenarioError("[after_return]: expected as many until_days as per_1000_node_days")
    if list(after.until_days) != sorted(set(after.until_days)) or after.until_days[0] <= 0:
        raise ScenarioError("[after_return] until_days: expected rising days above 0")
    for value in after.per_1000_node_days:
        _check_bounds("[after_return] per_1000_node_days", value, 0.0, 1e6)
    for name in ("median_hours", "hours_max", "drain_minutes"):
        _check_bounds(f"[repair] {name}", getattr(settings.repair, name), 0.01, 1e6)
    _check_bounds("[frailty] shape", settings.frailty.shape, 0.01, 1e6)
    _check_bounds("[repair] sigma", settings.repair.sigma, 0.0, SIGMA_MAX)
    _check_jobs("[jobs]", settings.jobs)
    _check_spread(settings.spread)
    for name in ("spread", "repair"):
        _check_chosen(f"[{name}]", getattr(settings, name))
    for each in settings.classes.values():
        _check_class(each)
    for scenario in settings.scenarios.values():
        _check_scenario(scenario, settings)


def _check_jobs(where: str, jobs: JobShapes) -> None:
    if len(jobs.hosts) != len(jobs.weights) or not jobs.hosts or min(jobs.hosts) < 1:
        raise ScenarioError(f"{where} hosts and weights: expected as many of each, hosts 1 or more")
    if min(jobs.weights) < 0 or sum(jobs.weights) <= 0:
        raise ScenarioError(f"{where} weights: expected 0 or more each, and more than 0 together")
    for name in (
        "duration_median_hours",
        "duration_hours_max",
        "pause_median_minutes",
        "restart_minutes",
    ):
        _check_bounds(f"{where} {name}", getattr(jobs, name), 0.01, 1e6)
    _check_bounds(f"{where} duration_sigma", jobs.duration_sigma, 0.0, SIGMA_MAX)
    _check_bounds(f"{where} memory_bound_ratio", jobs.memory_bound_ratio, 0.0, 1.0)
    _check_bounds(f"{where} tensor_ratio", jobs.tensor_ratio, 0.0, 0.8)
    for name, greatest in (
        ("checkpoint_minutes", 1e6),
        ("checkpoint_seconds", 1e6),
        ("period_seconds", 1e6),
        ("power_ratio", 1.3),
    ):
        _check_range(f"{where} {name}", getattr(jobs, name), 0.1, greatest)
    _check_range(f"{where} communicate_ratio", jobs.communicate_ratio, 0.0, 0.8)


def _check_spread(spread: PartVariation) -> None:
    for name in ("clock_sigma", "memory_bound_sigma"):
        _check_bounds(f"[spread] {name}", getattr(spread, name), 0.0, 0.3)
    _check_bounds("[spread] clock_limit", spread.clock_limit, 0.0, 0.5)
    _check_bounds("[spread] outlier_ratio", spread.outlier_ratio, 0.0, 1.0)
    _check_range(
        "[spread] outlier_low, outlier_high", (spread.outlier_low, spread.outlier_high), 0.0, 0.5
    )
    if spread.outlier_low > spread.outlier_high:
        raise ScenarioError("[spread] outlier_low: expected at most outlier_high")


def _check_chosen(where: str, table: PartVariation | Repair | FaultClass) -> None:
    """Raise ScenarioError if `chosen` names a missing field, or if `assumed` covers the whole table already."""
    known = [field.name for field in fields(table) if field.name not in _TEXT_FIELDS]
    for name in table.chosen:
        if name not in known:
            raise ScenarioError(f"{where} chosen: {name!r}: expected some of {', '.join(known)}")
    if table.assumed and table.chosen:
        raise ScenarioError(f"{where} chosen: expected none, as all of it is assumed")


def _check_class(fault_class: FaultClass) -> None:
    where = f"[class.{fault_class.name}]"
    if fault_class.name not in EFFECTS:
        raise ScenarioError(f"{where}: expected one of {', '.join(EFFECTS)}")
    for key, value, allowed in (
        ("per", fault_class.per, PERS),
        ("ends", fault_class.ends, ENDS),
        ("exposure", fault_class.exposure, EXPOSURES),
    ):
        if value not in allowed:
            raise ScenarioError(f"{where} {key}: {value!r}: expected one of {', '.join(allowed)}")
    _check_bounds(f"{where} rate", fault_class.rate, 0.0, 1.0)
    _check_range(f"{where} onset_seconds", fault_class.onset_seconds, 0.0, 1e6)
    _check_bounds(
        f"{where} duration_median_seconds", fault_class.duration_median_seconds, 0.1, 1e10
    )
    _check_bounds(f"{where} duration_sigma", fault_class.duration_sigma, 0.0, SIGMA_MAX)
    _check_range(
        f"{where} amount",
        fault_class.amount,
        *AMOUNT_RANGES.get(fault_class.name, DEFAULT_AMOUNT_RANGE),
    )
    _check_bounds(f"{where} stage_after_seconds", fault_class.stage_after_seconds, 0.0, 3600.0)
    _check_bounds(f"{where} job_hosts", fault_class.job_hosts, 0, HOSTS_MAX)
    for key in ("job_ratio", "onset_silent_ratio", "remap_failed_ratio"):
        _check_bounds(f"{where} {key}", getattr(fault_class, key), 0.0, 1.0)
    if not fault_class.source:
        raise ScenarioError(f"{where} source: expected where the numbers come from")
    _check_chosen(where, fault_class)


def _check_scenario(scenario: Scenario, settings: WorldSettings) -> None:
    where = f"[scenario.{scenario.name}]"
    _check_bounds(f"{where} hosts", scenario.hosts, 1, HOSTS_MAX)
    _check_bounds(f"{where} days", scenario.days, 1e-3, DAYS_MAX)
    _check_bounds(f"{where} rate_factor", scenario.rate_factor, 0.0, 1e4)
    _check_bounds(f"{where} parade_seconds", scenario.parade_seconds, 0.0, 1e6)
    _check_bounds(f"{where} nvlink_hosts", scenario.nvlink_hosts, 1, NVLINK_HOSTS_MAX)
    _check_bounds(f"{where} amd_ratio", scenario.amd_ratio, 0.0, 1.0)
    _check_range(f"{where} stage_seconds", scenario.stage_seconds, 0.0, 1e6)
    if scenario.stage_seconds[1] and scenario.parade_seconds:
        raise ScenarioError(f"{where} stage_seconds: expected no parade_seconds beside it")
    if scenario.jobs is not None:
        _check_jobs(f"[scenario.{scenario.name}.jobs]", scenario.jobs)
    for name in scenario.classes:
        if name not in SORTS and name not in settings.classes:
            raise ScenarioError(
                f"{where} classes: {name!r}: expected {', '.join(SORTS)} or a class"
            )


def _check_range(where: str, pair: Pair, minimum: float, greatest: float) -> None:
    for value in pair:
        _check_bounds(where, value, minimum, greatest)


def _check_bounds(where: str, value: float, minimum: float, greatest: float) -> None:
    if not minimum <= value <= greatest:
        raise ScenarioError(f"{where}: {value:g}: expected {minimum:g} to {greatest:g}")
