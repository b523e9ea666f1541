"""`gangline admin cert`: a CA and certificates for a small cluster."""

from __future__ import annotations

import argparse
import socket
from datetime import UTC, datetime
from pathlib import Path

from ...cli import OK
from ..access.authority import LEAF_DAYS, Authority, Pair, check_days, make_authority, pair
from ..access.caller import GIVEN, Role
from ..access.door import FOLDER
from ..access.names import check_trust_domain
from .admin_store import add_data_option, caller_name, guarded

PORT = 7600
TRUST_DEFAULT = "gangline"

EXAMPLES = """\
examples:
  gangline admin cert cluster --server head.example --host gpu-001 --host gpu-002 --operator alice
  gangline admin cert issue --role agent --name gpu-003
  gangline admin cert issue --role agent --name gpu-003 --force    renew it; the agent takes it at its next connection
  gangline admin cert server head.example 10.0.0.5 --force         renew it; the aggregator needs no restart
  gangline admin cert init --trust cluster.example                 a CA alone

Keys are their owner's only (0600). Keep ca.key: who has it can be anybody. exit codes: 0 done, 1 failed, 2 wrong usage
"""


def main(arguments: list[str]) -> int:
    """Make what is asked for and print the settings to paste. 1 with words when it cannot be made."""
    options = _parser().parse_args(arguments)
    folder: Path = options.folder or options.data / FOLDER
    make = {"init": _init, "server": _server, "issue": _issue, "cluster": _cluster}[options.what]
    return guarded("cert", lambda: make(options, folder) or OK)


def _init(options: argparse.Namespace, folder: Path) -> None:
    made = make_authority(folder, options.trust, datetime.now(UTC), force=options.force)
    print(f"CA: {made.certificate}, its key: {made.key}")


def _server(options: argparse.Namespace, folder: Path) -> None:
    authority = Authority(folder, datetime.now(UTC))
    made = authority.issue_server(options.names, options.days, force=options.force)
    print(_of_aggregator(made, folder))


def _issue(options: argparse.Namespace, folder: Path) -> None:
    authority = Authority(folder, datetime.now(UTC))
    role = Role(options.role)
    made = authority.issue(role, options.name, options.days, force=options.force)
    dialled = f"AGGREGATOR:{PORT}"
    print(
        _of_agent(made, folder, dialled)
        if role is Role.AGENT
        else _of_client(made, folder, dialled)
    )


def _cluster(options: argparse.Namespace, folder: Path) -> None:
    """Make what is not there yet of a small cluster: CA, server, agents, operators."""
    now = datetime.now(UTC)
    check_days(options.days)
    if not pair(folder, "ca").certificate.exists():
        make_authority(folder, options.trust, now)
    authority = Authority(folder, now)
    servers = options.server or [socket.getfqdn()]
    names = list(dict.fromkeys([*servers, "localhost", "127.0.0.1"]))
    dialled = f"{servers[0]}:{PORT}"
    server = authority.issue_server(names, options.days, force=options.force)
    said = [_of_aggregator(server, folder)]
    for host in options.host:
        made = authority.issue(Role.AGENT, host, options.days, force=options.force)
        said.append(_of_agent(made, folder, dialled))
    for name in options.operator:
        made = authority.issue(Role.OPERATOR, name, options.days, force=options.force)
        said.append(_of_client(made, folder, dialled))
    print("\n\n".join(said))


def _of_aggregator(made: Pair, folder: Path) -> str:
    return "\n".join(
        (
            "# the aggregator's settings (--config FILE); put its address in place of 0.0.0.0 if it has several",
            f'listen = "0.0.0.0:{PORT}"',
            f'tls_certificate_file = "{made.certificate.absolute()}"',
            f'tls_key_file = "{made.key.absolute()}"',
            f'tls_client_ca_file = "{pair(folder, "ca").certificate.absolute()}"',
        )
    )


def _of_agent(made: Pair, folder: Path, dialled: str) -> str:
    host = made.certificate.stem.removeprefix("agent-")
    ca = pair(folder, "ca").certificate
    return "\n".join(
        (
            f"# {host}: bring {made.certificate}, {made.key}, {ca}",
            "# to /etc/gangline there (the key 0600, its owner gangline), and into agent.toml:",
            f'host = "{host}"',
            f'aggregator = "{dialled}"',
            'tls_ca_file = "/etc/gangline/ca.pem"',
            f'tls_certificate_file = "/etc/gangline/{made.certificate.name}"',
            f'tls_key_file = "/etc/gangline/{made.key.name}"',
        )
    )


def _of_client(made: Pair, folder: Path, dialled: str) -> str:
    return "\n".join(
        (
            f"# {made.certificate.stem}: in ~/.config/gangline/client.toml of that person",
            f'aggregator = "{dialled}"',
            f'ca = "{pair(folder, "ca").certificate.absolute()}"',
            f'certificate = "{made.certificate.absolute()}"',
            f'key = "{made.key.absolute()}"',
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin cert",
        description="A CA and certificates for a small cluster: ECDSA P-256, one year, with names that say the role "
        "(spiffe://TRUST/gangline/ROLE/NAME). Prints the settings to paste.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    add_data_option(common)
    common.add_argument("--folder", type=Path, metavar="DIR", help=f"default: {FOLDER} in --data")
    common.add_argument("--force", action="store_true", help="overwrite what is there")
    leaf = argparse.ArgumentParser(add_help=False)
    leaf.add_argument(
        "--days",
        type=int,
        default=LEAF_DAYS,
        metavar="N",
        help="it holds so long (default: 365); a CA ten years",
    )
    trust = argparse.ArgumentParser(add_help=False)
    trust.add_argument(
        "--trust", type=_trust, default=TRUST_DEFAULT, metavar="DOMAIN", help="of a new CA"
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="{init,server,issue,cluster}")
    what.add_parser("init", parents=[common, trust], help="a CA")
    server = what.add_parser("server", parents=[common, leaf], help="the aggregator's certificate")
    server.add_argument(
        "names", nargs="+", metavar="NAME", help="what clients dial: names, addresses"
    )
    issue = what.add_parser("issue", parents=[common, leaf], help="one caller's certificate")
    issue.add_argument("--role", required=True, choices=[str(role) for role in GIVEN])
    issue.add_argument(
        "--name", "--host", required=True, type=caller_name, metavar="NAME", help="agent: its host"
    )
    cluster = what.add_parser(
        "cluster", parents=[common, leaf, trust], help="all of it in one command"
    )
    cluster.add_argument("--server", action="append", metavar="NAME", help="what clients dial")
    cluster.add_argument("--host", action="append", default=[], type=caller_name, metavar="NAME")
    cluster.add_argument(
        "--operator", action="append", default=[], type=caller_name, metavar="NAME"
    )
    return parser


def _trust(text: str) -> str:
    try:
        check_trust_domain(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:64]!r}: expected {error}") from error
    return text or TRUST_DEFAULT
