"""A token of `gangline run`'s own, where the aggregator in its folder asks everybody for one."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from ..access import tokens
from ..access.caller import Role
from ..access.door import tokens_file
from ..access.files import put

#: Whose the token is, in `gangline admin token list`.
NAME = "gangline-run"
#: It is revoked when we end; that of a run that was killed, when the next begins.
DAYS = 365


class OwnLogin:
    """`begin`, once nobody else runs in the folder; then `end`. Whoever may write there may make a token anyway."""

    def __init__(self, data: Path, file: Path) -> None:
        """*data*: the aggregator's folder; *file*: where the token is put, for us and our children."""
        self._tokens, self._file = tokens_file(data), file
        self._secret = ""

    @property
    def token_file(self) -> str:
        """The token's file, "" where none is needed."""
        return str(self._file) if self._secret else ""

    def begin(self) -> None:
        """Make the token if the aggregator will ask for one. Raises TokensError, OSError."""
        if not self._tokens.exists():
            return
        secret, kept = tokens.make(Role.ADMIN, NAME, DAYS, int(time.time()))
        tokens.change(
            self._tokens, lambda before: [*(one for one in before if one.name != NAME), kept]
        )
        put(self._file, f"{secret}\n".encode(), 0o600)
        self._secret = secret

    def end(self) -> None:
        """Revoke it. Raises TokensError, OSError."""
        if not self._secret:
            return
        ours = self._secret.split("_")[1]
        tokens.change(self._tokens, lambda before: [one for one in before if one.id != ours])
        with suppress(FileNotFoundError):
            if self._secret in self._file.read_text():
                self._file.unlink()
        self._secret = ""
