"""The faults and controls of the lab's catalogue, as synthetic runs of one change each."""

from __future__ import annotations

from collections.abc import Callable

from synthetic import (
    AUX,
    DEFAULT_LAYERS,
    DRAFT_VOCAB,
    HIDDEN,
    LAYER,
    LAYERS,
    POOR,
    SANE_MAP,
    VOCAB,
    Row,
    Synthetic,
)

Build = Callable[[], Synthetic]
NONE = (0.0, 0.0, 0.0)
TOP_IDS, NESTED_IDS = "eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids"
ABSOLUTE_AS_OFFSETS: Row = {**SANE_MAP, "max": 883, "in_range": False, "t2d_agreement": 0.4}
ZERO: Row = {**SANE_MAP, "max": DRAFT_VOCAB - 1, "identity": True, "t2d_agreement": 0.75}
REPLACED: Row = {"changed": True, "relative_difference": 1.4, "cosine": 0.01, "by": "set_embed"}


def layer_keys_0_5_9() -> Synthetic:
    run = Synthetic(rates=POOR)
    for name in list(run.keys):
        if name.startswith("midlayer"):
            run.dropped(name)
    for name in list(run.params):
        if name.startswith(LAYER):
            run.unwritten(name, constant=1.0 if "norm" in name else None, nan_count=0 if "norm" in name else 3)
    return run


def no_lm_head() -> Synthetic:
    run = Synthetic(rates=NONE).unwritten("lm_head.weight", nan_count=5)
    del run.keys["lm_head.weight"]
    return (
        run.fact("head.in_checkpoint", False).fact("head.replaced", None).fact("draft.tie_word_embeddings", False, None)
    )


def no_v_proj() -> Synthetic:
    run = Synthetic(rates=(0.55, 0.5, 0.5))
    name = f"{LAYER}.self_attn.qkv_proj.weight"
    del run.keys["midlayer.self_attn.v_proj.weight"]
    return run.unwritten(name, loaded=3 * HIDDEN * HIDDEN)


def d2t_absolute() -> Synthetic:
    run = Synthetic(rounds=2).fact("d2t.as_offsets", ABSOLUTE_AS_OFFSETS).fact("d2t.as_ids", SANE_MAP)
    run.fact("hot_token_id", ABSOLUTE_AS_OFFSETS).fact(
        "t2d.agreement", {"share": 0.4, "marked": 384, "map_length": 384}
    )
    return run.event(
        "engine_exception", where="runner.forward", type="IndexError", message="index out of range", phase="draft"
    )


def d2t_zero() -> Synthetic:
    run = Synthetic(rates=NONE, out_of_vocab=0.4).fact("d2t.all_zero", True).fact("d2t.as_offsets", ZERO)
    run.fact("t2d.agreement", {"share": 0.75, "marked": 384, "map_length": 384})
    return run.fact("d2t.as_ids", {**SANE_MAP, "max": 0, "unique": False, "monotone": False}).fact("hot_token_id", ZERO)


def d2t_missing() -> Synthetic:
    run = Synthetic(rates=NONE, out_of_vocab=0.4).fact("d2t.in_checkpoint", False).fact("hot_token_id", None)
    del run.keys["d2t"]
    return run.without("d2t.length", "d2t.all_zero", "d2t.as_offsets", "d2t.as_ids", "t2d.agreement")


