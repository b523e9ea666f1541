"""`gangline init`: writes a working configuration with TLS and tokens into a new folder."""

from __future__ import annotations

import argparse
import base64
import getpass
import json
import os
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ...cli import FAILED, OK
from ...contract.client import connection
from ...contract.client.connection import CommandError
from ...contract.durable_file import os_error_message
from ..auth.access import tokens_file
from ..auth.ca import LEAF_DAYS, Authority, AuthorityError, make_authority
from ..auth.tokens import Token, TokensError, make_token, update_tokens, write_private
from ..principal import Role, is_name
from .admin_store import caller_name, caller_names

PORT = 7600
TRUST = "gangline"
TOKEN_DAYS = 365
#: Places of a package on an agent's host.
ETC, STATE = "/etc/gangline", "/var/lib/gangline"
#: Names of the chart's release, namespace, Secrets and data folder.
RELEASE = NAMESPACE = "gangline"
POD_DATA = "/var/lib/gangline-aggregator"
#: The mildest actions, with which an executor begins (docs/slurm.md).
ACTIONS = ["AVOID", "DRAIN_AFTER_JOB", "RETURN_TO_SERVICE"]
SCHEDULER_NAME = "executor"
_ON_HOSTS = "Next, after the package gangline-agent is installed on each host (docs/install.md):"


@dataclass(slots=True)
class NewInstallation:
    """A configuration that is written to *work*, and lies in *folder* when it is complete."""

    work: Path
    folder: Path
    names: Sequence[str]
    hosts: Sequence[str]
    operator: str
    tokens: list[Token] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.names[0]}:{PORT}"

    def path(self, name: str) -> str:
        """Return the final path of a file."""
        return str(self.folder / name)

    def write(self, name: str, text: str, mode: int = 0o600) -> None:
        """Write a file. Raises OSError."""
        path = self.work / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text.encode(), mode)

    def write_settings(self, name: str, settings: Mapping[str, object]) -> None:
        """Write a settings file in TOML, whose texts, numbers and lists are those of JSON."""
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        self.write(name, "".join(lines))

    def new_token(self, role: Role, name: str) -> str:
        """Return a new token, which the aggregator will accept."""
        secret, token = make_token(role, name, TOKEN_DAYS, int(time.time()))
        self.tokens.append(token)
        return f"{secret}\n"

    def write_aggregator(self, listen: str) -> None:
        """Write the CA, the aggregator's certificate, and its settings. Raises OSError, AuthorityError."""
        now = datetime.now(UTC)
        make_authority(self.work / "ca", TRUST, now)
        Authority(self.work / "ca", now).issue_server(self.names, LEAF_DAYS)
        settings = {
            "listen": f"{listen}:{PORT}",
            "data": self.path("aggregator"),
            "tls_certificate_file": self.path("ca/server.pem"),
            "tls_key_file": self.path("ca/server.key"),
        }
        self.write_settings("aggregator.toml", settings)

    def write_client(self, name: str, role: Role, caller: str, address: str) -> None:
        """Write a token, and the file that GANGLINE_CLIENT_CONFIG names."""
        self.write(f"{name}.token", self.new_token(role, caller))
        self.write_settings(
            f"{name}.toml",
            {
                "aggregator": address,
                "ca": self.path("ca/ca.pem"),
                "token_file": self.path(f"{name}.token"),
                "server_name": self.names[0],
            },
        )

    def read(self, name: str) -> str:
        """Return the text of a written file."""
        return (self.work / name).read_text()

    def store_tokens(self) -> None:
        """Write the hashes of the tokens into the aggregator's data folder."""
        update_tokens(tokens_file(self.work / "aggregator"), lambda _: self.tokens)


