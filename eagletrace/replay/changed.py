"""Weights that changed while serving: the rounds before and after, each judged on its own."""

from __future__ import annotations

from dataclasses import replace

from eagletrace.replay.material import Material
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording, Sequence
from eagletrace.replay.result import Hypothesis, Potential
from eagletrace.replay.scoring import score, served
from eagletrace.store import Run

CAUSE = "weights.changed"


def moment(run: Run) -> int | None:
    """When weights first changed, ns since 1970 UTC; None if no change was recorded."""
    rows = run.execute("SELECT min(time_unix_nano) FROM events WHERE kind = 'weights_changed'")
    return None if rows[0][0] is None else int(rows[0][0])


def split(recording: Recording, moment_ns: int) -> tuple[Recording, Recording] | None:
    """The recording before a moment and after it; None unless there are rounds on both sides.

    A request that ran across it is cut there; its later part is left out, because its cache is of both times.
    """
    before: list[Sequence] = []
    after: list[Sequence] = []
    for sequence in recording.sequences:
        early = [r for r in sequence.rounds if r.time_ns < moment_ns]
        if not early:
            after.append(sequence)
        elif len(early) == len(sequence.rounds):
            before.append(sequence)
        else:
            before.append(_cut(sequence, early[-1].anchor + early[-1].correct + 2))
    before = [s for s in before if s.rounds]
    if not before or not after:
        return None
    return replace(recording, sequences=before), replace(recording, sequences=after)


def _cut(sequence: Sequence, tokens: int) -> Sequence:
    """The first tokens of a sequence, and the rounds that drafted from them."""
    rows = min(tokens - 1, sequence.rows)
    return replace(
        sequence,
        tokens=sequence.tokens[:tokens],
        captured=sequence.captured[:rows],
        layers={layer: states[:rows] for layer, states in sequence.layers.items()},
        rounds=[r for r in sequence.rounds if r.anchor < rows],
        given_tokens=None if sequence.given_tokens is None else sequence.given_tokens[:rows],
        fused=None if sequence.fused is None else sequence.fused[:rows],
    )


def judged(
    material: Material, as_served: Recipe, fidelity: float, before: Recording, after: Recording
) -> Hypothesis | None:
    """Whether acceptance fell when the weights changed. `fidelity` is that of the draft as served before.

    The rounds after are replayed with the draft's values of then, where those were recorded.
    """
    earlier, later = served(before), served(after)
    if earlier.ci_low <= later.ci_high:
        return None
    now = as_served.with_tensors(material.later) if material.later else as_served
    reproduced = score(now, after, fidelity_only=True).fidelity
    share = (fidelity * before.rounds + reproduced * after.rounds) / max(before.rounds + after.rounds, 1)
    text = f"weights changed after {before.rounds} of {before.rounds + after.rounds} rounds: {_fell(earlier, later)}"
    return Hypothesis(
        CAUSE, text, share, earlier.accept_length, later.accept_length, repaired_low=earlier.ci_low,
        gain=earlier.accept_length - later.accept_length,
    )  # fmt: skip


def _fell(earlier: Potential, later: Potential) -> str:
    return f"the accept length fell from {earlier.accept_length:.2f} to {later.accept_length:.2f}"
