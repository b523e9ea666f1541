"""Reads `world.toml`: every field there, of its type and within its bounds, or words that say what is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from .faults import AMOUNTS, EFFECTS, PART
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
    Repair,
    Scenario,
    Settings,
    SettingsError,
    Spread,
)

PATH = Path(__file__).with_name("world.toml")
#: A file longer than this is refused unread.
FILE_BYTES_MAX = 1 << 20
#: Of one NVLink domain: 576 GPUs, the most that NVIDIA names for NVLink switches of the fifth generation.
NVLINK_HOSTS_MAX = 72
#: Of the logarithm of what is lognormal.
SIGMA_MAX = 5.0
#: Of a table, what is no number that somebody could have chosen.
_WORDS = ("name", "source", "assumed", "chosen")
#: Nothing of a world is greater, in its unit.
NUMBER_MAX = 1e12

T = TypeVar("T")


def load(path: Path = PATH) -> Settings:
    """Read and check *path*. Raises SettingsError, in words."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise SettingsError(f"longer than {FILE_BYTES_MAX} bytes")
        return parse(data.decode())
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8: save it with that encoding") from error
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def parse(text: str) -> Settings:
    """Return the world that *text* describes. Raises SettingsError for anything that is none."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise SettingsError(f"not TOML: {error}") from error
    known = {"fleet", "spread", "jobs", "repair", "after_return", "frailty", "class", "scenario"}
    if unknown := sorted(tables.keys() - known):
        raise SettingsError(f"unknown table [{unknown[0]}]: expected {', '.join(sorted(known))}")
    classes = {n: _made(FaultClass, f"class.{n}", t, n) for n, t in _many(tables, "class")}
    scenarios = {n: _scenario(n, t, tables.get("jobs")) for n, t in _many(tables, "scenario")}
    settings = Settings(
        _made(FleetLayout, "fleet", tables.get("fleet")),
        _made(Spread, "spread", tables.get("spread")),
        _made(JobShapes, "jobs", tables.get("jobs")),
        _made(Repair, "repair", tables.get("repair")),
        _made(AfterReturn, "after_return", tables.get("after_return")),
        _made(Frailty, "frailty", tables.get("frailty")),
        classes,
        scenarios,
    )
    _check(settings)
    return settings


def _many(tables: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    found = tables.get(name)
    if not isinstance(found, dict) or not found:
        raise SettingsError(f"[{name}.NAME]: expected at least one such table")
    return list(found.items())


def _scenario(name: str, table: Any, jobs: Any) -> Scenario:
    """Return a scenario; its `jobs` say what of the file's [jobs] is otherwise in it."""
    where, own = f"scenario.{name}", None
    if isinstance(table, dict) and "jobs" in table:
        own = _of(f"[{where}] jobs", table["jobs"], dict, "a table")
        table = {key: value for key, value in table.items() if key != "jobs"}
    made = _made(Scenario, where, table, name)
    if own is None:
        return made
    return replace(made, jobs=_made(JobShapes, f"{where}.jobs", {**(jobs or {}), **own}))


def _made(kind: type[T], where: str, table: Any, name: str = "") -> T:
    """Return a *kind* from a table: every field there, of its type, finite, and none unknown."""
    if not isinstance(table, dict):
        raise SettingsError(f"[{where}]: expected a table")
    wanted = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {"name": name} if "name" in wanted else {}
    for key, value in table.items():
        if key not in wanted or key == "name":
            raise SettingsError(f"[{where}] {key}: unknown; expected {', '.join(wanted)}")
        values[key] = _value(f"[{where}] {key}", str(wanted[key].type), value)
    missing = [n for n, f in wanted.items() if n not in values and f.default is MISSING]
    if missing:
        raise SettingsError(f"[{where}] {missing[0]}: missing")
    return kind(**values)


def _value(where: str, type_name: str, value: Any) -> Any:
    if type_name == "str":
        return _of(where, value, str, "text")
    if type_name == "bool":
        return _of(where, value, bool, "true or false")
    if type_name == "int":
        return _of(where, value, int, "a whole number")
    if type_name == "float":
        return _number(where, value)
    items = _of(where, value, list, "a list")
    if type_name == "tuple[str, ...]":
        return tuple(_of(where, item, str, "texts") for item in items)
    if type_name == "tuple[int, ...]":
        return tuple(_of(where, item, int, "whole numbers") for item in items)
    numbers = tuple(_number(where, item) for item in items)
    if type_name == "Pair" and (len(numbers) != 2 or numbers[0] > numbers[1]):
        raise SettingsError(f"{where}: {value}: expected [least, greatest]")
    return numbers


def _of(where: str, value: Any, kind: type[Any], words: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SettingsError(f"{where}: {value!r}: expected {words}")
    if kind is int and not -NUMBER_MAX <= int(value) <= NUMBER_MAX:
        raise SettingsError(f"{where}: expected at most {NUMBER_MAX:g}")
    return value


def _number(where: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) <= NUMBER_MAX
    ):
        raise SettingsError(f"{where}: {_short(value)}: expected a number")
    return float(value)


def _short(value: object) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # a whole number of thousands of digits
        return "so many digits"


