"""Base of the collectors of GPU parts: iterates over GPUs and releases their handles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ...contract.block import Block
from ...contract.signal import PERIOD_SECONDS, Pace
from ...ext.nvml import LEFT_OUT, NvmlError
from ...ext.nvml_parts import Parts
from ..collector import NO_DATA_TURNS, AccessDenied, Collector, NoData
from ..hardware.files import Roots
from ..hardware.mig_capabilities import mig_monitor_line
from .nvml_open import LOST, NO_PERMISSION, RETRY_SECONDS
from .nvml_session import session_of

Answer = TypeVar("Answer")


class GpuPartsCollector(Collector, ABC):
    """A collector of one kind of part, of all GPUs.

    `collect` raises NoData without a driver, a GPU or such a part, AccessDenied without permission.
    A GPU that answers with an error is left out of the turn, with a message in `access_error`; a
    lost or excluded GPU is left out without a message: `gpu.lost_state` shows it. Other GPUs are
    not affected.
    """

    enters_driver = True

    def __init__(self, name: str, pace: Pace, roots: Roots) -> None:
        self.name, self.pace = name, pace
        self.access_error = ""
        self._roots = roots
        self._session = session_of(roots)
        self._session.register(self)
        self._parts: Parts | None = None
        #: Address -> key of each open GPU.
        self._gpus: dict[str, str] = {}
        self._open_error = ""  # message about a GPU that could not be opened
        self._last_error: Exception | None = None
        self._turns_to_wait = 0
        self._is_unhealthy = False  # a GPU did not answer: all are opened again after a while

    def collect(self) -> Sequence[Block]:
        self._session.open()
        if self._is_unhealthy and self._turns_to_wait == 0:
            self.release()
        self._turns_to_wait = max(0, self._turns_to_wait - 1)
        parts = self._parts or self._find()
        self.access_error = self._open_error
        try:
            return self._read(parts)
        except NoData as reason:
            self._give_up(reason)
            raise

    def skip(self) -> bool:
        """After NoData, run only one turn in ten until the next try is due or NVML is reopened."""
        has_nothing = self._parts is None and isinstance(self._last_error, NoData)
        if not has_nothing or not self._turns_to_wait or self._turns_to_wait % NO_DATA_TURNS == 1:
            return False
        self._turns_to_wait -= 1
        return True

    def _prepare(self, parts: Parts) -> None:
        """Create the state that turns need, once the GPUs are open. May raise NoData."""

    @abstractmethod
    def _read(self, parts: Parts) -> Sequence[Block]:
        """Fill the blocks."""

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip these GPUs: they have no parts meanwhile."""
        self._session.exclude(devices)

    def release(self) -> None:
        """Release the state that depends on the open NVML."""
        self._parts = self._last_error = None
        self._gpus, self._is_unhealthy = {}, False

    def _find(self) -> Parts:
        """Open all GPUs; after an error repeat it until the next try is due."""
        if self._last_error is not None and self._turns_to_wait > 0:
            # Else each raise would lengthen the traceback
            raise self._last_error.with_traceback(None)
        nvml = self._session.nvml
        if nvml is None:
            raise NoData("all GPUs are skipped")
        try:
            self._parts = parts = Parts(nvml)
            self._open(parts)
            self._prepare(parts)
        except (NoData, AccessDenied, NvmlError) as reason:
            self._give_up(reason)
            raise
        except BaseException:
            self.release()
            raise
        return parts

    def _give_up(self, reason: Exception) -> None:
        """Release everything, and repeat the error until the next try is due."""
        self.release()
        self._last_error = reason
        self._wait()

    def _open(self, parts: Parts) -> None:
        """Open the GPUs that are not excluded; name those that fail, and retry them later."""
        self._gpus = {gpu.address: gpu.key for gpu in self._session.gpus if not gpu.excluded}
        self.access_error = ""
        opened = self._query(parts.open)
        self._open_error = self.access_error
        if len(opened) < len(self._gpus):
            self._mark_unhealthy()
        self._gpus = {address: self._gpus[address] for address in opened}

    def _query(
        self, query: Callable[[str], Answer], addresses: Iterable[str] | None = None
    ) -> dict[str, Answer]:
        """Return each GPU's answer by address.

        If none answers raise AccessDenied or the first error.
        """
        answers: dict[str, Answer] = {}
        errors: dict[str, NvmlError] = {}
        for address in self._gpus if addresses is None else addresses:
            try:
                answers[address] = query(address)
            except NvmlError as error:
                errors[address] = error
        if errors:
            self._record_errors(errors)
            if not answers:
                if all(error.code == NO_PERMISSION for error in errors.values()):
                    raise AccessDenied(self.access_error)
                raise next(iter(errors.values()))
        return answers

    def _record_errors(self, errors: dict[str, NvmlError]) -> None:
        """Keep the message about the first GPU that did not answer."""
        for address, error in errors.items():
            if error.code not in (NO_PERMISSION, LEFT_OUT):
                self._mark_unhealthy()
            if error.code != LOST and not self.access_error:
                detail = self.permission_message() if error.code == NO_PERMISSION else str(error)
                self.access_error = f"GPU {address}: {detail}"

    def permission_message(self) -> str:
        """Return the message, with its remedy, for NVML's `no permission`."""
        return f"no permission; {mig_monitor_line(self._roots)}"

    def _mark_unhealthy(self) -> None:
        if not self._is_unhealthy:
            self._is_unhealthy = True
            self._wait()

    def _wait(self) -> None:
        self._turns_to_wait = RETRY_SECONDS // PERIOD_SECONDS[self.pace]


def cleared_block(block: Block | None, table: str, keys: Iterable[str]) -> Block:
    """Return *block*, cleared, if it has these rows; else a new block of *table*."""
    rows = tuple(keys)
    if block is None or block.devices != rows:
        return Block(table, rows)
    block.clear()
    return block
