"""What few rounds may be said to show, when the best of many changes is looked at."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from eagletrace.replay.scoring import Scored, gain

CHANGES, REQUESTS, ANCHORS, TIMES = 40, 8, 40, 120


def scored(correct: np.ndarray) -> Scored:
    """A recipe whose correct drafts are given, [requests, anchors]."""
    return Scored((), (), (), tuple(() for _ in correct), tuple(correct))


def test_the_best_of_many_changes_that_do_nothing_is_not_believed() -> None:
    """At a level of 5 % for all of them together, of few requests in which whole stretches go alike."""
    random = np.random.default_rng(3)
    believed = {1: 0, CHANGES: 0}
    for _ in range(TIMES):
        start = scored(np.zeros((REQUESTS, ANCHORS), dtype=int))
        stretches = random.integers(-1, 2, (CHANGES, REQUESTS, ANCHORS // 8))
        changes = [scored(np.repeat(one, 8, axis=1)) for one in stretches]
        for of in believed:
            believed[of] += max(gain(change, start, of=of)[1] for change in changes) > 0
    assert believed[CHANGES] <= 0.08 * TIMES
    assert believed[1] > 0.5 * TIMES  # each alone at 5 %


def test_a_change_that_helps_nearly_everywhere_is_believed_from_few_requests() -> None:
    random = np.random.default_rng(4)
    start = scored(np.zeros((REQUESTS, ANCHORS), dtype=int))
    change = scored(random.choice([0, 1, 3], (REQUESTS, ANCHORS), p=[0.3, 0.3, 0.4]))
    mean, low, high = gain(change, start, of=CHANGES)
    assert 1.0 < low < mean < high < 2.0


def test_one_block_shows_nothing() -> None:
    one = scored(np.ones((1, 8), dtype=int))
    assert gain(one, scored(np.zeros((1, 8), dtype=int)), of=2)[1:] == (-np.inf, np.inf)
