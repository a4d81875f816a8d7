"""Checks of the aux hidden states: whether they are captured, from which layers, how many and how wide."""

from __future__ import annotations

from dataclasses import dataclass

from eagletrace.check.facts import Facts
from eagletrace.check.outcome import Outcome, alarm, ok, skip, unknown
from eagletrace.checkpoint.config import AuxIds
from eagletrace.checkpoint.engines.release import DEFAULT_LAYERS
from eagletrace.checkpoint.engines.rules import AUX_IDS_READ

NOT_DUE = "the draft needs no aux hidden states"
GIVE_TARGET = f"the engine's default layers {DEFAULT_LAYERS} depend on the target's depth: give --target"


def flag(f: Facts) -> Outcome:
    """Aux hidden states are switched on."""
    if not f.needs_aux:
        return skip(NOT_DUE)
    if f.draft.use_aux_hidden_state:
        return ok("the engine is told to capture aux hidden states")
    if not f.release.reads_use_aux():
        return ok(
            f"use_aux_hidden_state is false; SGLang {f.release.version} does not read it and captures all the same"
        )
    return alarm("use_aux_hidden_state is false (eagle_config), and the draft has a fusion layer that needs aux hidden "
                 "states", use_aux_hidden_state=False)  # fmt: skip


def target_class(f: Facts) -> Outcome:
    """The target's class can capture aux hidden states in this release."""
    if not f.needs_aux:
        return skip(NOT_DUE)
    if f.target is None:
        return unknown("whether the target's class can capture depends on the target: give --target")
    meaning = f.release.id_meaning(f.target.architecture)
    if meaning is None:
        return alarm(
            f"{f.target.architecture} has no set_eagle3_layers_to_capture in SGLang {f.release.version}: the server "
            "ends with an error",
            dies=True, architecture=f.target.architecture,
        )  # fmt: skip
    if meaning == "unknown":
        return unknown(f"it is not known whether SGLang {f.release.version} captures from {f.target.architecture}")
    return ok(f"{f.target.architecture} captures aux hidden states in SGLang {f.release.version}")


def states(f: Facts) -> Outcome:
    """As many aux hidden states are captured as the fusion layer takes."""
    due = f.draft.aux_count if f.needs_aux else None
    if due is None:
        return skip(NOT_DUE if f.draft.algorithm != "EAGLE3" else "the fusion layer takes no whole number of states")
    if f.captured is None:
        return unknown(GIVE_TARGET)
    depth = f.target.layers if f.target else None
    distinct = {i for i in f.captured if i >= 0 and (depth is None or i <= depth)}
    evidence = {"due": due, "captured": len(distinct), "layers": f.captured, "target_layers": depth}
    if len(distinct) < due:
        of = f" of {depth}" if depth else ""
        return alarm(
            f"the fusion layer takes {due} aux hidden states, the target gives {len(distinct)} (inputs of layers "
            f"{f.captured}{of})", [evidence])  # fmt: skip
    return ok(f"{len(distinct)} aux hidden states are captured, as the fusion layer takes", **evidence)


def width(f: Facts) -> Outcome:
    """The captured states side by side, and the engine's fusion layer, are as wide as the stored one."""
    fc, hidden, count = f.draft.fc_in, f.draft.target_hidden_size, f.engine_aux_count
    if not f.needs_aux or fc is None or hidden is None or count is None:
        return skip(NOT_DUE)
    if f.target is not None and f.target.hidden_size not in (None, hidden):
        return skip("the target's hidden states have another width: see target.hidden_size")
    states_given = len(f.captured) if f.captured is not None else None
    evidence = {"fc_in": fc, "hidden_size": hidden, "engine_takes": count * hidden, "captured": states_given}
    if count * hidden != fc:
        return alarm(
            f"the stored fusion layer takes {fc} values, the engine builds one for {count} aux states of {hidden}, "
            f"{count * hidden} values: loading ends with an error",
            [evidence], dies=True)  # fmt: skip
    if states_given is not None and states_given > count:
        return alarm(f"the target gives {states_given} states of {hidden}, the fusion layer takes {fc} values",
                     [evidence], dies=True)  # fmt: skip
    return ok(f"the fusion layer takes {fc} values: {count} states of {hidden}", **evidence)


@dataclass(frozen=True)
class _Place:
    """A place of the configuration with ids, against what is captured; as the view aux_layers says it of a trace."""

    where: AuxIds
    read: bool
    as_outputs: bool
    as_inputs: bool

    @property
    def wrong(self) -> bool:
        """Nobody reads it, and it names other layers than those captured, whatever it means."""
        return not self.read and not self.as_inputs and (self.where.means_inputs or not self.as_outputs)


def _places(f: Facts) -> list[_Place] | None:
    if f.captured is None:
        return None
    captured = sorted(f.captured)
    return [
        _Place(
            place, place.path == AUX_IDS_READ,
            sorted(i + 1 for i in place.ids) == captured, sorted(place.ids) == captured,
        )
        for place in f.draft.aux_ids
    ]  # fmt: skip


def layers(f: Facts) -> Outcome:
    """The layers captured are those that the draft was trained on, as far as its configuration tells."""
    if not f.needs_aux:
        return skip(NOT_DUE)
    places = _places(f)
    if places is None:
        return unknown(GIVE_TARGET)
    wrong = [place for place in places if place.wrong]
    if wrong:
        first = wrong[0].where
        meant = ", meaning their inputs" if first.means_inputs else ""
        but = f", but {AUX_IDS_READ} = {list(f.ids_read)}" if f.ids_read else ", and captures its default"
        return alarm(
            f"config.json names layers {list(first.ids)} ({first.path}{meant}); the target captures the inputs of "
            f"layers {f.captured}; the engine does not read this place{but}",
            path=first.path, ids=list(first.ids), captured_inputs_of_layers=f.captured,
        )  # fmt: skip
    said = "as config.json says" if places else "the engine's default, as config.json names none"
    return ok(f"the inputs of layers {f.captured} are captured: {said}")


def ids_unread(f: Facts) -> Outcome:
    """The ids stand where the engine reads them."""
    if f.draft.algorithm != "EAGLE3":
        return skip(NOT_DUE)
    places = [place for place in _places(f) or () if not place.read]
    harmless = [place.where for place in places if place.as_inputs or place.as_outputs]
    if harmless:
        return alarm(
            f"layer ids {list(harmless[0].ids)} stand at {harmless[0].path}, which the engine does not read; it "
            "captures the same layers all the same",
            path=harmless[0].path, ids=list(harmless[0].ids),
        )  # fmt: skip
    if places:
        return ok(f"the ids at {places[0].where.path} differ from what is captured: see aux.layers")
    return ok("all layer ids stand where the engine reads them" if f.draft.aux_ids else "config.json names no layers")