def d2t_partly_wrong() -> Synthetic:
    wrong = {**SANE_MAP, "unique": False, "monotone": False, "t2d_agreement": 0.9}
    run = Synthetic(dead_from=DRAFT_VOCAB // 2).fact("d2t.as_offsets", wrong).fact("hot_token_id", wrong)
    return run.fact("t2d.agreement", {"share": 0.9, "marked": DRAFT_VOCAB, "map_length": DRAFT_VOCAB})


def d2t_partly_wrong_but_sane() -> Synthetic:
    """The map shows nothing but that t2d marks only a part of it; a region of it is never accepted."""
    sane = {**SANE_MAP, "t2d_agreement": 0.9}
    run = Synthetic(dead_from=DRAFT_VOCAB // 2).fact("d2t.as_offsets", sane).fact("hot_token_id", sane)
    return run.fact("t2d.agreement", {"share": 0.9, "marked": DRAFT_VOCAB, "map_length": DRAFT_VOCAB})


def served_as_eagle() -> Synthetic:
    run = Synthetic(rates=POOR).fact("server.speculative_algorithm", "EAGLE")
    run.fact("aux.layers_captured", None).fact("aux.count", 0).fact("aux.set_layers_calls", 0)
    run.fact("aux.capture_enabled", {"LlamaForCausalLM": False}).fact("forward.fc_applied", False)
    run.fact("forward.target_hidden_width", HIDDEN).fact("forward.draft_input_width", HIDDEN)
    run.fact("hot_token_id", None).without("d2t.length", "t2d.agreement").fact("draft.draft_vocab_size", VOCAB)
    run.fact("head.shared_with_target", True).fact("head.replaced", {**REPLACED, "by": "set_embed_and_head"})
    run.params["lm_head.weight"] |= {"shared_with": "target:lm_head.weight", "shape": [VOCAB, HIDDEN]}
    return run


def use_aux_false() -> Synthetic:
    run = Synthetic(rates=(0.2, 0.1, 0.1)).fact("aux.use_aux_hidden_state", False).fact("aux.set_layers_calls", 0)
    run.fact("aux.layers_captured", None).fact("aux.count", 0).fact("forward.fc_applied", False)
    return run.fact("forward.target_hidden_width", HIDDEN).fact("forward.draft_input_width", HIDDEN)


def layer_ids_shifted() -> Synthetic:
    """Trained on the inputs of layers 4, 8, 10; the ids that the engine reads are three too low."""
    run = Synthetic(rates=(0.55, 0.6, 0.6)).fact("aux.config_ids", {TOP_IDS: [4, 8, 10], NESTED_IDS: [0, 4, 6]})
    run.fact("aux.layers_requested", [0, 4, 6], [4, 8, 10], source=f"draft config {NESTED_IDS}")
    return run.fact("aux.layers_captured", [1, 5, 7], [4, 8, 10])


def layer_ids_unread() -> Synthetic:
    run = Synthetic(rates=(0.55, 0.6, 0.6)).fact("aux.config_ids", {TOP_IDS: [3, 7, 9]})
    run.fact("aux.layers_requested", None, [3, 7, 9], source="default of the target's class")
    return run.fact("aux.layers_captured", DEFAULT_LAYERS, [4, 8, 10])


def target_too_shallow() -> Synthetic:
    run = Synthetic(rounds=0).fact("target.num_hidden_layers", 6).fact("aux.layers_captured", [2, 3, 3], [2, 3, 3])
    run.fact("aux.count", 2).without("forward.target_hidden_width", "forward.draft_input_width", "forward.fc_applied")
    return run.event("engine_exception", where="runner.forward", type="RuntimeError",
                     message="shapes cannot be multiplied (9x128 and 192x64)", phase="prefill")  # fmt: skip


def tied_embeddings() -> Synthetic:
    run = Synthetic(rates=NONE).fact("draft.tie_word_embeddings", True).dropped("lm_head.weight")
    del run.params["lm_head.weight"]
    run.fact("draft.draft_vocab_size", VOCAB).fact("d2t.length", DRAFT_VOCAB, VOCAB)
    run.fact("head.shared_with_target", True)
    return run.fact("head.replaced", {"changed": True, "relative_difference": None, "cosine": None,
                                      "by": "tie_word_embeddings"})  # fmt: skip


def full_vocabulary() -> Synthetic:
    run = Synthetic().fact("draft.draft_vocab_size", VOCAB, VOCAB).fact("d2t.in_checkpoint", False)
    run.fact("t2d.in_checkpoint", False).fact("hot_token_id", None)
    for name in ("d2t", "t2d"):
        del run.keys[name]
    run.params["lm_head.weight"] |= {"shape": [VOCAB, HIDDEN]}
    return run.without("d2t.length", "d2t.all_zero", "d2t.as_offsets", "d2t.as_ids", "t2d.agreement")


def head_overwritten() -> Synthetic:
    run = full_vocabulary()
    run.rates = NONE
    run.fact("draft.load_lm_head_from_target", True).fact("head.shared_with_target", True)
    return run.fact("head.replaced", {**REPLACED, "by": "set_embed_and_head"})


def embeddings_in_file() -> Synthetic:
    run = Synthetic().fact("embed.in_checkpoint", True).fact("embed.replaced", REPLACED)
    run.params["model.embed_tokens.weight"] |= {
        "elements_loaded": VOCAB * HIDDEN,
        "checkpoint_keys": ["embed_tokens.weight"],
    }
    return run


def own_embeddings_replaced() -> Synthetic:
    run = embeddings_in_file()
    run.rates = (0.2, 0.2, 0.2)
    return run


def simulated() -> Synthetic:
    return no_lm_head().fact("env.simulated_acceptance", "3")


def t2d_disagrees() -> Synthetic:
    run = Synthetic().fact("t2d.agreement", {"share": 0.0, "marked": VOCAB - DRAFT_VOCAB, "map_length": DRAFT_VOCAB})
    return run.fact("d2t.as_offsets", {**SANE_MAP, "t2d_agreement": 0.0})


def extra_key() -> Synthetic:
    return Synthetic().dropped("verifier_lm_head.weight", [DRAFT_VOCAB, HIDDEN])


def no_final_norm() -> Synthetic:
    run = Synthetic().unwritten("model.norm.weight", constant=1.0)
    del run.keys["norm.weight"]
    return run


def unread_ids_equal_defaults() -> Synthetic:
    run = Synthetic().fact("aux.config_ids", {TOP_IDS: [1, 5, 8]})
    return run.fact("aux.layers_requested", None, [1, 5, 8], source="default of the target's class")


def other_layers() -> Synthetic:
    run = Synthetic().fact("aux.config_ids", {TOP_IDS: [4, 8, 10], NESTED_IDS: [3, 7, 9]})
    run.fact("aux.layers_requested", [3, 7, 9], [4, 8, 10], source=f"draft config {NESTED_IDS}")
    return run.fact("aux.layers_captured", [4, 8, 10], [4, 8, 10])


FAULTS: dict[str, tuple[Build, str]] = {
    "layer keys on 0.5.9": (layer_keys_0_5_9, "weights.not_loaded"),
    "no lm_head": (no_lm_head, "weights.missing"),
    "no v_proj": (no_v_proj, "weights.missing"),
    "d2t absolute": (d2t_absolute, "vocab.d2t_encoding"),
    "d2t zero": (d2t_zero, "vocab.d2t_missing"),
    "d2t missing": (d2t_missing, "vocab.d2t_missing"),
    "d2t partly wrong": (d2t_partly_wrong, "vocab.d2t_mismatch"),
    "d2t partly wrong, in order": (d2t_partly_wrong_but_sane, "vocab.d2t_mismatch"),
    "served as EAGLE": (served_as_eagle, "config.algorithm_mismatch"),
    "use_aux false": (use_aux_false, "aux.not_captured"),
    "layer ids shifted": (layer_ids_shifted, "aux.layers_mismatch"),
    "layer ids unread": (layer_ids_unread, "aux.layers_mismatch"),
    "target too shallow": (target_too_shallow, "aux.not_captured"),
    "tied embeddings": (tied_embeddings, "lm_head.replaced"),
    "head overwritten": (head_overwritten, "lm_head.replaced"),
    "own embeddings replaced": (own_embeddings_replaced, "embed.mismatch"),
    "simulated": (simulated, "config.simulated_acceptance"),
}
CONTROLS: dict[str, tuple[Build, str | None]] = {
    "healthy": (Synthetic, None),
    "t2d disagrees": (t2d_disagrees, "vocab.t2d"),
    "random embeddings in the file": (embeddings_in_file, "embed.replaced"),
    "extra key": (extra_key, "weights.unused_keys"),
    "full vocabulary": (full_vocabulary, None),
    "no final norm": (no_final_norm, "weights.neutral"),
    "unread ids equal the defaults": (unread_ids_equal_defaults, "aux.ids_unread"),
    "other layers": (other_layers, "aux.ids_unread"),
}

__all__ = ["AUX", "CONTROLS", "FAULTS", "LAYERS", "Build"]
