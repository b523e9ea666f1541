"""Where the agent of this host answers, for the commands that ask it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ..identity import boot_id
from ..released import ReleasedFile
from ..transport.unary import CallFailed, NobodyThere, call
from .folder import SOCKET, candidates

Answer = TypeVar("Answer", bound=Message)


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Let an operator name another agent than the usual ones: by its run folder, or by the socket in it."""
    usual = " or ".join(map(str, candidates()))
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--run-folder",
        dest="socket",
        type=_socket_in,
        metavar="FOLDER",
        help=f"where the agent answers (default {usual})",
    )
    place.add_argument(
        "--socket", type=Path, metavar="PATH", help=f"the same, by its socket: FOLDER/{SOCKET}"
    )


def _socket_in(folder: str) -> Path:
    if not folder:
        raise argparse.ArgumentTypeError("expected a folder, as the agent's setting run_folder")
    return Path(folder) / SOCKET


def sockets(option: Path | None) -> tuple[Path, ...]:
    """Return the paths to try, in order."""
    return (option,) if option else tuple(folder / SOCKET for folder in candidates())


def release_file(option: Path | None) -> ReleasedFile | None:
    """Return where an agent that does not answer now (it begins, or was killed) will look what is let go of; None
    where there is no run folder, and so none that begins, or we may not write there."""
    for path in sockets(option):
        if os.access(path.parent, os.W_OK | os.X_OK):
            return ReleasedFile(path.parent, boot_id(Path("/proc")))
    return None


def ask(
    paths: Iterable[Path], method: str, request: Message, kind: type[Answer], seconds_max: float
) -> Answer:
    """Return the answer of the first agent that is there. Raises NobodyThere naming all paths, and CallFailed."""
    words: list[str] = []
    for path in paths:
        try:
            return kind.FromString(call(path, method, request.SerializeToString(), seconds_max))
        except NobodyThere as error:
            words.append(str(error))
        except PermissionError:
            raise CallFailed("PERMISSION_DENIED", f"{path}: you may not ask there") from None
        except DecodeError as error:
            raise CallFailed("UNKNOWN", f"{path}: the answer cannot be read: {error}") from error
    raise NobodyThere(", ".join(words))
