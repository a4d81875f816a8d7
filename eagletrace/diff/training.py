"""Training beside serving: the same draft or not, where serving departs from training, and first drafts in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from eagletrace.checkpoint import config as configs
from eagletrace.diagnose.result import DepthRate
from eagletrace.diff import policy
from eagletrace.diff.contract import Contract
from eagletrace.diff.facts import EXPECTED, Facts
from eagletrace.diff.measures import queries
from eagletrace.diff.result import CauseDelta, FactChange, Kind, Verdict
from eagletrace.diff.trained import Departure, TrainedTensor, TrainingComparison
from eagletrace.diff.trained_weights import EMBED, compare_weights, equals_target, frozen
from eagletrace.store import Run

States = dict[tuple[str, int], float]
_SETTINGS: dict[str, tuple[str, ...]] = {
    "draft.fc": ("in_features", "out_features"),
    "draft.rope": ("theta", "scaling", "head_dim", "partial"),
    "hot_token_id": ("length", "min", "max", "monotone"),
}
"""Facts that both runs have, and the parts of them that must agree."""
_WANTED = (
    "server.speculative_algorithm", "aux.use_aux_hidden_state", "aux.count", "aux.layers_captured",
    "forward.target_hidden_width", "forward.draft_input_width", "forward.fc_applied",
    "graph.draft_extend_input_width",
)  # fmt: skip
"""Facts of the server whose expected value is what the checkpoint asks for."""


def is_training(facts: Facts) -> bool:
    """Whether the run is a recorded validation step."""
    return facts.values.get("run.kind") == "training"


def read_states(run: Run) -> States:
    """RMS of the states that the draft is given, by stage and slot."""
    rows = run.execute(queries()["state_sizes"].sql)
    return {(str(stage), int(slot)): float(rms) for stage, slot, _, rms, _ in rows if rms is not None}


def compare_training(
    a: Facts, b: Facts, first_a: DepthRate, first_b: DepthRate, states_a: States, states_b: States
) -> TrainingComparison:
    """Compare a run of training with one of a server, whichever comes first."""
    mine_first = is_training(a)
    training, served = (a, b) if mine_first else (b, a)
    first_training, first_served = (first_a, first_b) if mine_first else (first_b, first_a)
    states = (states_a, states_b) if mine_first else (states_b, states_a)
    lost = bool(first_training.reached and first_served.reached) and (
        first_served.interval[1] < policy.FIRST_DRAFTS_KEPT * first_training.interval[0]
    )
    return TrainingComparison(
        side="a" if mine_first else "b",
        tensors=compare_weights(training, served),
        departures=(*_settings(training, served), *_layers(training, served), *_norms(training, served),
                    *_replaced(training, served), *_wanted(served), *_states(*states)),
        trained=tuple(training.values.get("training.trained") or ()),
        frozen=frozen(training, served),
        training=first_training,
        served=first_served,
        first_drafts_lost=lost,
        notes=tuple(_notes(training, first_training, first_served)),
    )  # fmt: skip


def contract_of(found: TrainingComparison) -> Contract:
    """The differences as changes of facts, and how many tensors are the same."""
    changes = [
        _change(found, f"checkpoint_keys/{t.key}" if t.key else f"params/draft/{t.name}", *t.checksums, _why(t))
        for t in found.other
    ]
    changes += [_change(found, d.key, d.training, d.served, d.text) for d in found.departures]
    return Contract(tuple(changes), len(found.tensors) - len(found.other) - len(found.unknown))


def _why(tensor: TrainedTensor) -> str:
    word = {True: "trained", False: "frozen in training", None: ""}[tensor.trained]
    return ", ".join(part for part in (tensor.detail, word) if part)


def _change(found: TrainingComparison, key: str, training: Any, served: Any, why: str) -> FactChange:
    a, b = (training, served) if found.side == "a" else (served, training)
    kind: Kind = "gone" if b is None else "added" if a is None else "changed"
    return FactChange(key, a, b, kind, "decisive", why)


def judge(found: TrainingComparison, causes: CauseDelta) -> tuple[Verdict, str]:
    """The verdict and what made it: weights, settings, causes of the served run, or first drafts."""
    first = first_drafts(found)
    if found.same_draft is None:
        return "changed", "the weights of training and serving could not be compared: no tensor has both checksums"
    if not found.same_draft:
        names = [f"{t.label} ({t.detail})" for t in found.other[: policy.TENSORS_NAMED]]
        more = len(found.other) - len(names)
        return (
            "changed",
            f"another draft is served: {', '.join(names)}{f' and {more} more' if more > 0 else ''}; {first}",
        )
    same = f"same draft: {tensors_in_words(found)}"
    gained = [c for c in (causes.gained if found.side == "a" else causes.lost) if c in causes.sure]
    why = [d.text for d in found.departures[: policy.TENSORS_NAMED]]
    why += [f"cause {cause}" for cause in gained]
    if why:
        return "changed", f"{same}, served otherwise than trained: {'; '.join(why)}; {first}"
    if found.first_drafts_lost:
        return "changed", f"{same}, and much fewer first drafts are accepted than were right: {first}"
    return "same", f"{same}; {first}"


def tensors_in_words(found: TrainingComparison) -> str:
    """How many tensors are what was trained, and how."""
    counts = found.counts()
    held = counts["same"] + counts["rounded"]
    words = [f"{held} of {held + len(found.other) + len(found.unknown)} tensors of the file are training's"]
    dtypes = sorted({t.detail for t in found.tensors if t.state == "rounded"})
    if dtypes:
        words.append(f"{counts['rounded']} of them rounded to {' or '.join(dtypes)}")
    return ", ".join(words)


def first_drafts(found: TrainingComparison) -> str:
    """First drafts in training and when served, in words."""
    training, served = found.training, found.served
    if not training.reached:
        return "no first draft of training was recorded"
    said = f"{training.rate:.0%} of {training.reached:,} first drafts were right in training"
    if not served.reached:
        return f"{said}, and no served round was recorded"
    return f"{said}, {served.rate:.0%} of {served.reached:,} are accepted when served"


def _settings(training: Facts, served: Facts) -> Iterator[Departure]:
    """Facts that both have. A map that serves a whole vocabulary is none."""
    sizes = [f.values.get("draft.draft_vocab_size") for f in (training, served)]
    if None not in sizes and sizes[0] != sizes[1]:
        text = f"draft vocabulary {sizes[0]} in training, {sizes[1]} served"
        yield Departure("draft.draft_vocab_size", sizes[0], sizes[1], text)
    for key, parts in _SETTINGS.items():
        pair = [f.values.get(key) for f in (training, served)]
        if any(not isinstance(value, Mapping) for value in pair):
            continue
        one, two = (cast("Mapping[str, Any]", value) for value in pair)
        other = [p for p in parts if one.get(p) != two.get(p) and not (key == "hot_token_id" and None in (
            one.get(p), two.get(p)))]  # fmt: skip
        for part in other:
            text = f"{key} {part} {one.get(part)} in training, {two.get(part)} served"
            yield Departure(f"{key}.{part}", one.get(part), two.get(part), text)


def _layers(training: Facts, served: Facts) -> Iterator[Departure]:
    """Aux layers: against what was captured where training's library says inputs of layers, else against the ids that
    the served configuration names."""
    config: Any = training.values.get("draft.config")
    places = configs.aux_places(config) if isinstance(config, Mapping) else ()
    captured: Any = served.values.get("aux.layers_captured")
    for place in places[:1]:
        ids = list(place.ids)
        if place.means_inputs and captured and list(captured) != ids:
            yield Departure("aux.layers_captured", ids, captured, f"trained on layers {ids}, served from {captured}")
        named: Any = served.values.get("aux.config_ids") or {}
        if not place.means_inputs and named and ids not in list(named.values()):
            yield Departure(
                "aux.config_ids", ids, named, f"trained with aux layers {ids}, the served files name {named}"
            )


def _norms(training: Facts, served: Facts) -> Iterator[Departure]:
    flags: Any = training.values.get("training.norms") or {}
    config: Any = served.values.get("draft.config")
    if not isinstance(config, Mapping):
        return
    settings = configs.flat(cast("Mapping[str, Any]", config))
    for name, trained in flags.items():
        there = configs.flag(settings, name)
        nested = configs.lookup(cast("Mapping[str, Any]", config), f"eagle_config.{name}")
        there = bool(nested) if nested is not None else there
        if bool(trained) != bool(there):
            yield Departure(f"draft.config.{name}", trained, there, f"{name} {trained} in training, {there} served")


def _replaced(training: Facts, served: Facts) -> Iterator[Departure]:
    """The engine's own doing: a head or an embedding of the file that is not what serves."""
    for part in ("embed", "head"):
        found: Any = served.values.get(f"{part}.replaced")
        if not isinstance(found, Mapping) or not cast("Mapping[str, Any]", found).get("changed"):
            continue
        if part == "embed" and equals_target(training, served, EMBED):
            continue
        yield Departure(f"{part}.replaced", None, found, f"the engine replaced the file's {part}")


