"""The cache of requests with an id is bounded in size and time."""

from __future__ import annotations

import pytest

from gangline.aggregator.errors import ServiceUnavailable
from gangline.aggregator.principal import Principal, Role, set_principal
from gangline.aggregator.service import idempotency
from gangline.aggregator.service.idempotency import IdempotencyCache
from gangline.contract.wire import permit_pb2


class Counting:
    """A service that counts its effects; `full`: its disk refuses writes."""

    def __init__(self) -> None:
        self.seconds, self.count, self.full = 1000.0, 0, False
        self.answers = IdempotencyCache(lambda: self.seconds)

    def _take(self) -> permit_pb2.FleetPermit:
        self.count += 1
        return permit_pb2.FleetPermit(seconds_left=self.count)

    async def _kept(self) -> None:
        if self.full:
            raise ServiceUnavailable("the disk is full")

    async def ask(self, name: str, who: str = "a") -> int:
        set_principal(Principal(Role.OPERATOR, who, proof=(1, 1)))
        request = permit_pb2.GrantPermitRequest(seconds=1, reason="x", request_id=name)
        reply = await self.answers.once(request, None, self._take, self._kept, self._take)
        return permit_pb2.FleetPermit.FromString(reply).seconds_left


async def test_an_id_is_known_for_a_while_and_of_its_caller() -> None:
    service = Counting()
    assert [await service.ask(name) for name in ("a", "a", "b", "a", "", "")] == [
        1,
        1,
        2,
        1,
        3,
        4,
    ]
    assert await service.ask("a", who="b") == 5
    service.seconds += idempotency.ANSWERS_SECONDS_MAX
    assert await service.ask("a") == 1
    service.seconds += 1
    assert await service.ask("a") == 6


async def test_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "ANSWERS_MAX", 3)
    service = Counting()
    for number in range(100):
        await service.ask(str(number))
    assert len(service.answers._known) == 3 and await service.ask("99") == 100
    monkeypatch.setattr(idempotency, "ANSWERS_BYTES_MAX", 4)
    assert await service.ask("new") == 101 and len(service.answers._known) == 2
    assert service.answers._bytes == 4


async def test_what_the_disk_did_not_take_is_not_done_again() -> None:
    """After ServiceUnavailable the executor retried, and the first request counted as well."""
    service = Counting()
    service.full = True
    for _ in range(3):
        with pytest.raises(ServiceUnavailable):
            await service.ask("a")
    service.full = False
    assert await service.ask("a") == 1 and service.count == 1