def main(arguments: list[str]) -> int:
    """Write the configuration. Exit code 1, with a message: nothing was written."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if TARGETS[options.target].note == _ON_HOSTS and not options.host:
        parser.error("name the hosts with --host, such as gpu-[001-004]")
    return connection.guarded("init", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    folder = Path(os.path.abspath(options.output or f"gangline-{options.target}"))
    names = options.server_name or TARGETS[options.target].names()
    names = [*dict.fromkeys([*names, "localhost", "127.0.0.1"])]
    with _new_folder(folder) as work:
        layout = NewInstallation(work, folder, names, options.host, options.operator)
        commands = TARGETS[options.target].write(layout)
        layout.store_tokens()
    print(f"{folder}: written, readable only by you; keep {folder / 'ca' / 'ca.key'} secret")
    print(TARGETS[options.target].note)
    for number, command in enumerate(commands, 1):
        print(f"  {number}. {command}")
    return OK


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder that gets the name *folder* in the end; an error leaves nothing. Raises CommandError."""
    if os.path.lexists(folder):
        raise CommandError(
            f"{folder} exists; nothing was changed. Name a new folder with -o DIR", FAILED
        )
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        work.mkdir(mode=0o700)
        yield work
        work.rename(folder)
    except OSError as error:
        raise CommandError(
            f"{error.filename or folder}: {os_error_message(error)}", FAILED
        ) from error
    except (AuthorityError, TokensError) as error:
        raise CommandError(str(error), FAILED) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_trial(layout: NewInstallation) -> list[str]:
    """Write everything for one machine, on loopback."""
    layout.write_aggregator("127.0.0.1")
    layout.write_client("client", Role.OPERATOR, layout.operator, f"127.0.0.1:{PORT}")
    host = socket.gethostname()
    host = host if is_name(host) else "this-host"
    layout.write("agent.token", layout.new_token(Role.AGENT, host))
    layout.write_settings(
        "agent.toml",
        {
            "aggregator": f"127.0.0.1:{PORT}",
            "host": host,
            "tls_ca_file": layout.path("ca/ca.pem"),
            "tls_server_name": layout.names[0],
            "token_file": layout.path("agent.token"),
            # Folders of its own: this machine may have the agent of a package.
            "spool_folder": layout.path("agent/spool"),
            "spool_head_folder": "",
            "events_folder": layout.path("agent/events"),
            "state_folder": layout.path("agent/state"),
            "run_folder": layout.path("agent/run"),
        },
    )
    return [
        f"gangline aggregator --config {_quoted(layout, 'aggregator.toml')}",
        f"gangline agent --config {_quoted(layout, 'agent.toml')}",
        f"GANGLINE_CLIENT_CONFIG={_quoted(layout, 'client.toml')} gangline hosts --watch",
    ]


def _write_hosts(layout: NewInstallation) -> None:
    """Write the aggregator, an operator's client, and a folder for /etc/gangline of each host."""
    layout.write_aggregator("0.0.0.0")
    layout.write_client("client", Role.OPERATOR, layout.operator, layout.address)
    for host in layout.hosts:
        folder = f"hosts/{host}"
        layout.write(f"{folder}/ca.pem", layout.read("ca/ca.pem"))
        layout.write(f"{folder}/agent.token", layout.new_token(Role.AGENT, host))
        layout.write_settings(
            f"{folder}/agent.toml",
            {
                "aggregator": layout.address,
                "host": host,
                "tls_ca_file": f"{ETC}/ca.pem",
                "token_file": f"{ETC}/agent.token",
                "spool_folder": f"{STATE}/spool",
                "events_folder": f"{STATE}/events",
                "state_folder": f"{STATE}/state",
            },
        )


def _host_commands(layout: NewInstallation) -> list[str]:
    hosts = _quoted(layout, "hosts")
    files = "agent.toml agent.token ca.pem"
    install = f"cd {ETC} && tar -x --no-same-owner && chown gangline: {files} && systemctl enable gangline-agent && systemctl restart gangline-agent"
    return [
        f"gangline aggregator --config {_quoted(layout, 'aggregator.toml')}",
        f'for host in $(ls {hosts}); do tar -c -C {hosts}/$host {files} | ssh root@$host "{install}"; done',
    ]


def _write_lab(layout: NewInstallation) -> list[str]:
    """Write the configuration of a few hosts without a scheduler."""
    _write_hosts(layout)
    watch = f"GANGLINE_CLIENT_CONFIG={_quoted(layout, 'client.toml')} gangline hosts --watch"
    return [*_host_commands(layout), watch]


def _write_slurm(layout: NewInstallation) -> list[str]:
    """Write the configuration of a lab, and an executor that begins with the mildest actions."""
    _write_hosts(layout)
    layout.write_client("executor-client", Role.SCHEDULER, SCHEDULER_NAME, layout.address)
    layout.write_settings("executor.toml", {"actions": ACTIONS})
    executor = (
        f"GANGLINE_CLIENT_CONFIG={_quoted(layout, 'executor-client.toml')} "
        f"gangline executor slurm run --shadow --config {_quoted(layout, 'executor.toml')}"
    )
    return [*_host_commands(layout), executor]


