"""What is remembered of requests that have an id is so much, and for so long."""

from __future__ import annotations

import asyncio

import pytest

from gangline.aggregator.errors import ServiceUnavailable
from gangline.aggregator.principal import Principal, Role, set_principal
from gangline.aggregator.service import idempotency
from gangline.aggregator.service.idempotency import IdempotencyCache
from gangline.contract.wire import permit_pb2


class Counting:
    """A service whose effect is to count; `full`: its disk takes nothing."""

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


def test_an_id_is_known_for_a_while_and_of_its_caller() -> None:
    async def run() -> None:
        one = Counting()
        assert [await one.ask(name) for name in ("a", "a", "b", "a", "", "")] == [1, 1, 2, 1, 3, 4]
        assert await one.ask("a", who="b") == 5
        one.seconds += idempotency.ANSWERS_SECONDS_MAX
        assert await one.ask("a") == 1
        one.seconds += 1
        assert await one.ask("a") == 6

    asyncio.run(run())


def test_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(idempotency, "ANSWERS_MAX", 3)
        one = Counting()
        for number in range(100):
            await one.ask(str(number))
        assert len(one.answers._known) == 3 and await one.ask("99") == 100
        monkeypatch.setattr(idempotency, "ANSWERS_BYTES_MAX", 4)
        assert await one.ask("new") == 101 and len(one.answers._known) == 2
        assert one.answers._bytes == 4

    asyncio.run(run())


def test_what_the_disk_did_not_take_is_not_done_again() -> None:
    """Told ServiceUnavailable, the executor asked again: the first was counted all the same, once the disk took it."""

    async def run() -> None:
        one = Counting()
        one.full = True
        for _ in range(3):
            with pytest.raises(ServiceUnavailable):
                await one.ask("a")
        one.full = False
        assert await one.ask("a") == 1 and one.count == 1

    asyncio.run(run())
