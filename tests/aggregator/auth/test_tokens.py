"""Tokens: kept as hashes, found in constant time, changed by one at a time, revoked while it runs."""

from __future__ import annotations

import dataclasses
import errno
import hmac
import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.auth.tokens import (
    Token,
    Tokens,
    TokensError,
    make_token,
    parse_tokens,
    read_tokens,
    update_tokens,
    write_private,
)
from gangline.aggregator.principal import Role

NOW = 1_760_000_000

GOOD = dataclasses.asdict(make_token(Role.AGENT, "a", 1.0, NOW)[1])


def written(folder: Path, *names: str) -> tuple[Path, list[str]]:
    pairs = [make_token(Role.OPERATOR, name, 1.0, NOW) for name in names]
    path = folder / "access" / "tokens.json"
    update_tokens(path, lambda before: [*before, *(kept for _, kept in pairs)])
    return path, [secret for secret, _ in pairs]


def test_a_token_is_found_by_its_secret_alone(tmp_path: Path) -> None:
    """Neither another token's secret, nor its id, nor its fields in the file."""
    path, (alice, bob) = written(tmp_path, "alice", "bob")
    held = Tokens(path)
    holder = held.find(alice, NOW)
    assert holder is not None and (holder.role, holder.name) == ("operator", "alice")
    mixed = "_".join([*bob.split("_")[:2], alice.split("_", 2)[2]])
    for wrong in (
        "",
        "x",
        alice[:-1],
        alice + "A",
        alice.upper(),
        mixed,
        holder.sha256,
        f"gangline_{holder.id}_{holder.sha256[:43]}",
    ):
        assert held.find(wrong, NOW) is None


def test_the_file_shows_nobody_how_to_log_in(tmp_path: Path) -> None:
    """A backup of the data folder may be on any laptop."""
    path, (secret,) = written(tmp_path, "alice")
    text = path.read_text()
    assert secret not in text and secret.split("_", 2)[2] not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_full_disk_names_the_file_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`admin token new` printed "No space left on device" without a file name, and left an empty file."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_private(tmp_path / "a.token", b"secret", 0o600)
    assert raised.value.filename == str(tmp_path / "a.token") and not [*tmp_path.iterdir()]


def test_a_token_ends(tmp_path: Path) -> None:
    """A token made for a trial two years ago has expired."""
    path, (secret,) = written(tmp_path, "alice")
    held = Tokens(path)
    assert held.find(secret, NOW + 86_399.0) and not held.find(secret, NOW + 86_400.0)


def test_unknown_ids_and_wrong_secrets_are_compared_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a refusal reveals nothing: each takes a comparison of two whole hashes."""
    path, (secret,) = written(tmp_path, "alice")
    held, compared = Tokens(path), list[tuple[int, int]]()
    real = hmac.compare_digest

    def counted(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    held.find(secret, NOW)
    held.find(secret[:-1] + ("A" if secret[-1] != "A" else "B"), NOW)
    held.find("gangline_000000000000_" + "A" * 43, NOW)
    assert compared == [(64, 64)] * 3


def test_what_changed_is_in_force_at_the_next_look(tmp_path: Path) -> None:
    path, (alice,) = written(tmp_path, "alice")
    held = Tokens(path)
    assert not held.refresh()
    update_tokens(path, lambda _: [])
    assert held.refresh() and not held.find(alice, NOW) and held.configured
    _, (bob,) = written(tmp_path, "bob")
    assert held.refresh() and held.find(bob, NOW)
    path.write_text("{ nonsense")
    assert held.refresh() and held.find(bob, NOW) and "in force" in held.error
    path.unlink()
    assert held.refresh() and not held.find(bob, NOW) and held.configured and not held.error


def test_a_revocation_that_could_not_be_read_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read that saw the change had no file descriptor left; the revoked token stayed valid."""
    path, (alice,) = written(tmp_path, "alice")
    held = Tokens(path)
    update_tokens(path, lambda _: [])

    def no_descriptor(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr("builtins.open", no_descriptor)
        assert held.refresh() and held.find(alice, NOW) and "Too many open files" in held.error
    assert held.refresh() and not held.find(alice, NOW) and not held.error
    assert not held.refresh()


@pytest.mark.parametrize("make_other", [Path.symlink_to, Path.hardlink_to])
def test_the_lock_is_no_way_to_what_only_root_may_open(tmp_path: Path, make_other: Any) -> None:
    """The service's user made `tokens.lock` a link to /etc/shadow, and root's next `token new` gave
    that user the file.
    """
    path, _ = written(tmp_path, "alice")
    shadow = tmp_path / "shadow"
    shadow.write_text("root's")
    shadow.chmod(0o600)
    lock = path.with_suffix(".lock")
    lock.unlink()
    make_other(lock, shadow)
    with pytest.raises((OSError, TokensError)):
        _add(path, "bob")
    assert shadow.read_text() == "root's" and len(read_tokens(path)) == 1


def test_an_aggregator_does_not_start_on_a_file_it_cannot_read(tmp_path: Path) -> None:
    """It would admit everyone or no one, in silence."""
    path, _ = written(tmp_path, "alice")
    path.write_text('{"tokens": [{}]}')
    with pytest.raises(TokensError, match=r"tokens\.json"):
        Tokens(path)


def _add(path: Path, name: str) -> None:
    update_tokens(path, lambda before: [*before, make_token(Role.AGENT, name, 1.0, NOW)[1]])


def test_two_who_change_the_file_at_once_lose_nothing(tmp_path: Path) -> None:
    """A shell loop started commands in parallel."""
    path = tmp_path / "access" / "tokens.json"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_add, args=(path, f"host-{n}")) for n in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert {token.name for token in read_tokens(path)} == {f"host-{n}" for n in range(8)}
    assert sorted(os.listdir(path.parent)) == ["tokens.json", "tokens.lock"]


@pytest.mark.parametrize(
    "fields",
    [
        {**GOOD, "role": "root"},
        {**GOOD, "role": "anyone"},
        {**GOOD, "id": "zz"},
        {**GOOD, "sha256": ""},
        {**GOOD, "sha256": None},
        {**GOOD, "name": "a b"},
        {**GOOD, "until": "tomorrow"},
        {**GOOD, "until": True},
        {**GOOD, "more": 1},
        {},
        [],
        None,
    ],
)
def test_a_token_that_we_did_not_write_is_refused(fields: object) -> None:
    """An empty hash would match no secret, and an unknown role any caller."""
    with pytest.raises(TokensError):
        parse_tokens(json.dumps({"tokens": [GOOD, fields]}))
    assert parse_tokens(json.dumps({"tokens": [GOOD]})) == [Token(**GOOD)]


@given(st.text(max_size=200))
def test_any_text_is_a_file_or_is_refused(text: str) -> None:
    """A disk flipped bits."""
    try:
        assert all(isinstance(token, Token) for token in parse_tokens(text))
    except TokensError as error:
        assert len(str(error)) < 400
