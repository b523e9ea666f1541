"""Hostile operators: the hostile query corpus through the gRPC Query call, with all slots always in
use.

python -m bench.load.corpus 127.0.0.1:7600 SEED

All slots except one run bombs, each for BOMB_SECONDS; the last one sends refused queries at full
speed. Start it by `bench.load.lowest`, because real callers are not on the aggregator's machine.
Ends with its standard input; prints the answers.
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
#: A piece of an answer may exceed 4 MiB slightly.
_OPTIONS = [("grpc.max_receive_message_length", -1)]


class QueryClient:
    """Sends queries in threads until it is stopped."""

    def __init__(self, address: str, seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self.over = threading.Event()
        self._address, self._seed = address, seed

    def ask(self, kind: list[Statement], number: int) -> None:
        """Send statements of *kind*, in an order of this thread's own."""
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
    known = [
        statement for path in sorted(FOLDER.glob("*.sql")) for statement in statements(path.name)
    ]
    bombs = [statement for statement in known if statement.outcome in ("cut", "cut rows")]
    refused = [statement for statement in known if statement.outcome == "refused"]
    asker = QueryClient(sys.argv[1], int(sys.argv[2]))
    kinds = [refused, *([bombs] * (PLACES - 1))]
    for number, kind in enumerate(kinds):
        threading.Thread(target=asker.ask, args=(kind, number), daemon=True).start()
    print("begins", flush=True)
    sys.stdin.read()
    asker.over.set()
    print(json.dumps(asker.answers), flush=True)
    os._exit(0)  # ends running calls with their connection


if __name__ == "__main__":
    main()
