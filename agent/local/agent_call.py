"""A call to the agent's Unix socket from a command on the same host."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ..config import SOCKET_NAME, run_folder_candidates
from ..hardware.proc_files import boot_id
from ..release_state import ReleaseStateFile
from ..transport.unary_call import CallFailed, NoListener, call

AgentAnswer = TypeVar("AgentAnswer", bound=Message)


def add_socket_options(parser: argparse.ArgumentParser) -> None:
    """Add options that select an agent by its run folder, or by the socket in this folder."""
    default_folders = " or ".join(map(str, run_folder_candidates()))
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--run-folder",
        dest="socket",
        type=_socket_path,
        metavar="FOLDER",
        help=f"where the agent answers (default {default_folders})",
    )
    group.add_argument(
        "--socket", type=Path, metavar="PATH", help=f"the same, by its socket: FOLDER/{SOCKET_NAME}"
    )


def _socket_path(folder: str) -> Path:
    if not folder:
        raise argparse.ArgumentTypeError("expected a folder, as the agent's setting run_folder")
    return Path(folder) / SOCKET_NAME


def sockets(option: Path | None) -> tuple[Path, ...]:
    """Return the socket paths to try, in order."""
    return (
        (option,) if option else tuple(folder / SOCKET_NAME for folder in run_folder_candidates())
    )


def release_file(option: Path | None) -> ReleaseStateFile | None:
    """Return the release file that a starting agent reads; None without a writable run folder.

    For an agent that does not respond now: it is starting, or was killed.
    """
    for path in sockets(option):
        if os.access(path.parent, os.W_OK | os.X_OK):
            return ReleaseStateFile(path.parent, boot_id(Path("/proc")))
    return None


def call_agent(
    paths: Iterable[Path],
    method: str,
    request: Message,
    kind: type[AgentAnswer],
    seconds_max: float,
) -> AgentAnswer:
    """Return the response of the first agent that listens. Raises NoListener, CallFailed."""
    failures: list[str] = []
    for path in paths:
        try:
            return kind.FromString(call(path, method, request.SerializeToString(), seconds_max))
        except NoListener as error:
            failures.append(str(error))
        except PermissionError:
            raise CallFailed("PERMISSION_DENIED", f"{path}: permission denied") from None
        except DecodeError as error:
            raise CallFailed("UNKNOWN", f"{path}: the answer cannot be read: {error}") from error
    raise NoListener(", ".join(failures))
