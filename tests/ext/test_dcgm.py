"""DCGM's client library: found at run time, connected to a running engine, both majors.

The contract tests use the stand-in of both majors and, if it is installed and a host engine runs,
the real one: `GANGLINE_TEST_DCGM=localhost:5555 pytest tests/ext/test_dcgm.py`.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.ext import dcgm
from gangline.ext.dcgm import Dcgm, DcgmAbsent, DcgmError, Incident, Violation
from tests.fake_dcgm import MAJORS, HostEngine, build

ADDRESS = "localhost:5555"
TRUE_ADDRESS = os.environ.get("GANGLINE_TEST_DCGM", "")
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp("fake_dcgm")
    return {major: str(build(folder, major)) for major in MAJORS}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostEngine:
    monkeypatch.setenv("GANGLINE_FAKE_DCGM", str(tmp_path / "engine"))
    host_engine = HostEngine(tmp_path / "engine")
    host_engine.gpu(0, UUID.format(0), "0000:9b:00.0", 8)
    host_engine.gpu(1, UUID.format(1), "0000:c4:00.0", 8)
    host_engine.switch(0, "0000:05:00.0", 4)
    host_engine.switch(1, "0000:06:00.0", 4)
    host_engine.set_of(3, 0, 858, "i", 5, 45)
    host_engine.write()
    return host_engine


@pytest.fixture(params=[3, 4, "true"])
def client(
    request: pytest.FixtureRequest, libraries: dict[int, str], engine: HostEngine
) -> Iterator[Dcgm]:
    """Yield a connected client of each major, and of the real library if an engine runs."""
    if request.param == "true":
        if not TRUE_ADDRESS:
            pytest.skip("no host engine: GANGLINE_TEST_DCGM=localhost:5555 names one that runs")
        dcgm = Dcgm()
        dcgm.connect(TRUE_ADDRESS, 900)
    else:
        dcgm = Dcgm(libraries[request.param])
        dcgm.connect(ADDRESS, 900)
    yield dcgm
    dcgm.disconnect()


class TestContract:
    """Properties of both the stand-in and the real library."""

    def test_gpus_have_uuid_address_and_capability(self, client: Dcgm) -> None:
        gpus = client.devices()
        values = client.latest(gpus, (54, 57, 63), live=True)
        assert gpus and len(values) == 3 * len(gpus)
        for uuid, address, capability in zip(values[::3], values[1::3], values[2::3], strict=True):
            assert str(uuid.value).startswith("GPU-") and ":" in str(address.value)
            assert isinstance(capability.value, int) and 3 <= capability.value >> 16 < 100

    def test_what_nobody_watches_is_no_value(self, client: Dcgm) -> None:
        (value,) = client.latest(client.devices()[:1], (1008,))
        assert value.value is None and (value.field, value.entity) == (1008, client.devices()[0])

    def test_health_is_asked_for_with_a_version_that_the_library_takes(self, client: Dcgm) -> None:
        for group in client.groups():
            if client.health_systems(group):
                assert all(each.health in (10, 20) for each in client.health(group))

    def test_switches_and_links_are_entities_with_the_ids_of_the_header(self, client: Dcgm) -> None:
        """A link's id is its kind (8 bits), its index (8), and its switch (16): dcgm_link_t."""
        try:
            switches = client.entities(dcgm.ENTITY_SWITCH)
            links = client.entities(dcgm.ENTITY_LINK)
        except DcgmError as error:
            assert error.code in (dcgm.NOT_SUPPORTED, dcgm.MODULE_NOT_LOADED)
            return
        of_switches = [link for link in links if link & 0xFF == dcgm.ENTITY_SWITCH]
        assert {link >> 16 for link in of_switches} <= set(switches)
        values = client.latest(switches, (858, 870), group=dcgm.ENTITY_SWITCH)
        assert [value.entity for value in values[::2]] == switches
        assert all(value.value is None or value.field == 858 for value in values)

    def test_the_list_of_gpus_is_that_of_the_devices(self, client: Dcgm) -> None:
        assert sorted(client.entities(dcgm.ENTITY_GPU)) == sorted(client.devices())

    def test_an_address_where_nobody_answers_is_an_error(self, client: Dcgm) -> None:
        if client.library.startswith("libdcgm"):
            with pytest.raises(DcgmError):
                client.connect("localhost:1", 500)


def test_version_words_are_those_of_the_library(libraries: dict[int, str]) -> None:
    """A version word with another size is refused, and with it the call."""
    ours = dcgm.sizes()
    known = set[str]()
    for library in libraries.values():
        of_library = ctypes.CDLL(library).fake_dcgm_version_word
        of_library.restype = ctypes.c_uint32
        for name, word in ours.items():
            if theirs := of_library(name.encode()):
                assert word == theirs, name
                known.add(name)
    assert known == ours.keys()
    assert ours["dcgmConnectV2Params_v2"] == 16 | 2 << 24


def test_no_engine_is_ever_started() -> None:
    """Without an address DCGM would embed a host engine: the binding looks up no such call."""
    assert not [
        name
        for name in dcgm.SYMBOLS
        if re.search("Embedded|EngineRun|ActionValidate|PolicySet", name)
    ]
    source = (Path(dcgm.__file__).parent / "dcgm.pyx").read_text()
    assert not re.search(
        "dcgm(Start|Stop)Embedded|dcgmEngineRun|dcgmActionValidate|dcgmPolicySet", source
    )


