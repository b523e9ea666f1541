"""`gangline admin cert` and `token`: certificates for a small cluster, and bearer tokens."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from ...cli import NOT_FOUND, OK
from ...contract.client.terminal import table
from ...contract.options import UNITS, add_former_names, whole_duration
from ..auth.access import FOLDER, tokens_file
from ..auth.ca import (
    LEAF_DAYS,
    Authority,
    CertificatePaths,
    certificate_paths,
    check_days,
    make_authority,
)
from ..auth.tokens import (
    DAYS_MAX,
    Token,
    TokensError,
    make_token,
    private_folder,
    read_tokens,
    update_tokens,
    write_private,
)
from ..principal import GRANTABLE_ROLES, Role, check_trust_domain
from ..store.store_folder import STORE_FILE
from .admin_store import add_data_option, caller_name, caller_names, guarded

PORT = 7600
TRUST_DEFAULT = "gangline"

CERT_EXAMPLES = """\
examples:
  gangline admin cert cluster --server-name head.example --host gpu-[001-064] --operator alice
  gangline admin cert issue --role agent --name gpu-003
  gangline admin cert issue --role agent --name gpu-003 --force    renew it; the agent takes it at its next connection
  gangline admin cert server head.example 10.0.0.5 --force         renew it; the aggregator needs no restart
  gangline admin cert init --trust cluster.example                 a CA alone

Only their owner can read keys (0600). Protect ca.key: with it, anybody can impersonate anybody. exit codes: 0 done, 1 failed, 2 wrong usage
"""

DAYS_DEFAULT = 365
#: Days of a certificate that are compared with the CA's, whose limit the error message names.
DAYS_CHECKED_MAX = 999_999
TOKEN_EXAMPLES = """\
examples:
  gangline admin token new --role operator --name alice                shown once, and never again
  gangline admin token new --role agent --host gpu-[001-064] -o tokens  a file each, 0600: tokens/agent-gpu-001.token, ...
  gangline admin token list
  gangline admin token revoke 5f3c09a1b2c3                             in force within seconds, no restart

