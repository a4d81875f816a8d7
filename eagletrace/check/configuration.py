"""Checks of the draft's configuration: its class, whether it can be built, norms, rotary embedding, lengths."""

from __future__ import annotations

from typing import Any

from eagletrace.check.facts import Facts, tokens_of
from eagletrace.check.outcome import Outcome, alarm, ok, several, skip, unknown
from eagletrace.checkpoint.config import NESTED, Rope, lookup
from eagletrace.checkpoint.engines.rules import OTHER_DRAFTS, RULES


def architecture(f: Facts) -> Outcome:
    """config.json names the engine's class for this draft, and the release has it."""
    named, fitting = f.draft.architecture, f.fitting_class
    if f.draft.algorithm == "NEXTN" and named not in RULES and fitting is not None:
        return ok(f"SGLang {f.release.version} serves a draft of a {named} as {fitting}")
    if named in RULES:
        first = RULES[named][0].since
        if f.rules is None:
            return alarm(
                f"SGLang {f.release.version} has no class {named}: {first} and later have it",
                dies=True, architecture=named, since=first,
            )  # fmt: skip
        return ok(f"SGLang {f.release.version} serves it as {named}")
    if f.draft.algorithm == "NEXTN" or named in OTHER_DRAFTS:
        return ok(f"{named} is a draft class of SGLang whose names are not described here")
    if fitting is None:
        return unknown(f"{named} is not a draft class that is known, and its tensors fit none")
    return alarm(
        f"config.json names {named or 'no architecture'}, which is no draft class of SGLang: its fusion layer would "
        f"not be loaded; the tensors are those of {fitting}",
        architecture=named, fitting=fitting,
    )  # fmt: skip


def settings(f: Facts) -> Outcome:
    """The engine can build the draft from what config.json says at its top."""
    config = f.draft.checkpoint.config
    if f.rules is None:
        return unknown("the draft's class is not known: see config.architecture")
    wrong: list[str] = []
    nested = [name for name in NESTED if isinstance(config.get(name), dict) and "hidden_size" in config[name]]
    if nested and "hidden_size" not in config:
        wrong.append(f"the layer's sizes stand under {nested[0]}, and SGLang reads them at the top")
    if f.unbuildable:
        wrong.append(f.unbuildable)
    if wrong:
        return alarm(several(wrong), dies=True, findings=wrong)
    return ok("the sizes that the engine needs are there")


def algorithm(f: Facts) -> Outcome:
    """Which algorithm to serve with: a setting of the server, not of the files."""
    return skip(f"the draft has the layout of {f.draft.algorithm}: serve it with --speculative-algorithm "
                f"{f.draft.algorithm}")  # fmt: skip


def fc_norm(f: Facts) -> Outcome:
    """Norms in front of the fusion layer are switched on exactly where the file has their tensors."""
    if f.draft.algorithm != "EAGLE3" or f.rules is None:
        return skip("the draft has no norm in front of its fusion layer")
    flags = {"input_norm": f.draft.norms.before_fc, "fc_norm": f.draft.norms.each_aux}
    switches = {"input_norm": "norm_before_fc", "fc_norm": "fc_norm"}
    wrong: list[dict[str, Any]] = []
    present: list[str] = []
    for norm, asked in flags.items():
        keys = [key for name, key in f.draft.names.items() if name.startswith(f"{norm}.")]
        lost = [key for key in keys if f.landing is not None and f.landing.fates.get(key) == "dropped"]
        read = switches[norm] in f.rules.switches
        row = {"norm": norm, "asked": bool(asked), "tensors": len(keys), "dropped": len(lost)}
        if asked and not read:
            wrong.append({**row, "reason": f"config.json switches {norm} on, and SGLang {f.release.version} has none"})
        elif lost:
            why = "" if asked else f": {switches[norm]} is not set"
            wrong.append({**row, "reason": f"{len(lost)} of {len(keys)} tensors of {norm} would land nowhere{why}"})
        elif asked and not keys:
            wrong.append({**row, "reason": f"config.json switches {norm} on, and the file has no tensor of it"})
        elif asked:
            present.append(norm)
    if wrong:
        return alarm(several([row["reason"] for row in wrong]), wrong)
    if not present:
        return skip("the draft has no norm in front of its fusion layer")
    return ok(f"{' and '.join(present)} is applied with the file's tensors")


def recurrence(f: Facts) -> Outcome:
    """The hidden state that is fed back, and the residual, are those that the configuration asks for."""
    norms = f.draft.norms
    if f.rules is None or f.draft.algorithm != "EAGLE3":
        return skip("the configuration says nothing of the hidden state that is fed back")
    if norms.output and "norm_output" not in f.rules.switches:
        return alarm(f"norm_output is set, and SGLang {f.release.version} feeds back the hidden state before the norm",
                     norm_output=True)  # fmt: skip
    if norms.before_residual:
        return alarm(
            "norm_before_residual is set: the draft was trained with the normed hidden state as residual, and SGLang "
            "takes the one before the norm",
            norm_before_residual=True,
        )
    fed_back = "after" if norms.output else "before"
    return ok(f"the hidden state {fed_back} the norm is fed back, as the configuration says")


