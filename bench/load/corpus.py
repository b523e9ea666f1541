"""Hostile operators: the hostile query corpus through the gRPC Query call, with all slots taken all the time.

    python -m bench.load.corpus 127.0.0.1:7600 SEED

Bombs in all places but one, each for BOMB_SECONDS; in that one what is refused, as fast as it goes. To be
run by `bench.load.lowest`, for these callers are not on the aggregator's machine. Ends with its standard input; prints what it was answered.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections import Counter
from typing import Any

import grpc

from gangline.contract.wire import query_pb2
from gangline.contract.wire.query_pb2_grpc import QueryServiceStub
from tests.aggregator.query.corpus import FOLDER, Statement, statements

PLACES, BOMB_SECONDS = 4, 3
#: An answer's pieces are up to 4 MiB, and a bit.
_OPTIONS = [("grpc.max_receive_message_length", -1)]


class QueryClient:
    """Asks in threads until told to stop."""

    def __init__(self, address: str, seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self.over = threading.Event()
        self._address, self._seed = address, seed

    def ask(self, kind: list[Statement], number: int) -> None:
        """Ask statements of *kind*, in an order of this thread's own."""
        order = random.Random(self._seed * PLACES + number)
        with grpc.insecure_channel(self._address, options=_OPTIONS) as channel:
            stub: Any = QueryServiceStub(channel)  # type: ignore[no-untyped-call]
            while not self.over.is_set():
                sql = order.choice(kind).sql
                self.answers[self._answer(stub, sql)] += 1

    def _answer(self, stub: Any, sql: str) -> str:
        call = stub.Query(query_pb2.QueryRequest(sql=sql, timeout={"seconds": BOMB_SECONDS}))
        try:
            for _ in call:
                if self.over.is_set():
                    call.cancel()
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def main() -> int:
    """Ask until told to stop."""
    known = [one for path in sorted(FOLDER.glob("*.sql")) for one in statements(path.name)]
    bombs = [one for one in known if one.outcome in ("cut", "cut rows")]
    refused = [one for one in known if one.outcome == "refused"]
    asker = QueryClient(sys.argv[1], int(sys.argv[2]))
    kinds = [refused, *([bombs] * (PLACES - 1))]
    for number, kind in enumerate(kinds):
        threading.Thread(target=asker.ask, args=(kind, number), daemon=True).start()
    print("begins", flush=True)
    sys.stdin.read()
    asker.over.set()
    print(json.dumps(asker.answers), flush=True)
    os._exit(0)  # calls that run are ended with their connection


if __name__ == "__main__":
    main()
