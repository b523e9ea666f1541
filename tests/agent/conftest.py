"""What holds for the agent's tests."""

from collections.abc import Iterator

import pytest

from gangline.ext import nvml


@pytest.fixture(autouse=True)
def accounts() -> Iterator[None]:
    """No GPU is known from the test before; a clock that is handed in calls more often than a cap by the true one allows."""
    nvml.forget_accounts()
    nvml.cap(0)
    yield
    nvml.forget_accounts()