def rope_settings(f: Facts) -> Outcome:
    """The rotary settings are the target's, which they need not be."""
    if f.target is None:
        return unknown("give --target to compare the rotary settings")
    mine, theirs = f.draft.rope, f.target.rope
    differ: list[str] = []
    if mine.theta != theirs.theta:
        said = "" if mine.theta_given else ", the default, as config.json names none"
        differ.append(f"the draft's rotary theta is {mine.theta:g}{said}, the target's {theirs.theta:g}")
    if _scaling(mine) != _scaling(theirs):
        differ.append(f"the draft's rotary scaling is {_scaling(mine)}, the target's {_scaling(theirs)}")
    if differ:
        return alarm(f"{several(differ)}: right only if the draft was trained so", findings=differ)
    return ok("draft and target agree on theta and scaling")


def _scaling(rope: Rope) -> str:
    factor = rope.scaling.get("factor")
    return rope.type if factor is None else f"{rope.type} x {factor:g}"


def length(f: Facts) -> Outcome:
    """The draft is configured for as many positions as the target."""
    mine = f.draft.max_positions
    theirs = f.target.max_positions if f.target else None
    if mine is None:
        return skip("config.json names no max_position_embeddings")
    if theirs is None:
        return unknown(f"the draft is configured for {mine} positions; give --target to compare")
    if mine < theirs:
        return alarm(
            f"the draft is configured for {mine} positions, the target for {theirs}: SGLang does not start unless "
            f"--context-length is {mine} or less, or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 is set",
            draft=mine, target=theirs,
        )  # fmt: skip
    return ok(f"the draft is configured for {mine} positions, the target for {theirs}")


def target_hidden_size(f: Facts) -> Outcome:
    """The draft takes hidden states as wide as the target's."""
    mine = f.draft.target_hidden_size
    theirs = f.target.hidden_size if f.target else None
    if mine is None:
        return skip("config.json names no hidden size")
    if theirs is None:
        return unknown(f"the draft takes hidden states of a target {mine} wide; give --target to compare")
    if mine != theirs:
        return alarm(
            f"the draft takes hidden states of a target {mine} wide, and this target's are {theirs} wide: they do not "
            "belong together",
            dies=True, draft=mine, target=theirs,
        )  # fmt: skip
    return ok(f"draft and target have hidden states {mine} wide")


def target_vocabulary(f: Facts) -> Outcome:
    """Draft and target have vocabularies of one size."""
    mine = f.draft.vocab_size
    theirs = f.target.vocab_size if f.target else None
    if mine is None or theirs is None:
        return unknown("give --target to compare the vocabularies") if f.target is None else skip("a size is not named")
    if mine != theirs:
        return alarm(
            f"the draft was made for a vocabulary of {mine} tokens, the target has {theirs}: another target, or one "
            "padded otherwise",
            draft=mine, target=theirs,
        )  # fmt: skip
    return ok(f"draft and target have a vocabulary of {mine} tokens")


def target_named(f: Facts) -> Outcome:
    """The target is of the kind that the draft's configuration names (speculators)."""
    named: Any = lookup(f.draft.checkpoint.config, "speculators_config.verifier.architectures")
    if not isinstance(named, list) or not named:
        return skip("the draft's configuration names no target")
    if f.target is None:
        return unknown(f"the draft was trained for a {named[0]}; give --target to compare")
    if f.target.architecture not in named:
        return alarm(f"the draft was trained for a {named[0]}, the target is a {f.target.architecture}",
                     trained_for=named, target=f.target.architecture)  # fmt: skip
    return ok(f"the target is a {named[0]}, as the draft's configuration says")


def target_tokenizer(f: Facts) -> Outcome:
    """Where both folders hold a tokenizer, they have the same tokens."""
    if f.target is None:
        return unknown("give --target to compare the tokenizers")
    mine, theirs = (tokens_of(folder) for folder in (f.draft.checkpoint.path, f.target.checkpoint.path))
    if mine is None or theirs is None:
        return skip("there are no two tokenizer.json files to compare")
    differ = sum(theirs.get(token) != number for token, number in mine.items())
    if differ or len(mine) != len(theirs):
        return alarm(
            f"the tokenizers differ: {len(mine)} and {len(theirs)} tokens, {differ} of the draft's with another id",
            draft_tokens=len(mine), target_tokens=len(theirs), differ=differ,
        )  # fmt: skip
    return ok(f"draft and target have the same {len(mine)} tokens")