def _write_kubernetes(layout: NewInstallation) -> list[str]:
    """Write the chart's values, and the Secrets that it names."""
    layout.write_aggregator("0.0.0.0")
    layout.write_client("client", Role.OPERATOR, layout.operator, f"127.0.0.1:{PORT}")
    ca = layout.read("ca/ca.pem")
    tls = {"tls.crt": layout.read("ca/server.pem"), "tls.key": layout.read("ca/server.key")}
    executor = {"token": layout.new_token(Role.SCHEDULER, SCHEDULER_NAME), "ca.pem": ca}
    secrets = [
        _secret("gangline-tls", {**tls, "ca.crt": ca}),
        _secret(
            "gangline-agents", {host: layout.new_token(Role.AGENT, host) for host in layout.hosts}
        ),
        _secret("gangline-executor-login", executor),
    ]
    document = {"apiVersion": "v1", "kind": "List", "items": secrets}
    layout.write("secrets.json", json.dumps(document, indent=1))
    values = {
        "tls": {"source": "secret", "secretName": "gangline-tls"},
        "agent": {"login": {"source": "secret", "secretName": "gangline-agents"}},
        "executor": {"loginSecretName": "gangline-executor-login"},
    }
    layout.write("values.json", json.dumps(values, indent=1) + "\n")
    (layout.work / "aggregator.toml").unlink()  # the chart writes it
    access = tokens_file(Path(POD_DATA))
    tokens = tokens_file(Path("aggregator"))
    put = f"umask 077; mkdir -p {access.parent} && cat > {access}.new && mv {access}.new {access}"
    label = "pod-security.kubernetes.io/enforce=privileged"
    namespace = (
        f"kubectl create namespace {NAMESPACE} && kubectl label namespace {NAMESPACE} {label}"
    )
    images = " ".join(
        f"--set image.{name}.repository=REGISTRY/gangline-{name}"
        for name in ("agent", "aggregator")
    )
    return [
        f"{namespace} && kubectl -n {NAMESPACE} apply -f {_quoted(layout, 'secrets.json')}",
        f"helm install {RELEASE} packaging/helm/gangline -n {NAMESPACE} --wait -f {_quoted(layout, 'values.json')} {images}",
        f'kubectl -n {NAMESPACE} exec -i {RELEASE}-aggregator-0 -- sh -c "{put}" < {_quoted(layout, str(tokens))}',
    ]


def _secret(name: str, files: Mapping[str, str]) -> dict[str, object]:
    """Return a Secret with *files*."""
    data = {key: base64.b64encode(text.encode()).decode() for key, text in files.items()}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


def _quoted(layout: NewInstallation, name: str) -> str:
    return shlex.quote(layout.path(name))


def _own_names() -> list[str]:
    return [socket.getfqdn()]


@dataclass(frozen=True, slots=True)
class InstallationTarget:
    """A kind of installation. *names*: the default names of the aggregator's certificate."""

    help: str
    names: Callable[[], list[str]]
    write: Callable[[NewInstallation], list[str]]
    note: str


TARGETS: Mapping[str, InstallationTarget] = {
    "trial": InstallationTarget(
        "this machine alone, for a trial",
        lambda: ["localhost"],
        _write_trial,
        "Next, each in a terminal of its own:",
    ),
    "lab": InstallationTarget("a few hosts without a scheduler", _own_names, _write_lab, _ON_HOSTS),
    "slurm": InstallationTarget(
        "a Slurm cluster; the executor begins in shadow mode", _own_names, _write_slurm, _ON_HOSTS
    ),
    "kubernetes": InstallationTarget(
        "a Kubernetes cluster, by the Helm chart",
        lambda: [f"{RELEASE}-aggregator.{NAMESPACE}.svc"],
        _write_kubernetes,
        "Next, in the checkout, with the registry of your images in place of REGISTRY (docs/install.md):",
    ),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline init",
        description="Writes a working configuration into a new folder: settings, a CA with the aggregator's certificate, "
        "and a token for each agent, operator and executor. Prints the next three commands. Changes nothing that exists.",
        epilog="targets: "
        + "; ".join(f"{name}: {target.help}" for name, target in TARGETS.items())
        + ". exit codes: 0 done, 1 nothing was written, 2 wrong usage",
    )
    add = parser.add_argument
    add("target", choices=list(TARGETS), help="what to configure")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="the folder, which must not exist (default: gangline-TARGET)",
    )
    add(
        "--server-name",
        action="append",
        metavar="NAME",
        help="name or address by which hosts reach the aggregator (default: the name of this machine); may be repeated",
    )
    add(
        "--host",
        action="extend",
        type=caller_names,
        default=[],
        metavar="HOSTS",
        help="the hosts, such as gpu-[001-004]; in Kubernetes the names of the nodes",
    )
    add(
        "--operator",
        type=caller_name,
        default=_user(),
        metavar="NAME",
        help="who gets the operator's token (default: you)",
    )
    return parser


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return "operator"
    return name if is_name(name) else "operator"
