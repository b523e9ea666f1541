"""`gangline init`: its files are valid and work, and existing files stay."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline import cli
from gangline.agent.config import AgentConfig
from gangline.aggregator.auth.access import tokens_file
from gangline.aggregator.auth.tokens import Tokens
from gangline.aggregator.commands import init
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.principal import Role
from gangline.aggregator.server import Aggregator
from gangline.contract.client.connection import FILE_VARIABLE, ConnectionOptions
from gangline.contract.settings import load
from gangline.executors.settings import ExecutorConfig

CHART = Path(cli.__file__).parent / "packaging" / "helm" / "gangline"
#: Name of a settings file -> its settings.
KINDS: dict[str, type[Any]] = {
    "aggregator.toml": AggregatorConfig,
    "agent.toml": AgentConfig,
    "executor.toml": ExecutorConfig,
    "client.toml": ConnectionOptions,
    "executor-client.toml": ConnectionOptions,
}


def run(target: str, folder: Path, *arguments: str) -> int:
    hosts = ["--host", "gpu-[001-002]"]
    return cli.main(["init", target, "-o", str(folder), *hosts, *arguments])


def snapshot_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("target", init.TARGETS)
def test_every_file_is_valid_and_private(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example of docs/install.md had a path that was right on one machine only."""
    folder = tmp_path / "made"
    assert run(target, folder, "--server-name", "head.example") == cli.OK
    out = capsys.readouterr().out
    assert [line.split(". ")[0].strip() for line in out.splitlines()[2:]] == ["1", "2", "3"]
    assert str(tmp_path) in out and ".made" not in out
    settings = [path for path in folder.rglob("*.toml")]
    assert settings
    for path in settings:
        config = load(KINDS[path.name], path)
        for name in ("ca", "token_file", "tls_ca_file", "tls_certificate_file", "tls_key_file"):
            value = getattr(config, name, "")
            assert not value or value.startswith(init.ETC) or Path(value).is_file(), (path, name)
    for path in (folder, *folder.rglob("*")):
        private = path == folder or (path.is_file() and path.suffix != ".pem")
        assert not private or not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    tokens = Tokens(tokens_file(folder / "aggregator"))
    for path in folder.rglob("*.token"):
        token = tokens.find(path.read_text().strip(), 0.0)
        assert token is not None
        if token.role == Role.AGENT and target != "trial":
            assert token.name == path.parent.name


def test_the_values_of_kubernetes_are_those_of_the_chart(tmp_path: Path) -> None:
    """Helm ignores a misspelled value, and the pods waited for a Secret with another name."""
    assert run("kubernetes", tmp_path / "k") == cli.OK
    chart = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(values: dict[str, Any], known: dict[str, Any]) -> None:
        assert values.keys() <= known.keys()
        for key, value in values.items():
            if isinstance(value, dict):
                check(value, known[key])
            else:
                assert value == known[key]

    check(json.loads((tmp_path / "k" / "values.json").read_text()), chart)
    secrets = json.loads((tmp_path / "k" / "secrets.json").read_text())["items"]
    data = {secret["metadata"]["name"]: secret["data"] for secret in secrets}
    assert data["gangline-tls"].keys() == {"tls.crt", "tls.key", "ca.crt"}
    assert data["gangline-agents"].keys() == {"gpu-001", "gpu-002"}
    assert data["gangline-executor-login"].keys() == {"token", "ca.pem"}
    assert base64.b64decode(data["gangline-tls"]["tls.crt"]).startswith(b"-----BEGIN CERT")


def test_nothing_that_exists_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run would have replaced the CA, and every agent would have lost its aggregator."""
    folder = tmp_path / "made"
    assert run("lab", folder) == cli.OK
    before = snapshot_of(tmp_path)
    for target in init.TARGETS:
        assert run(target, folder) == cli.FAILED
        assert "exists; nothing was changed" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    assert run("trial", tmp_path / "file") == cli.FAILED
    assert run("trial", tmp_path / "file" / "below") == cli.FAILED
    assert run("trial", tmp_path / "no" / "parent") == cli.FAILED
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert run("trial", tmp_path / "link") == cli.FAILED
    assert run("trial", tmp_path / ("a" * 300)) == cli.FAILED
    assert "File name too long" in capsys.readouterr().err
    after = snapshot_of(tmp_path)
    assert after.pop("file")[1] == b"mine" and after == before
    assert {path.name for path in tmp_path.iterdir()} == {"made", "file", "link"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lab"], "name the hosts with --host"),
        (["slurm"], "name the hosts with --host"),
        (["trial", "--host", "gpu-[001"], "gpu-[001"),
        (["trial", "--operator", "a b"], "expected letters"),
        (["nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_wrong_usage_writes_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A lab without hosts has no agent that could report."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=str(cli.USAGE)):
        cli.main(["init", *arguments])
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.slow
async def test_the_trial_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands that it prints: TLS and token of the client file reach the aggregator, and no one else does."""
    folder = tmp_path / "made"
    assert run("trial", folder) == cli.OK
    settings = ["listen=127.0.0.1:0", "listen_scores=off", "judge_seconds=0.05"]
    aggregator = Aggregator(load(AggregatorConfig, folder / "aggregator.toml", settings))
    await aggregator.start()
    try:
        hosts = ["hosts", "--server", f"127.0.0.1:{aggregator.port}"]
        monkeypatch.setenv(FILE_VARIABLE, str(folder / "client.toml"))
        while await asyncio.to_thread(cli.main, hosts) == cli.NO_ANSWER:
            assert "just started" in capsys.readouterr().err
        capsys.readouterr()
        assert await asyncio.to_thread(cli.main, hosts) == cli.OK
        assert "none has registered" in capsys.readouterr().out
        with_ca_alone = [*hosts, "--ca", str(folder / "ca" / "ca.pem")]
        monkeypatch.delenv(FILE_VARIABLE)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert await asyncio.to_thread(cli.main, with_ca_alone) == cli.FAILED
        assert "rejected the login" in capsys.readouterr().err
    finally:
        await aggregator.close()