Run it on the aggregator's machine, as its user or root. With the first token every caller needs a login, on loopback
too. exit codes: 0 done, 1 failed, 2 wrong usage, 4 no such token
"""


def cert_main(arguments: list[str]) -> int:
    """Create certificates and print settings to paste. Exit code 1, with a message, on failure."""
    options = _cert_parser().parse_args(arguments)
    folder: Path = options.folder or options.data / FOLDER
    make = {"init": _init, "server": _server, "issue": _issue, "cluster": _cluster}[options.what]
    return guarded("cert", lambda: make(options, folder) or OK)


def _init(options: argparse.Namespace, folder: Path) -> None:
    paths = make_authority(folder, options.trust, datetime.now(UTC), force=options.force)
    print(f"CA: {paths.certificate}, its key: {paths.key}")


def _server(options: argparse.Namespace, folder: Path) -> None:
    authority = Authority(folder, datetime.now(UTC))
    paths = authority.issue_server(options.names, options.days, force=options.force)
    print(_of_aggregator(paths, folder))


def _issue(options: argparse.Namespace, folder: Path) -> None:
    authority = Authority(folder, datetime.now(UTC))
    role = Role(options.role)
    paths = authority.issue(role, options.name, options.days, force=options.force)
    address = f"AGGREGATOR:{PORT}"
    settings_of = _of_agent if role is Role.AGENT else _of_client
    print(settings_of(paths, folder, address))


def _cluster(options: argparse.Namespace, folder: Path) -> None:
    """Create the missing certificates of a small cluster: CA, server, agents, operators."""
    now = datetime.now(UTC)
    check_days(options.days)
    if not certificate_paths(folder, "ca").certificate.exists():
        make_authority(folder, options.trust, now)
    authority = Authority(folder, now)
    servers = options.server or [socket.getfqdn()]
    names = list(dict.fromkeys([*servers, "localhost", "127.0.0.1"]))
    address = f"{servers[0]}:{PORT}"
    server = authority.issue_server(names, options.days, force=options.force)
    sections = [_of_aggregator(server, folder)]
    for host in options.host:
        paths = authority.issue(Role.AGENT, host, options.days, force=options.force)
        sections.append(_of_agent(paths, folder, address))
    for name in options.operator:
        paths = authority.issue(Role.OPERATOR, name, options.days, force=options.force)
        sections.append(_of_client(paths, folder, address))
    print("\n\n".join(sections))


def _of_aggregator(made: CertificatePaths, folder: Path) -> str:
    return "\n".join(
        (
            "# the aggregator's settings (--config FILE); put its address in place of 0.0.0.0 if it has several",
            f'listen = "0.0.0.0:{PORT}"',
            f'tls_certificate_file = "{made.certificate.absolute()}"',
            f'tls_key_file = "{made.key.absolute()}"',
            f'tls_client_ca_file = "{certificate_paths(folder, "ca").certificate.absolute()}"',
        )
    )


def _of_agent(made: CertificatePaths, folder: Path, address: str) -> str:
    host = made.certificate.stem.removeprefix("agent-")
    ca = certificate_paths(folder, "ca").certificate
    return "\n".join(
        (
            f"# {host}: bring {made.certificate}, {made.key}, {ca}",
            "# to /etc/gangline there (the key 0600, its owner gangline), and into agent.toml:",
            f'host = "{host}"',
            f'aggregator = "{address}"',
            'tls_ca_file = "/etc/gangline/ca.pem"',
            f'tls_certificate_file = "/etc/gangline/{made.certificate.name}"',
            f'tls_key_file = "/etc/gangline/{made.key.name}"',
        )
    )


def _of_client(made: CertificatePaths, folder: Path, address: str) -> str:
    return "\n".join(
        (
            f"# {made.certificate.stem}: in ~/.config/gangline/client.toml of that person",
            f'aggregator = "{address}"',
            f'ca = "{certificate_paths(folder, "ca").certificate.absolute()}"',
            f'certificate = "{made.certificate.absolute()}"',
            f'key = "{made.key.absolute()}"',
        )
    )


def _cert_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin cert",
        description="Creates a CA and certificates for a small cluster: ECDSA P-256, one year, with the role in the name "
        "(spiffe://TRUST/gangline/ROLE/NAME). Prints the settings to paste.",
        epilog=CERT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    add_data_option(common)
    common.add_argument("--folder", type=Path, metavar="DIR", help=f"default: {FOLDER} in --data")
    common.add_argument("--force", action="store_true", help="overwrite existing files")
    leaf = argparse.ArgumentParser(add_help=False)
    leaf.add_argument(
        "--days",
        type=whole_duration(0, DAYS_CHECKED_MAX * UNITS["d"], unit="d"),
        default=LEAF_DAYS,
        metavar="N",
        help="days of validity (default: 365); a CA is valid for ten years",
    )
    trust = argparse.ArgumentParser(add_help=False)
    trust.add_argument(
        "--trust",
        type=_trust,
        default=TRUST_DEFAULT,
        metavar="DOMAIN",
        help="the trust domain of a new CA",
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="{init,server,issue,cluster}")
    what.add_parser("init", parents=[common, trust], help="a CA")
    server = what.add_parser("server", parents=[common, leaf], help="the aggregator's certificate")
    server.add_argument(
        "names", nargs="+", metavar="NAME", help="names and addresses that clients connect to"
    )
    issue = what.add_parser("issue", parents=[common, leaf], help="one caller's certificate")
    issue.add_argument("--role", required=True, choices=[str(role) for role in GRANTABLE_ROLES])
    issue.add_argument(
        "--name", "--host", required=True, type=caller_name, metavar="NAME", help="agent: its host"
    )
    cluster = what.add_parser(
        "cluster", parents=[common, leaf, trust], help="create all of these in one command"
    )
    server_name = cluster.add_argument(
        "--server-name",
        dest="server",
        action="append",
        metavar="NAME",
        help="names and addresses that clients connect to",
    )
    add_former_names(cluster, server_name, "--server")
    cluster.add_argument(
        "--host",
        action="extend",
        default=[],
        type=caller_names,
        metavar="HOSTS",
        help="agents: their hosts, such as gpu-[001-064]",
    )
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


def token_main(arguments: list[str]) -> int:
    """Create, list or revoke tokens. Exit codes: 1 the file is not accessible, 4 unknown token."""
    options = _token_parser().parse_args(arguments)
    path = tokens_file(options.data)
    work = {"new": _new, "list": _list, "revoke": _revoke}[options.what]
    return guarded("token", lambda: work(options, path))


def _new(options: argparse.Namespace, path: Path) -> int:
    now = int(time.time())
    created = [make_token(Role(options.role), name, options.days, now) for name in options.name]
    first = not path.exists()
    files: list[Path] = []
    if options.into is not None:
        files = [options.into / f"{token.role}-{token.name}.token" for _, token in created]
        existing = [str(file) for file in files if file.exists()]
        if existing and not options.force:
            raise TokensError(
                f"{', '.join(existing[:3])} would be overwritten. Use --force to overwrite"
            )
        private_folder(options.into)
        for file, (secret, _) in zip(files, created, strict=True):
            write_private(file, f"{secret}\n".encode(), 0o600)
    update_tokens(path, lambda before: [*before, *(token for _, token in created)])
    for index, (secret, token) in enumerate(created):
        print(files[index] if files else secret)
        print(f"{token.id}: {token.role} {token.name}, until {_day(token.until)}", file=sys.stderr)
    if first:
        print(
            "from now on every caller of this aggregator needs a login, even on loopback",
            file=sys.stderr,
        )
    if not (options.data / STORE_FILE).exists():
        print(
            f"{options.data} holds no store yet; the token is valid for an aggregator with "
            f"--data {options.data}",
            file=sys.stderr,
        )
    return OK


def _list(options: argparse.Namespace, path: Path) -> int:
    try:
        tokens = read_tokens(path)
    except FileNotFoundError:
        tokens = []
        print(f"no token exists: there is no {path}", file=sys.stderr)
    now = time.time()
    if options.json:
        shown = [{k: v for k, v in asdict(token).items() if k != "sha256"} for token in tokens]
        print(json.dumps(shown))
        return OK
    rows = [("ID", "ROLE", "NAME", "MADE", "UNTIL", "")]
    rows += [
        (
            token.id,
            token.role,
            token.name,
            _day(token.made),
            _day(token.until),
            "has run out" if now >= token.until else "",
        )
        for token in tokens
    ]
    print(table(rows))
    return OK


def _revoke(options: argparse.Namespace, path: Path) -> int:
    revoked: list[Token] = []

    def without(before: list[Token]) -> list[Token]:
        revoked.extend(t for t in before if t.id == options.id or t.name == options.name)
        return [token for token in before if token not in revoked]

    if not path.exists():
        raise TokensError(f"there are no tokens: no {path}")
    update_tokens(path, without)
    for token in revoked:
        print(f"revoked {token.id}: {token.role} {token.name}")
    if not revoked:
        requested = options.id or options.name
        print(f"gangline admin token: no token {requested!r}; `list` shows them", file=sys.stderr)
    return OK if revoked else NOT_FOUND


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def _token_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin token",
        description="Manages the bearer tokens with which callers log in (`authorization: Bearer TOKEN`). A token is shown once; the "
        "aggregator stores its hash, role, name and expiry date.",
        epilog=TOKEN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    add_data_option(common)
    what = parser.add_subparsers(dest="what", required=True, metavar="{new,list,revoke}")
    new = what.add_parser("new", parents=[common], help="create tokens, and show them once")
    add = new.add_argument
    add("--role", required=True, choices=[str(role) for role in GRANTABLE_ROLES])
    add(
        "--name",
        "--host",
        required=True,
        action="extend",
        type=caller_names,
        metavar="NAME",
        help="the callers; agents: their hosts, such as gpu-[001-064]",
    )
    add("--days", type=_days, default=DAYS_DEFAULT, metavar="N", help="default 365")
    output = add(
        "-o",
        "--output",
        dest="into",
        type=Path,
        metavar="DIR",
        help="write each token to a file there, and show none",
    )
    add_former_names(new, output, "--into")
    add("--force", action="store_true", help="overwrite files of --output")
    show = what.add_parser("list", parents=[common], help="list the tokens")
    show.add_argument("--json", action="store_true", help="one JSON document")
    revoke = what.add_parser(
        "revoke", parents=[common], help="revoke one token, or all tokens of a name"
    )
    which = revoke.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", default="", metavar="ID")
    which.add_argument("--name", default="", metavar="NAME")
    return parser


_days = whole_duration(UNITS["d"], DAYS_MAX * UNITS["d"], unit="d")
