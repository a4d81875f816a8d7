"""The checks on files: those that a trace has too, under the same ids, and those that only files allow."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import cast

from eagletrace.check import aux_states, configuration, sharing, values, vocabulary, weights
from eagletrace.check.facts import Facts
from eagletrace.check.outcome import Outcome
from eagletrace.diagnose.checks import Certainty, CheckFile, load_checks
from eagletrace.diagnose.result import Severity
from eagletrace.store.sqlfile import SqlFile

CheckFunction = Callable[[Facts], Outcome]


def _own(
    id: str, title: str, cause: str, fix: str = "", *, severity: Severity = "critical", certainty: str = "sure",
    rank: int = 5,
) -> CheckFile:  # fmt: skip
    """A check that only files allow."""
    meta = {"id": id, "title": title, "severity": severity, "certainty": certainty, "causes": cause}
    file = SqlFile(id.replace(".", "_"), meta, {}, {}, "")
    return CheckFile(id, file, severity, cast("Certainty", certainty), (), (cause,), fix, rank)


OWN: dict[str, CheckFile] = {
    check.id: check
    for check in (
        _own("config.architecture", "config.json names the engine's class for this draft",
             "config.algorithm_mismatch",
             'Set "architectures" in {draft}/config.json to the draft class that fits the tensors '
             "(LlamaForCausalLMEagle3, Eagle3DeepseekV2ForCausalLM, LlamaForCausalLMEagle), with a release that has "
             "it; --fix does so.", rank=1),
        _own("config.settings", "The engine can build the draft from its configuration",
             "config.algorithm_mismatch",
             "Mend {draft}/config.json: all sizes at its top, as SpecForge writes them; --fix does so where it is "
             "certain.", rank=2),
        _own("aux.target_class", "The target's class can capture aux hidden states", "aux.not_captured",
             "Use an engine release whose class for this target has set_eagle3_layers_to_capture.", rank=2),
        _own("recurrence.settings", "The hidden state that is fed back is the configured one", "recurrence.hidden",
             "Use an engine (release) that reads the setting, or train the draft without it."),
        _own("weights.shapes", "Every tensor has the shape of its parameter", "weights.not_loaded",
             "Make the sizes in {draft}/config.json those of its tensors, or take both from the same training run.",
             rank=1),
        _own("weights.constant", "No matrix holds one value everywhere", "weights.missing",
             "Export the tensor again from the trainer's checkpoint: this one was never filled."),
        _own("vocab.head_rows", "The stored head has as many rows as the engine makes room for",
             "vocab.d2t_mismatch",
             'Set "draft_vocab_size" in {draft}/config.json to the rows of lm_head, and take d2t from the same run.',
             rank=1),
        _own("lm_head.origin", "The head was trained", "lm_head.replaced", severity="warning", certainty="possible"),
        _own("target.hidden_size", "Draft and target have hidden states of one width", "target.mismatch",
             "Serve the draft with the target that it was trained for.", rank=1),
        _own("target.embeddings", "The embeddings in the file are not those of another model", "target.mismatch",
             "Serve the draft with the target that it was trained for; if it has embeddings of its own, train it again "
             "with the target's, as SGLang serves those.", rank=2),
        _own("basis.embeddings", "The target lies in the basis of the draft's training", "basis.rotated",
             "Serve the target's weights as they were when the draft was trained, or train the draft on the rotated "
             "ones."),
        _own("vocab.bytes", "The draft vocabulary has the single characters", "vocab.coverage",
             "Choose the draft vocabulary by counts of served text, the single characters among them.",
             severity="warning"),
        _own("target.vocab_size", "Draft and target have one vocabulary", "target.mismatch", severity="warning",
             certainty="possible"),
        _own("target.tokenizer", "Draft and target have one tokenizer", "target.mismatch", severity="warning",
             certainty="possible"),
        _own("target.named", "The target is the one that the draft names", "target.mismatch", severity="warning",
             certainty="possible"),
    )
}  # fmt: skip

FUNCTIONS: dict[str, CheckFunction] = {
    "config.architecture": configuration.architecture,
    "config.settings": configuration.settings,
    "config.algorithm": configuration.algorithm,
    "target.hidden_size": configuration.target_hidden_size,
    "target.vocab_size": configuration.target_vocabulary,
    "target.tokenizer": configuration.target_tokenizer,
    "target.named": configuration.target_named,
    "target.sibling": sharing.sibling,
    "rope.settings": configuration.rope_settings,
    "length.config": configuration.length,
    "aux.flag": aux_states.flag,
    "aux.target_class": aux_states.target_class,
    "aux.states": aux_states.states,
    "aux.layers": aux_states.layers,
    "aux.ids_unread": aux_states.ids_unread,
    "aux.width": aux_states.width,
    "fc.norm": configuration.fc_norm,
    "recurrence.settings": configuration.recurrence,
    "weights.not_loaded": weights.not_loaded,
    "weights.layers": weights.layers,
    "weights.missing": weights.missing,
    "weights.shapes": weights.shapes,
    "weights.neutral": weights.neutral,
    "weights.unused_keys": weights.unused_keys,
    "weights.decoded": weights.decoded,
    "weights.scales": weights.scales,
    "weights.constant": values.constant,
    "numerics.nan_weights": values.not_finite,
    "target.embeddings": sharing.foreign,
    "basis.embeddings": sharing.rotation,
    "embed.replaced": sharing.embedding,
    "lm_head.tied": sharing.tied,
    "lm_head.replaced": sharing.head,
    "lm_head.origin": sharing.head_origin,
    "vocab.d2t_encoding": vocabulary.encoding,
    "vocab.d2t_missing": vocabulary.missing,
    "vocab.head_rows": vocabulary.head_rows,
    "vocab.d2t_length": vocabulary.length,
    "vocab.d2t_mismatch": vocabulary.mismatch,
    "vocab.d2t_order": vocabulary.order,
    "vocab.t2d": vocabulary.t2d,
    "vocab.bytes": vocabulary.single_bytes,
}
"""What each check does, in the order in which they are shown."""


@cache
def declared() -> dict[str, CheckFile]:
    """All checks on files by id: title, certainty, cause and fix, for shared ones those of the trace's check."""
    shared = load_checks()
    return {id: OWN[id] if id in OWN else shared[id] for id in FUNCTIONS}
