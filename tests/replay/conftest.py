"""One thread: the models are small, and threads that wait for each other cost more than they save."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