def _check(settings: Settings) -> None:
    for name in ("rack_hosts", "cooling_racks", "leaf_hosts", "spine_leaf_groups"):
        _within(f"[fleet] {name}", getattr(settings.fleet, name), 1, 10_000)
    after = settings.after_return
    if len(after.until_days) != len(after.per_1000_node_days) or not after.until_days:
        raise SettingsError("[after_return]: expected as many until_days as per_1000_node_days")
    if list(after.until_days) != sorted(set(after.until_days)) or after.until_days[0] <= 0:
        raise SettingsError("[after_return] until_days: expected rising days above 0")
    for value in after.per_1000_node_days:
        _within("[after_return] per_1000_node_days", value, 0.0, 1e6)
    for name in ("median_hours", "hours_max", "drain_minutes"):
        _within(f"[repair] {name}", getattr(settings.repair, name), 0.01, 1e6)
    _within("[frailty] shape", settings.frailty.shape, 0.01, 1e6)
    _within("[repair] sigma", settings.repair.sigma, 0.0, SIGMA_MAX)
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
        raise SettingsError(f"{where} hosts and weights: expected as many of each, hosts 1 or more")
    if min(jobs.weights) < 0 or sum(jobs.weights) <= 0:
        raise SettingsError(f"{where} weights: expected 0 or more each, and more than 0 together")
    for name in (
        "duration_median_hours",
        "duration_hours_max",
        "pause_median_minutes",
        "restart_minutes",
    ):
        _within(f"{where} {name}", getattr(jobs, name), 0.01, 1e6)
    _within(f"{where} duration_sigma", jobs.duration_sigma, 0.0, SIGMA_MAX)
    _within(f"{where} memory_bound_ratio", jobs.memory_bound_ratio, 0.0, 1.0)
    _within(f"{where} tensor_ratio", jobs.tensor_ratio, 0.0, 0.8)
    for name, greatest in (
        ("checkpoint_minutes", 1e6),
        ("checkpoint_seconds", 1e6),
        ("period_seconds", 1e6),
        ("power_ratio", 1.3),
    ):
        _both_within(f"{where} {name}", getattr(jobs, name), 0.1, greatest)
    _both_within(f"{where} communicate_ratio", jobs.communicate_ratio, 0.0, 0.8)


def _check_spread(spread: Spread) -> None:
    for name in ("clock_sigma", "memory_bound_sigma"):
        _within(f"[spread] {name}", getattr(spread, name), 0.0, 0.3)
    _within("[spread] clock_limit", spread.clock_limit, 0.0, 0.5)
    _within("[spread] outlier_ratio", spread.outlier_ratio, 0.0, 1.0)
    _both_within(
        "[spread] outlier_low, outlier_high", (spread.outlier_low, spread.outlier_high), 0.0, 0.5
    )
    if spread.outlier_low > spread.outlier_high:
        raise SettingsError("[spread] outlier_low: expected at most outlier_high")


def _check_chosen(where: str, table: Spread | Repair | FaultClass) -> None:
    """Raise SettingsError where `chosen` names what the table has not, or says what `assumed` has said of all of it."""
    known = [field.name for field in fields(table) if field.name not in _WORDS]
    for name in table.chosen:
        if name not in known:
            raise SettingsError(f"{where} chosen: {name!r}: expected some of {', '.join(known)}")
    if table.assumed and table.chosen:
        raise SettingsError(f"{where} chosen: expected none, as all of it is assumed")


def _check_class(each: FaultClass) -> None:
    where = f"[class.{each.name}]"
    if each.name not in EFFECTS:
        raise SettingsError(f"{where}: expected one of {', '.join(EFFECTS)}")
    for key, value, allowed in (
        ("per", each.per, PERS),
        ("ends", each.ends, ENDS),
        ("exposure", each.exposure, EXPOSURES),
    ):
        if value not in allowed:
            raise SettingsError(f"{where} {key}: {value!r}: expected one of {', '.join(allowed)}")
    _within(f"{where} rate", each.rate, 0.0, 1.0)
    _both_within(f"{where} onset_seconds", each.onset_seconds, 0.0, 1e6)
    _within(f"{where} duration_median_seconds", each.duration_median_seconds, 0.1, 1e10)
    _within(f"{where} duration_sigma", each.duration_sigma, 0.0, SIGMA_MAX)
    _both_within(f"{where} amount", each.amount, *AMOUNTS.get(each.name, PART))
    _within(f"{where} job_hosts", each.job_hosts, 0, HOSTS_MAX)
    for key in ("job_ratio", "onset_silent_ratio", "remap_failed_ratio"):
        _within(f"{where} {key}", getattr(each, key), 0.0, 1.0)
    if not each.source:
        raise SettingsError(f"{where} source: expected where the numbers come from")
    _check_chosen(where, each)


def _check_scenario(scenario: Scenario, settings: Settings) -> None:
    where = f"[scenario.{scenario.name}]"
    _within(f"{where} hosts", scenario.hosts, 1, HOSTS_MAX)
    _within(f"{where} days", scenario.days, 1e-3, DAYS_MAX)
    _within(f"{where} rate_factor", scenario.rate_factor, 0.0, 1e4)
    _within(f"{where} parade_seconds", scenario.parade_seconds, 0.0, 1e6)
    _within(f"{where} nvlink_hosts", scenario.nvlink_hosts, 1, NVLINK_HOSTS_MAX)
    _both_within(f"{where} stage_seconds", scenario.stage_seconds, 0.0, 1e6)
    if scenario.stage_seconds[1] and scenario.parade_seconds:
        raise SettingsError(f"{where} stage_seconds: expected no parade_seconds beside it")
    if scenario.jobs is not None:
        _check_jobs(f"[scenario.{scenario.name}.jobs]", scenario.jobs)
    for name in scenario.classes:
        if name not in SORTS and name not in settings.classes:
            raise SettingsError(
                f"{where} classes: {name!r}: expected {', '.join(SORTS)} or a class"
            )


def _both_within(where: str, pair: Pair, least: float, greatest: float) -> None:
    for value in pair:
        _within(where, value, least, greatest)


def _within(where: str, value: float, least: float, greatest: float) -> None:
    if not least <= value <= greatest:
        raise SettingsError(f"{where}: {value:g}: expected {least:g} to {greatest:g}")
