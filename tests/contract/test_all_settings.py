"""Every setting of every program: documented, bounded, and in one group of `--help-settings`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from gangline import cli
from gangline.agent.config import AgentConfig
from gangline.aggregator.config import SETTINGS_BY_TASK, AggregatorConfig
from gangline.contract.settings import SettingsError, load, settings_of
from gangline.executors.settings import ExecutorConfig
from tests.contract.settings_page import all_kinds, page

DOCS = Path(__file__).parent.parent.parent / "docs"
#: Former settings of each program, and the version in which they became constants.
VERSION = "0.1.0"
#: Programs with settings that became constants.
PROGRAMS = (AggregatorConfig, AgentConfig, ExecutorConfig)


def constants_of(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(kind) if "constant" in field.metadata]


def test_the_settings_page_is_current() -> None:
    """60 settings were on no page, so an operator found them by reading the code."""
    command = "python -m tests.contract.settings_page > docs/settings.md"
    assert (DOCS / "settings.md").read_text() == page(), f"write it again: {command}"


@pytest.mark.parametrize("kind", all_kinds())
def test_every_limit_of_a_setting_holds(kind: type[Any]) -> None:
    """A setting beyond its range is an error that names setting, value and range."""
    for field in settings_of(kind):
        low, high = field.metadata["low"], field.metadata["high"]
        beyond = [
            *([] if low is None else [low - 1, math.nan]),
            *([] if high is None else [high + 1]),
        ]
        for value in beyond:
            whole = isinstance(field.default, int)
            text = "nan" if math.isnan(value) else f"{int(value) if whole else float(value)}"
            with pytest.raises(SettingsError, match=f"{field.name} = .*: expected"):
                load(kind, None, [f"{field.name}={text}"])


def test_help_settings_has_each_setting_of_the_aggregator_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """76 settings in the order of their history: the one for slow disks was hard to find."""
    assert cli.main(["aggregator", "--help-settings"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 + len('address = "" ')
    keys = [line.split(" = ")[0] for line in lines if " = " in line and not line.startswith(" ")]
    assert sorted(keys) == sorted(field.name for field in settings_of(AggregatorConfig))
    assert [line[2:] for line in lines if line.startswith("# ")] == list(SETTINGS_BY_TASK)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_former_setting_is_ignored_with_a_warning(
    kind: type[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An upgrade refused the old settings file, and the service did not start."""
    listed = (DOCS / "stability.md").read_text()
    constants = constants_of(kind)
    assert constants
    file = tmp_path / "settings.toml"
    for field in constants:
        caplog.clear()
        file.write_text(f"{field.name} = 7\n")
        assert load(kind, file, [f"{field.name}=8"]) == load(kind)
        (warning,) = caplog.messages
        assert warning.startswith(f"--set: {field.name} is not a setting since {VERSION}: ")
        assert warning.endswith("; remove it")
        assert f"`{field.name}`" in listed
    caplog.clear()
    file.write_text(f"{constants[0].name} = 'of any type'\n")
    load(kind, file)
    assert str(file) in caplog.text


def test_computed_limits_follow_their_settings() -> None:
    """A fleet of 40,000 hosts needed four settings; three of them follow from the first now."""
    config = AggregatorConfig(
        hosts_max=40_000, query_running_max=8, agent_rows_per_second_max=10_000.0
    )
    assert config.connection_limit == 50_000
    assert config.caller_queries_limit == 4
    assert config.agent_bytes_limit == 5_120_000
    default = AggregatorConfig()
    assert (default.connection_limit, default.caller_queries_limit) == (30_000, 2)
    assert default.agent_bytes_limit == 2_048_000
    assert AggregatorConfig(query_running_max=1).caller_queries_limit == 1
