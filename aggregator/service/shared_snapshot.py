"""A snapshot as sealed files in memory, written by the aggregator and mapped by the score process.

There are two files: the arrays of each judgement, and the *dictionary* of host and GPU names,
rewritten only when a name is new. Details of hosts (evidence, texts) are decoded on demand. The
data is pickled, which is safe here: it goes from a Gangline process to its own child, over a
private socket.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, Generic, TypeVar, overload

from ..fleet.collector_status import CollectorStatus
from ..model import HostScore
from ..scoring.evaluate import Judgement
from ..scoring.features import FaultHistory

One = TypeVar("One")

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_SIZE = struct.Struct("<Q")
#: Alignment of parts in a file, so that numpy can use arrays in place.
_ALIGNED_BYTES = 64
_PROTOCOL = 5
#: Placeholders for the names in a pickled judgement.
_HOSTS, _GPUS = "hosts", "gpus"


class LazySequence(Sequence[One], Generic[One]):
    """A sequence of known length that is loaded at the first access."""

    def __init__(self, length: int, load: Callable[[], Sequence[One]]) -> None:
        self._length, self._load = length, load

    @cached_property
    def _loaded(self) -> Sequence[One]:
        return self._load()

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> One: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[One]: ...
    def __getitem__(self, at: int | slice) -> One | Sequence[One]:
        return self._loaded[at]


class NameDictionary:
    """All names, by node index and by GPU index; GPU names are loaded at the first access."""

    def __init__(self, descriptor: int) -> None:
        """Map *descriptor*, which the caller still owns."""
        (first,), (second,) = _mapped(descriptor)
        self.names: tuple[str, ...]
        self.names, gpus = pickle.loads(first)
        self.gpus = LazySequence[str](gpus, lambda: pickle.loads(second))


def dictionary_file(snapshot: Judgement) -> int:
    """Return a descriptor of a file with the names in *snapshot*. Raises OSError."""
    gpus = tuple(snapshot.gpus.names[index] for index in range(len(snapshot.gpus)))
    return _file([_pickled((snapshot.names, len(gpus))), _pickled(gpus)])


def snapshot_file(snapshot: Judgement) -> int:
    """Return a descriptor of *snapshot* without names and judging state. Raises OSError."""
    reduced = replace(
        snapshot,
        hosts=(),
        collector_statuses=(),
        tracked_symptoms={},
        rule_symptoms={},
        settling={},
        faults=FaultHistory(),
    )
    names = {id(snapshot.names): _HOSTS, id(snapshot.gpus.names): _GPUS}
    names.pop(id(()), None)  # Python has a single empty tuple, shared by all empty ones
    hosts = snapshot.hosts, tuple(snapshot.collector_statuses)
    return _file([_pickled(reduced, names), _pickled(hosts, names)])


def snapshot_of(descriptor: int, dictionary: NameDictionary) -> Judgement:
    """Return the snapshot in *descriptor*, which the caller still owns."""
    first, second = _mapped(descriptor)
    loaded: Judgement = _loaded(first, dictionary)
    load: Callable[[], tuple[Sequence[HostScore], Sequence[tuple[CollectorStatus, ...]]]]
    load = cache(lambda: _loaded(second, dictionary))
    count = len(dictionary.names)
    hosts, sources = LazySequence(count, lambda: load()[0]), LazySequence(count, lambda: load()[1])
    return replace(loaded, hosts=hosts, collector_statuses=sources)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: Mapping[int, str], arrays: list[Any]) -> None:
        super().__init__(file, _PROTOCOL, buffer_callback=arrays.append)
        self._names = names

    def persistent_id(self, obj: object) -> str | None:
        return self._names.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, parts: Sequence[memoryview], dictionary: NameDictionary) -> None:
        super().__init__(io.BytesIO(parts[0]), buffers=parts[1:])
        self._dictionary = dictionary

    def persistent_load(self, pid: Any) -> Any:
        return self._dictionary.names if pid == _HOSTS else self._dictionary.gpus


def _pickled(value: object, names: Mapping[int, str] | None = None) -> list[memoryview]:
    """Return the pickled *value*, then its arrays uncopied. *names*: object id -> placeholder."""
    file, arrays = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, names or {}, arrays).dump(value)
    return [file.getbuffer(), *(array.raw() for array in arrays)]


def _loaded(parts: Sequence[memoryview], dictionary: NameDictionary) -> Any:
    return _Unpickler(parts, dictionary).load()


def _file(sections: Sequence[Sequence[memoryview]]) -> int:
    """Return the descriptor of a sealed memory file with these parts. Raises OSError."""
    head = pickle.dumps([[part.nbytes for part in parts] for parts in sections])
    descriptor = os.memfd_create("gangline-scores", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(_SIZE.pack(len(head)) + head)
            for part in (part for parts in sections for part in parts):
                file.seek(_aligned(file.tell()))
                file.write(part)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sealed_file(content: bytes) -> int:
    """Return the descriptor of a sealed memory file with *content*. Raises OSError."""
    descriptor = os.memfd_create("gangline-decisions", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def mapped_file(descriptor: int, bytes_max: int) -> mmap.mmap:
    """Map a file of `sealed_file`; the descriptor stays open. Raises OSError, ValueError."""
    size = os.fstat(descriptor).st_size
    if not 0 < size <= bytes_max or fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) != _SEALS:
        raise ValueError(f"a file of {size} bytes, expected a sealed one of 1 to {bytes_max}")
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)


def _mapped(descriptor: int) -> list[list[memoryview]]:
    """Return the parts of a snapshot file, by section; they reference its memory."""
    whole = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    offset = _SIZE.size + _SIZE.unpack_from(whole)[0]
    sections = list[list[memoryview]]()
    for sizes in pickle.loads(whole[_SIZE.size : offset]):
        sections.append([])
        for size in sizes:
            offset = _aligned(offset)
            sections[-1].append(whole[offset : offset + size])
            offset += size
    return sections


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNED_BYTES) * _ALIGNED_BYTES
