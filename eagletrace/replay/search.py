"""Which changes explain what was served, and which of them cost acceptance.

The draft as its files say is compared with the draft as it was served. What the trace shows to be different is tried
first; then, if the reference still does not draft what was served, what an engine may do without leaving a fact; last,
if acceptance is lost all the same, what the training may have meant otherwise. Single changes come before pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from eagletrace.replay.architecture import needed_tensors
from eagletrace.replay.changes.departures import departures
from eagletrace.replay.changes.edits import Scrambled
from eagletrace.replay.changes.hidden import hidden
from eagletrace.replay.changes.intended import intended
from eagletrace.replay.changes.model import Change, applied
from eagletrace.replay.changes.repairs import repairs
from eagletrace.replay.material import Material
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording
from eagletrace.replay.result import REPRODUCES, ReplayError
from eagletrace.replay.scoring import Scored, gain, score

COSTS = 0.05
"""Share of the accept length that a change must cost to be a cause; less is harmless, or too little to matter."""
REGAINS = 0.05
"""Share of the accept length that a change of the intended draft must add to be a cause; of about forty that are tried
one may fit few rounds by chance, so that it must be shown beside all of them."""
HINTS = 0.02
"""Share of the accept length that a change of the files seems to add, where its interval reaches beyond what matters:
too much to call it nothing. What was served otherwise has been seen, and its cost has to seem to matter."""
PARTLY = 0.5
"""A change that explains at least so much of the tokens that nothing else explains is named, with its share."""
WHOLE = ("map", "head")
"""Repairs that are tried where the file lacks a tensor: others would be judged with noise in its place."""
PAIRS = 3
"""Changes that come nearest, from which pairs are made."""
HEARD = 0.1
"""Share of first drafts that must be right for what the draft listens to to be seen."""
REPAIRS = 2
"""How many things the files may have wrong at once."""

Progress = Callable[[str], None]


@dataclass
class Tried:
    """A change with what it gave: as the fidelity of the served draft with it, or as accepted drafts gained."""

    change: Change
    scored: Scored
    gain: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass
class Found:
    """What the search found.

    `should` is the draft as its files say, `best` that with all repairs, `served` that with all departures (`None`
    where it cannot be run on what was recorded). `harmful` and `harmless` are departures, `repaired` changes of the
    files; `undecided` either, where it seems to matter and these rounds are too few to show it; `tried` what came near
    and was not needed. `deaf` tells whether the best draft uses nothing of the target's
    hidden states (None: it drafts too little to tell).
    """

    should: Scored | None
    best: Scored | None
    served: Scored
    harmful: list[Tried] = field(default_factory=list[Tried])
    harmless: list[Tried] = field(default_factory=list[Tried])
    repaired: list[Tried] = field(default_factory=list[Tried])
    undecided: list[Tried] = field(default_factory=list[Tried])
    tried: list[Tried] = field(default_factory=list[Tried])
    unrunnable: str = ""
    deaf: bool | None = None
    recipe: Recipe | None = None
    as_served: Recipe | None = None


def search(material: Material, recording: Recording, progress: Progress) -> Found:
    """Search on one recording; `progress` is told what is being tried."""
    recipe = intended(material, recording)
    seen = departures(material, recording, recipe)
    progress(f"the draft as served ({len(seen)} departures seen in the trace)")
    served = score(applied(recipe, seen), recording)
    near: list[Tried] = []
    if served.fidelity < REPRODUCES:
        unseen, near = _explain(material, recording, applied(recipe, seen), served, progress)
        seen = [*seen, *unseen]
        if unseen:
            served = score(applied(recipe, seen), recording)
    progress("the draft as its files say")
    should, why = _runnable(recipe, recording)
    found = Found(should, should, served, tried=near, unrunnable=why, recipe=recipe, as_served=applied(recipe, seen))
    base, start = (recipe, should) if should is not None else (applied(recipe, seen), served)
    best = _repair(found, material, recording, base, start, progress)
    _weigh(found, best if should is not None else recipe, seen, recording, progress)
    progress("whether hidden states mean anything to the draft")
    found.deaf = _deaf(best, found.best or served, recording)
    return found


def _deaf(recipe: Recipe, scored: Scored, recording: Recording) -> bool | None:
    """Whether a draft drafts as well when its hidden states are those of other positions."""
    correct = [float(c > 0) for part in scored.correct for c in part.tolist()]
    if sum(correct) < HEARD * len(correct) or not correct:
        return None
    scrambled, _ = _runnable(recipe.edited(Scrambled()), recording)
    return None if scrambled is None else not _matters(gain(scored, scrambled), scored, COSTS)


def _runnable(recipe: Recipe, recording: Recording) -> tuple[Scored | None, str]:
    try:
        return score(recipe, recording), ""
    except ReplayError as error:
        return None, str(error)


def _explain(
    material: Material, recording: Recording, recipe: Recipe, served: Scored, progress: Progress
) -> tuple[list[Change], list[Tried]]:
    """The change, or pair, with which the reference drafts what was served; and all that were tried, best first."""
    candidates = hidden(material, recording, recipe)
    tried = _try_all(candidates, recipe, recording, progress)
    if not tried or tried[0].scored.fidelity <= served.fidelity:
        return [], tried
    if tried[0].scored.fidelity >= REPRODUCES:
        return [tried[0].change], tried[1:]
    best: tuple[float, list[Change]] = (0.0, [])
    for first in tried[:PAIRS]:
        others = [c for c in candidates if c.family != first.change.family]
        for second in _try_all(others, first.change(recipe), recording, progress)[:1]:
            if second.scored.fidelity > best[0]:
                best = (second.scored.fidelity, [first.change, second.change])
    if best[0] >= REPRODUCES:
        return best[1], tried
    partly = 1 - tried[0].scored.fidelity <= (1 - served.fidelity) * PARTLY
    return ([tried[0].change] if partly else []), tried[partly:]


def _try_all(changes: Sequence[Change], recipe: Recipe, recording: Recording, progress: Progress) -> list[Tried]:
    """Each change on top of a recipe, by fidelity; those that do not fit the recorded states are left out."""
    tried: list[Tried] = []
    for change in changes:
        progress(change.text)
        try:
            tried.append(Tried(change, score(change(recipe), recording, fidelity_only=True)))
        except ReplayError:
            continue
    return sorted(tried, key=lambda t: -t.scored.fidelity)


def _weigh(found: Found, recipe: Recipe, seen: list[Change], recording: Recording, progress: Progress) -> None:
    """Which departures cost acceptance: alone against the draft with all repairs, or as the last of all.

    `recipe` is the draft with all repairs, so that what they hide is seen.
    """
    everything = _runnable(applied(recipe, seen), recording)[0] if seen and found.repaired else found.served
    for change in seen:
        progress(f"what it costs: {change.text}")
        alone, _ = _runnable(change(recipe), recording)
        rest, _ = _runnable(applied(recipe, [c for c in seen if c is not change]), recording)
        losses: list[tuple[float, float, float]] = []
        for better, worse in ((found.best, alone), (rest, everything)):
            if better is not None and worse is not None:
                losses += [gain(better, worse), gain(better, worse, walked=True)]
        shown = rest if rest is not None and len(seen) == 1 else found.best or rest
        tried = Tried(change, shown or found.served, max(losses, default=(0.0, 0.0, 0.0)))
        harmful = not losses or any(_matters(loss, found.served, COSTS) for loss in losses)
        undecided = not harmful and any(_may_matter(loss, found.served, COSTS, COSTS) for loss in losses)
        (found.harmful if harmful else found.undecided if undecided else found.harmless).append(tried)
    found.harmful.sort(key=lambda t: -t.gain[0])


def _matters(change: tuple[float, float, float], base: Scored, share: float) -> bool:
    """Whether a difference is large enough, and shown."""
    mean, low, _ = change
    return low > 0 and mean >= share * _length(base)


def _may_matter(change: tuple[float, float, float], base: Scored, share: float, hints: float) -> bool:
    """Whether a difference may be large enough for all that these rounds show, and seems to be `hints` or more."""
    mean, _, high = change
    return mean >= hints * _length(base) and high >= share * _length(base)


def _length(scored: Scored) -> float:
    correct = [c for part in scored.correct for c in part.tolist()]
    return 1 + sum(correct) / max(len(correct), 1)


def _repair(
    found: Found, material: Material, recording: Recording, recipe: Recipe, start: Scored, progress: Progress
) -> Recipe:
    """Changes of the intended draft that regain acceptance, the best first, each on top of those before; with all of
    them, the best recipe."""
    for _ in range(REPAIRS):
        used = {t.change.family for t in found.repaired}
        candidates = [c for c in repairs(material, recording, recipe) if c.family not in used]
        if any(name not in material.filed for name in needed_tensors(recipe.architecture)):
            candidates = [c for c in candidates if c.family in WHOLE]
        tried: list[Tried] = []
        for change in candidates:
            progress(f"what it regains: {change.text}")
            scored, _ = _runnable(change(recipe), recording)
            if scored is not None:
                tried.append(Tried(change, scored, gain(scored, start, of=len(candidates))))
        tried.sort(key=lambda t: -t.gain[0])
        if not tried or not _matters(tried[0].gain, start, REGAINS):
            found.undecided += [t for t in tried[:1] if _may_matter(t.gain, start, REGAINS, HINTS)]
            found.tried += tried[:PAIRS]
            return recipe
        best = tried[0]
        found.repaired.append(best)
        found.tried += tried[1 : 1 + PAIRS]
        found.best, start, recipe = best.scored, best.scored, best.change(recipe)
    return recipe
