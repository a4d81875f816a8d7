"""Which load-time facts bear on which cause: what the checks that name it require, and a table for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache

from eagletrace.diagnose.checks import FACT_PREFIX, load_checks
from eagletrace.diagnose.result import Diagnosis
from eagletrace.diff.result import CauseDelta, Explanation, FactChange

_TABLES = {"params": "params/*", "checkpoint_keys": "checkpoint_keys/*", "hooks": "hooks/*"}

_RUNTIME = (
    "engine.version",
    "server.worker",
    "server.attention_backend*",
    "server.cuda_graph",
    "server.overlap_schedule",
)
_WEIGHTS = ("checkpoint_keys/*", "params/draft/*")
_TARGET = ("server.model_path", "target.*", "params/target/*", "events/weights_changed/target", "run/target")

BEARING: dict[str, tuple[str, ...]] = {
    "aux.layers_mismatch": ("aux.*", "draft.config.*layer*", "draft.config.eagle_config*"),
    "batch.row": _RUNTIME,
    "basis.rotated": _TARGET,
    "draft.misaligned": _WEIGHTS,
    "draft.undertrained": _WEIGHTS,
    "embed.mismatch": ("embed.*", "params/draft/*embed*", "sharing.*"),
    "fc.bypassed": ("forward.*", "draft.fc*", "server.speculative_algorithm"),
    "fc.norm_mismatch": (
        "draft.config.*norm*",
        "draft.config.eagle_config*",
        "checkpoint_keys/*norm*",
        "params/draft/*norm*",
    ),
    "grammar.masked": ("server_args/grammar_backend",),
    "graph.stale": ("server.cuda_graph", "graph.*", "engine.version", "server_args/*cuda_graph*"),
    "kv.prefix": ("server.page_size", "server.chunked_prefill_size", "server_args/disable_radix_cache", *_RUNTIME),
    "length.limit": ("draft.rope*", "target.rope*", "server_args/context_length", "draft.config.max_position*"),
    "lm_head.replaced": ("head.*", "draft.load_lm_head_from_target", "draft.tie_word_embeddings", "sharing.*"),
    "multimodal.embeds": _RUNTIME,
    "numerics.nan": (*_WEIGHTS, "server.dtype"),
    "position.offset": ("positions/*", "engine.version", "server.worker", "server.overlap_schedule"),
    "recurrence.hidden": ("draft.config.norm_output", "engine.version", "server.worker", *_WEIGHTS),
    "rope.mismatch": ("draft.rope*", "target.rope*", "draft.config.rope*"),
    "round.first": _RUNTIME,
    "sampling.rule": ("server_args/speculative_accept*", "server_args/speculative_use*", "engine.version"),
    "target.mismatch": (*_TARGET, *_WEIGHTS),
    "vocab.coverage": ("d2t.*", "hot_token_id*", "draft.draft_vocab_size", "server.speculative_token_map"),
    "vocab.d2t_encoding": ("d2t.*", "t2d.*", "hot_token_id*", "checkpoint_keys/d2t*"),
    "vocab.d2t_mismatch": ("d2t.*", "t2d.*", "hot_token_id*", "checkpoint_keys/d2t*"),
    "vocab.d2t_missing": ("d2t.*", "t2d.*", "hot_token_id*", "checkpoint_keys/d2t*"),
    "weights.changed": ("events/weights_changed*", "params/*/epoch"),
    "weights.missing": _WEIGHTS,
    "weights.not_loaded": _WEIGHTS,
    "weights.quantization": (*_WEIGHTS, "server_args/*quantization*", "draft.config.quantization*"),
}
"""Patterns of facts beyond those that the checks require; the sorts of faults that nothing of the start shows have what
commonly brings them: another release, worker, backend, or other weights."""


@cache
def patterns(cause: str) -> tuple[str, ...]:
    """Patterns of the facts that bear on a cause, those that its checks look at first."""
    found: dict[str, None] = {}
    for check in load_checks().values():
        if check.causes[:1] == (cause,):
            for need in check.requires:
                if need.startswith(FACT_PREFIX):
                    found |= {f"{need.removeprefix(FACT_PREFIX)}*": None}
                elif need in _TABLES and cause not in BEARING:
                    found |= {_TABLES[need]: None}
    return tuple(found | dict.fromkeys(BEARING.get(cause, ())))


def explain(
    delta: CauseDelta, changes: Sequence[FactChange], a: Diagnosis, b: Diagnosis, *, changed: bool
) -> tuple[Explanation, ...]:
    """For each cause gained or lost the changes of facts that bear on it, and its proof in the run that has it; for a
    verdict `changed` without a cause all of them."""
    told = [c for c in changes if c.importance in ("decisive", "relevant")]
    of_a, of_b = ({cause.id: cause for cause in of.causes} for of in (a, b))
    found = [
        Explanation(id_, "gained", tuple(_bearing(id_, told)), of_b[id_].proof, of_b[id_].fix) for id_ in delta.gained
    ]
    found += [Explanation(id_, "lost", tuple(_bearing(id_, told)), of_a[id_].proof) for id_ in delta.lost]
    if not found and changed and told:
        found = [Explanation(None, "behaviour", tuple(told))]
    return tuple(found)


def _bearing(cause: str, changes: Sequence[FactChange]) -> list[FactChange]:
    """The changes that bear on a cause, decisive ones first, then in the order of its patterns."""
    known = patterns(cause)
    ranked = [
        (rank, change)
        for change in changes
        if (rank := next((n for n, p in enumerate(known) if fnmatchcase(change.key, p)), None)) is not None
    ]
    return [change for _, change in sorted(ranked, key=lambda item: (item[1].importance != "decisive", item[0]))]
