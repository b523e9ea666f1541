"""Bearer tokens: created, stored as hashes, verified, revoked.

A token is `gangline_ID_SECRET`. The secret has 256 random bits, so a plain SHA-256 suffices: a slow hash protects only
guessable secrets. The file does not let its readers log in.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...contract.durable_file import os_error_message, sync_folder
from ..principal import GRANTABLE_ROLES, Role, is_name

FILE_NAME = "tokens.json"
#: Enough for TOKENS_MAX tokens.
FILE_BYTES_MAX = 32 << 20
TOKENS_MAX = 100_000
SECRET_BYTES = 32
TOKEN_CHARACTERS_MAX = 128
#: A token without an end would be forgotten.
DAYS_MAX = 3660
_FORM = re.compile(r"gangline_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
_ID = re.compile(r"[0-9a-f]{12}")
_HASH = re.compile(r"[0-9a-f]{64}")


def write_private(path: Path, data: bytes, mode: int) -> None:
    """Write a file of *mode* atomically and durably. Raises OSError.

    A revoked token must not return after a power cut.
    """
    new = path.with_name(path.name + ".new")
    with suppress(FileNotFoundError):
        new.unlink()
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            give_to_owner(file.fileno(), path.parent)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def private_folder(folder: Path) -> None:
    """Create a private folder if it is missing; its owner is its parent's owner. Raises OSError."""
    if folder.exists():
        return
    # A missing parent is a data folder that no aggregator has created yet; `store/store_folder.py`
    # uses the same mode.
    folder.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # created by a concurrent command
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        give_to_owner(descriptor, folder.parent)
    finally:
        os.close(descriptor)


def give_to_owner(descriptor: int, folder: Path) -> None:
    """If run by root, give an open file to the owner of *folder*. Raises OSError.

    By descriptor: with a path the folder's owner could make root give away another file.
    """
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


class TokensError(Exception):
    """The file of tokens is unusable; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Token:
    """A stored token. Times are Unix seconds."""

    id: str
    role: str
    name: str
    sha256: str
    made: int
    until: int


def make_token(role: Role, name: str, days: float, now: int) -> tuple[str, Token]:
    """Return a new token's text, which cannot be recovered later, and its stored form."""
    identity = secrets.token_hex(6)
    secret = base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).rstrip(b"=").decode()
    stored = Token(identity, str(role), name, _hash(secret), now, now + int(days * 86_400))
    return f"gangline_{identity}_{secret}", stored


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def parse_tokens(text: str) -> list[Token]:
    """Return the tokens of a file's text. Raises TokensError."""
    try:
        document = json.loads(text)
        tokens = [_validated(fields) for fields in document["tokens"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TokensError(
            f"not a file of tokens: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    if len(tokens) > TOKENS_MAX:
        raise TokensError(f"{len(tokens)} tokens, at most {TOKENS_MAX}")
    return tokens


def _validated(fields: dict[str, Any]) -> Token:
    token = Token(**fields)
    texts = (token.id, token.role, token.name, token.sha256)
    if not all(isinstance(text, str) for text in texts) or token.role not in GRANTABLE_ROLES:
        raise ValueError(
            f"token {str(token.id)[:20]!r}: a field is not text, or the role is unknown"
        )
    if not (_ID.fullmatch(token.id) and _HASH.fullmatch(token.sha256) and is_name(token.name)):
        raise ValueError(f"token {token.id[:20]!r}: not in Gangline's format")
    if type(token.made) is not int or type(token.until) is not int:
        raise ValueError(f"token {token.id}: its times are not whole numbers")
    return token


def read_tokens(path: Path) -> list[Token]:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise TokensError(f"{path}: longer than {FILE_BYTES_MAX} bytes")
        return parse_tokens(data.decode())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TokensError(f"{path}: {os_error_message(error)}") from error
    except UnicodeDecodeError as error:
        raise TokensError(f"{path}: not UTF-8") from error
    except TokensError as error:
        raise TokensError(f"{path}: {error}. Restore a copy, or create new tokens") from error


def update_tokens(path: Path, edit: Callable[[list[Token]], list[Token]]) -> list[Token]:
    """Replace the file's tokens by *edit* of them, atomically and under a lock.

    Only the owner can read the file. Raises TokensError, OSError.
    """
    private_folder(path.parent)
    with _locked(path):
        try:
            before = read_tokens(path)
        except FileNotFoundError:
            before = []
        after = edit(before)
        if len(after) > TOKENS_MAX:
            raise TokensError(f"{len(after)} tokens, at most {TOKENS_MAX}: revoke some")
        text = json.dumps({"tokens": [asdict(token) for token in after]}, indent=1)
        write_private(path, text.encode(), 0o600)
    return after


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock_file = path.with_suffix(".lock")
    # Root runs this in the service's folder: a link must not lead it to another file.
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(lock).st_nlink != 1:
            raise TokensError(
                f"{lock_file} has another hard link, so it is not used as a lock. Remove it"
            )
        give_to_owner(lock, path.parent)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class Tokens:
    """The tokens of the last read. `refresh` and `find` may run in different threads."""

    def __init__(self, path: Path) -> None:
        """Read *path* if it exists. Raises TokensError."""
        self.path = path
        #: Whether the file ever existed: then a login is required, even if all tokens are revoked.
        self.configured = False
        #: Why the current file is not active; "" if it is.
        self.error = ""
        self._by_id: dict[str, Token] = {}
        self._last_stamp: tuple[int, ...] | None = None
        self._load()

    def refresh(self) -> bool:
        """Reread the file if it changed; return whether it did. Never raises.

        An unusable file changes nothing and is retried at each check: it may contain a revocation,
        and missing descriptors or permissions change no time stamp. A removed file ends all tokens.
        """
        if not self.error and self._stamp() == self._last_stamp:
            return False
        try:
            self._load()
        except TokensError as error:
            self.error = f"the previous tokens stay in force: {error}"
        return True

    def _load(self) -> None:
        self._last_stamp = self._stamp()
        try:
            tokens: Sequence[Token] = read_tokens(self.path)
        except FileNotFoundError:
            tokens = ()
        else:
            self.configured = True
        self._by_id, self.error = {token.id: token for token in tokens}, ""
        self._logins = {f"{token.role} {token.name}" for token in tokens}

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            now = self.path.stat()
        except OSError:
            return None
        return now.st_ino, now.st_mtime_ns, now.st_size

    def find(self, text: str, now: float) -> Token | None:
        """Return the active token for *text*. A wrong secret takes as long as a right one."""
        match = _FORM.fullmatch(text) if len(text) <= TOKEN_CHARACTERS_MAX else None
        if match is None:
            return None
        token = self._by_id.get(match["id"])
        known = token.sha256 if token else "0" * 64
        right = hmac.compare_digest(_hash(match["secret"]), known)
        return token if token is not None and right and now < token.until else None

    def contains(self, identity: str) -> bool:
        """Return whether the token of that id exists."""
        return identity in self._by_id

    def has_login(self, login: str) -> bool:
        """Return whether a token of `Principal.login` exists."""
        return login in self._logins

    def __len__(self) -> int:
        return len(self._by_id)
