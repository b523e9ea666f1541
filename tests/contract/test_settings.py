"""Settings: right values are accepted, wrong ones are named with the correct form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.contract.settings import FILE_BYTES_MAX, SettingsError, describe, load, setting


def _even(value: int) -> None:
    if value % 2:
        raise ValueError("an even number")


@dataclass(frozen=True, slots=True)
class Example:
    address: str = setting("127.0.0.1:7600", description="where to")
    spool_bytes_max: int = setting(4096, low=1024, high=1 << 40, description="bytes kept")
    wait_seconds: float = setting(0.5, low=0.0, description="how long")
    enforce: bool = setting(False, description="whether")
    folder: Path = setting(Path("var"), description="a place")  # noqa: RUF009 - a Path is immutable
    off: tuple[str, ...] = setting((), description="names")
    pair_count: int = setting(2, high=8, check=_even, description="by twos")


def test_defaults_then_the_file_then_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('spool_bytes_max = 2048\nwait_seconds = 2\noff = ["gpu"]\nfolder = "/x"\n')
    settings = load(Example, file, ["spool_bytes_max=1024", "enforce=true", "spool_bytes_max=8192"])
    assert settings == Example(
        spool_bytes_max=8192, wait_seconds=2.0, enforce=True, folder=Path("/x"), off=("gpu",)
    )


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("address=1234", "1234"),  # a host may be named by a number
        ("address = host:1", "host:1"),
        ('address="a b"', "a b"),
        ("address=true", "true"),
        ("address=", ""),
        ("address=a=b", "a=b"),
        ("off=gpu, rdma", ("gpu", "rdma")),
        ('off=["gpu","rdma"]', ("gpu", "rdma")),
        ("off=gpu", ("gpu",)),
        ("off=", ()),
        ("folder=/tmp/a", Path("/tmp/a")),
        ("wait_seconds=1", 1.0),
        ("spool_bytes_max=1_024", 1024),
    ],
)
def test_an_assignment_is_read_for_the_wanted_type(assignment: str, expected: object) -> None:
    """`--set host=1234` was refused as not being a text, and users do not quote within quotes."""
    name = assignment.partition("=")[0].strip()
    value = getattr(load(Example, None, [assignment]), name)
    assert value == expected
    assert type(value) is type(expected) or isinstance(value, Path)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("spool_byte_max=5", "unknown setting 'spool_byte_max'; did you mean 'spool_bytes_max'?"),
        ("zzz=5", "unknown setting 'zzz'; known: address, "),
        ("spool_bytes_max", "--set spool_bytes_max: expected key=value"),
        ("spool_bytes_max=lots", "spool_bytes_max = 'lots': expected a whole number"),
        ("spool_bytes_max=1.5", "spool_bytes_max = 1.5: expected a whole number"),
        ("spool_bytes_max=true", "spool_bytes_max = True: expected a whole number"),
        ("spool_bytes_max=5", "spool_bytes_max = 5: expected 1024 to 1099511627776"),
        ("wait_seconds=nan", "wait_seconds = nan: expected at least 0.0"),
        ("wait_seconds=-1", "wait_seconds = -1: expected at least 0.0"),
        ("wait_seconds=soon", "wait_seconds = 'soon': expected a number"),
        ("enforce=1", "enforce = 1: expected true or false"),
        ("enforce=yes", "enforce = 'yes': expected true or false"),
        ("folder=", "folder = '': expected a path"),
        ("off=[1, 2]", 'off = [1, 2]: expected a list of texts, as ["a", "b"]'),
        ("pair_count=3", "pair_count = 3: expected an even number"),
        ("pair_count=10", "pair_count = 10: expected at most 8"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(assignment: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(Example, None, [assignment])
    assert message in str(caught.value)
    assert "--set" in str(caught.value)


def test_a_range_with_two_ends_is_told_whole() -> None:
    with pytest.raises(SettingsError, match=f"expected 1024 to {1 << 40}"):
        load(Example, None, [f"spool_bytes_max={1 << 60}"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"address = ", "not TOML"),
        (b"\xff\xfe", "not TOML"),
        (b"a = " + b"[" * 100_000, "not TOML"),
        (b"a = " + b"9" * 10_000, "not TOML"),
        (b"#" * (FILE_BYTES_MAX + 1), f"longer than {FILE_BYTES_MAX} bytes"),
        (b"[spool]\nbytes_max = 1\n", "unknown setting 'spool'"),
        (b'address = ["a"]', "address = ['a']: expected a text"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load(Example, file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml: No such file or directory"):
        load(Example, tmp_path / "absent.toml")
    with pytest.raises(SettingsError, match="Is a directory"):
        load(Example, tmp_path)


def test_describe_says_each_setting_as_the_file_would() -> None:
    lines = describe(Example).splitlines()
    assert lines[:4] == [
        'address = "127.0.0.1:7600"',
        "    where to",
        f"spool_bytes_max = 4096  (1024 to {1 << 40})",
        "    bytes kept",
    ]
    assert "enforce = false" in lines
    assert 'folder = "var"' in lines
    assert "off = []" in lines


@given(key=st.sampled_from([*Example.__annotations__, "other"]), text=st.text(max_size=80))
def test_any_text_is_settings_or_words(key: str, text: str) -> None:
    """For any command line the daemon reports the error without a traceback."""
    try:
        settings = load(Example, None, [f"{key}={text}"])
    except SettingsError as error:
        assert key in str(error)
    else:
        assert settings.spool_bytes_max >= 1024
        assert settings.wait_seconds >= 0
        assert isinstance(settings.off, tuple)


@given(st.binary(max_size=200))
def test_any_file_is_settings_or_words(tmp_path_factory: pytest.TempPathFactory, b: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(b)
    try:
        load(Example, file)
    except SettingsError as error:
        assert str(error).startswith(str(file))