def test_an_empty_address_is_refused(libraries: dict[int, str], engine: HostEngine) -> None:
    client = Dcgm(libraries[4])
    with pytest.raises(ValueError, match="an address"):
        client.connect("", 900)
    with pytest.raises(ValueError, match="an address"):
        client.connect("unix:", 900)
    assert engine.calls == ["dcgmInit"]


def test_a_socket_is_told_from_a_host(libraries: dict[int, str], engine: HostEngine) -> None:
    client = Dcgm(libraries[4])
    client.connect("unix:/run/nv-hostengine", 700)
    assert engine.calls[-1] == "dcgmConnect_v2 unix:/run/nv-hostengine 700"


def test_what_is_no_dcgm_is_said(tmp_path: Path) -> None:
    with pytest.raises(DcgmAbsent):
        Dcgm(str(tmp_path / "libdcgm.so.4"))
    with pytest.raises(DcgmAbsent, match="no dcgmInit"):
        Dcgm("libc.so.6")


def test_blanks_are_no_values(libraries: dict[int, str], engine: HostEngine) -> None:
    client = Dcgm(libraries[4])
    client.connect(ADDRESS, 900)
    engine.set(0, 1002, "d", 5, "blank")
    engine.set(0, 1003, "d", 5, "0.25")
    engine.set(0, 230, "i", 5, "blank")
    engine.set(0, 50, "s", 5, "blank")
    engine.set(0, 1004, "d", 5, "!-17")
    engine.write()
    values = client.latest([0], [1002, 1003, 230, 50, 1004])
    assert [value.value for value in values] == [None, 0.25, None, None, None]
    assert values[4].status == dcgm.NO_PERMISSION


def test_more_readings_than_capacity(libraries: dict[int, str], engine: HostEngine) -> None:
    client = Dcgm(libraries[4])
    client.connect(ADDRESS, 900)
    with pytest.raises(ValueError, match="at most 32 entities and 128 fields"):
        client.latest(range(33), [1])
    with pytest.raises(ValueError, match="at most 32 entities and 128 fields"):
        client.latest([0], range(129))


def test_a_blob_is_its_first_bytes(libraries: dict[int, str], engine: HostEngine) -> None:
    client = Dcgm(libraries[4])
    client.connect(ADDRESS, 900)
    engine.set(0, 503, "b", 5, "7,9")
    engine.write()
    (value,) = client.latest([0], [503])
    assert isinstance(value.value, bytes) and len(value.value) == 256
    assert value.value[:12] == bytes([2, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0])


def test_more_entities_than_capacity(libraries: dict[int, str], engine: HostEngine) -> None:
    """The engine returns the count, and writes nothing beyond the buffer."""
    client = Dcgm(libraries[4])
    client.connect(ADDRESS, 900)
    engine.entities += [(6, 3 | number << 8) for number in range(1030)]
    engine.write()
    with pytest.raises(DcgmError, match="dcgmGetEntityGroupEntities") as error:
        client.entities(dcgm.ENTITY_LINK)
    assert error.value.code == dcgm.INSUFFICIENT_SIZE


@pytest.mark.parametrize("major", MAJORS)
def test_incidents_have_code(libraries: dict[int, str], engine: HostEngine, major: int) -> None:
    client = Dcgm(libraries[major])
    client.connect(ADDRESS, 900)
    engine.lines += ["group 0 0x13", "incident 0 1 1 0x10 20 3 A DBE, it says"]
    engine.write()
    assert client.groups() == [0] and client.health_systems(0) == 0x13
    assert client.health(0) == [Incident(1, 1, 0x10, 20, 3, "A DBE, it says")]


def test_a_library_whose_name_hides_its_major_is_asked_in_its_own_version(
    libraries: dict[int, str], engine: HostEngine, tmp_path: Path
) -> None:
    """An operator's path: DCGM 3 exports much of DCGM 4's functions."""
    other = tmp_path / "libdcgm.so"
    other.symlink_to(libraries[4])
    client = Dcgm(str(other))
    client.connect(ADDRESS, 900)
    engine.lines += ["group 0 0x1"]
    engine.write()
    assert client.health(0) == [] and client.major == 4


@pytest.mark.parametrize("major", MAJORS)
def test_violations_wait(libraries: dict[int, str], engine: HostEngine, major: int) -> None:
    client = Dcgm(libraries[major])
    client.connect(ADDRESS, 900)
    client.violations()
    client.listen_to_policies(dcgm.ALL_GPUS, 0x7F)
    engine.lines += ["violation 1 0x40 1700000000000000 79 0"]
    engine.write()
    client.latest([0], [1002])
    gpu = 1 if major == 4 else dcgm.NO_GPU
    assert client.violations() == [Violation(gpu, 0x40, 1_700_000_000_000_000, 79, 0)]
    assert client.violations() == []


def test_a_restarted_engine(libraries: dict[int, str], engine: HostEngine) -> None:
    client = Dcgm(libraries[4])
    client.connect(ADDRESS, 900)
    engine.lines.append("generation 1")
    engine.write()
    with pytest.raises(DcgmError, match="connection invalid") as error:
        client.devices()
    assert error.value.code == dcgm.CONNECTION_NOT_VALID
    client.connect(ADDRESS, 900)
    assert client.devices() == [0, 1]