def _wanted(served: Facts) -> Iterator[Departure]:
    for key in _WANTED:
        expected, actual = served.values.get(f"{key}{EXPECTED}"), served.values.get(key)
        if expected is not None and key in served.values and expected != actual:
            yield Departure(key, expected, actual, f"{key}: {expected} is due, the server has {actual}")


def _states(training: States, served: States) -> Iterator[Departure]:
    """Slots whose states are much larger or smaller when served."""
    stage = next((s for s in ("target_aux", "fc_in") if (s, 0) in training and (s, 0) in served), None)
    if stage is None:
        return
    slots = [sorted(slot for s, slot in states if s == stage) for states in (training, served)]
    if len(slots[0]) != len(slots[1]):
        count, there = len(slots[0]), len(slots[1])
        yield Departure(f"hidden.{stage}", count, there, f"{count} states a position in training, {there} served")
        return
    for slot in slots[0]:
        mine, theirs = training[stage, slot], served[stage, slot]
        if theirs > mine * policy.STATE_SIZE or theirs * policy.STATE_SIZE < mine:
            text = f"states of slot {slot} have an RMS of {mine:.3g} in training, {theirs:.3g} served"
            yield Departure(f"hidden.{stage}.{slot}", mine, theirs, text)


def _notes(training: Facts, first: DepthRate, served: DepthRate) -> Iterator[str]:
    if not first.reached:
        yield "the run of training has no drafts: validate in eval mode within `eagletrace.record_training`"
        return
    outside: Any = training.values.get("training.outside_draft_vocab") or {}
    if outside.get("tokens") and outside.get("outside"):
        share = outside["outside"] / outside["tokens"]
        how = "counts them as wrong" if training.values.get("training.target_choice") == "vocabulary" else (
            "looks for the best of the draft's tokens there, serving rejects")  # fmt: skip
        yield f"{share:.1%} of the tokens of the validation texts are not in the draft's vocabulary: training {how}"
    yield "training feeds each next depth the text's own token, serving the draft's: compare deeper rates with care"
    if not served.reached:
        yield "the served run holds no rounds: send requests to the traced server"
