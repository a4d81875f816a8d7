"""Facts of the server's arguments and of the two models' configurations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagletrace.instrumentations.sglang import vocabulary
from eagletrace.instrumentations.sglang.families import FUSION_LAYERS, family_of
from eagletrace.instrumentations.sglang.session import Session

SIMULATED = "SGLANG_SIMULATE_ACC_LEN"  # spec_utils.py of 0.5.9 and 0.5.23
_ARGUMENTS = {
    "server.model_path": "model_path",
    "server.speculative_draft_model_path": "speculative_draft_model_path",
    "server.speculative_num_steps": "speculative_num_steps",
    "server.speculative_eagle_topk": "speculative_eagle_topk",
    "server.speculative_num_draft_tokens": "speculative_num_draft_tokens",
    "server.speculative_token_map": "speculative_token_map",
    "server.dtype": "dtype",
    "server.chunked_prefill_size": "chunked_prefill_size",
}


def server(session: Session) -> None:
    """Facts of the server's arguments, known before anything is loaded."""
    args, recorder = session.server_args, session.recorder
    recorder.fact("trace.redacted", recorder.settings.redact, source="EAGLETRACE_REDACT")
    recorder.fact("engine.name", "sglang")
    recorder.fact("engine.version", session.engine_version)
    for key, name in _ARGUMENTS.items():
        recorder.fact(key, getattr(args, name, None), source=f"server_args.{name}")
    recorder.fact("server.speculative_algorithm", getattr(args, "speculative_algorithm", None))
    recorder.fact("server.cuda_graph", not getattr(args, "disable_cuda_graph", False))
    recorder.fact(
        "server.attention_backend",
        {
            "prefill": getattr(args, "prefill_attention_backend", None) or getattr(args, "attention_backend", None),
            "decode": getattr(args, "decode_attention_backend", None) or getattr(args, "attention_backend", None),
        },
    )
    recorder.fact("env.simulated_acceptance", simulated(), source=SIMULATED)


def simulated(environ: Mapping[str, str] = os.environ) -> str | None:
    """The value that fakes acceptance; None when it is off (unset, or not above 0)."""
    text = environ.get(SIMULATED, "")
    try:
        return text if float(text) > 0 else None
    except ValueError:
        return None


def draft(session: Session, runner: Any) -> None:
    """Facts of the draft, once it is loaded."""
    recorder, model = session.recorder, runner.model
    config = config_of(runner, getattr(session.server_args, "speculative_draft_model_path", None))
    fusion = fusion_layer(model)
    inputs = getattr(fusion[1], "in_features", None) or getattr(fusion[1], "input_size", None) if fusion else None
    outputs = getattr(fusion[1], "out_features", None) or getattr(fusion[1], "output_size", None) if fusion else None
    hidden = getattr(runner.model_config.hf_config, "target_hidden_size", None) or _hidden(session.target_runner)
    architecture = type(model).__name__
    family = family_of(architecture, fuses=fusion is not None, maps=any("d2t" in k.key for k in session.keys))
    eagle3 = family is not None and family.aux_states
    session.draft_facts = {"config": config, "fc_in": inputs, "target_hidden_size": hidden, "eagle3": eagle3}
    algorithm = getattr(session.server_args, "speculative_algorithm", None)
    fitting = family.fitting(algorithm) if family is not None else None
    recorder.fact("server.speculative_algorithm", algorithm, fitting, f"class {architecture}")
    recorder.fact("draft.architecture", architecture)
    recorder.fact("draft.family", family.name if family is not None else None, source=f"class {architecture}")
    recorder.fact("draft.config", config)
    recorder.fact("draft.rope", rope(runner))
    recorder.fact("draft.hidden_size", _hidden(runner))
    recorder.fact("draft.target_hidden_size", hidden)
    recorder.fact("draft.vocab_size", config.get("vocab_size"), _vocab(session.target_runner))
    file_head = next((k for k in session.keys if k.key.endswith("lm_head.weight") and not k.passed_over), None)
    recorder.fact("draft.draft_vocab_size", vocabulary.head_rows(model), file_head.shape[0] if file_head else None)
    tied = bool(getattr(runner.model_config.hf_config, "tie_word_embeddings", False))
    recorder.fact("draft.tie_word_embeddings", tied, False if file_head else None)
    recorder.fact("draft.load_lm_head_from_target", getattr(model, "load_lm_head_from_target", None))
    recorder.fact("draft.fc", {"in_features": inputs, "out_features": outputs, "name": fusion[0]} if fusion else None)
    use_aux = aux_flag(config)
    recorder.fact("aux.use_aux_hidden_state", use_aux, True if eagle3 else None, "draft config eagle_config")


def aux_flag(config: Mapping[str, Any]) -> bool:
    """`use_aux_hidden_state` as SGLang reads it: from `eagle_config`, true when absent."""
    nested: Any = config.get("eagle_config")
    return bool(nested.get("use_aux_hidden_state", True)) if isinstance(nested, Mapping) else True


def target(session: Session, runner: Any) -> None:
    """Facts of the target, once it is loaded."""
    recorder = session.recorder
    recorder.fact("target.architecture", type(runner.model).__name__)
    recorder.fact("target.num_hidden_layers", layers(runner))
    recorder.fact("target.hidden_size", _hidden(runner))
    recorder.fact("target.vocab_size", _vocab(runner))
    recorder.fact("target.rope", rope(runner))


def rope(runner: Any) -> dict[str, Any]:
    """Rotary settings of a model's configuration as the engine parsed it; `rope_parameters` since transformers 5."""
    config = _text(runner)
    given: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    scaling = {k: v for k, v in sorted(dict(given).items()) if k not in ("rope_theta", "partial_rotary_factor")}
    heads = getattr(config, "num_attention_heads", None)
    head_dim = getattr(config, "head_dim", None) or (_hidden(runner) // heads if heads and _hidden(runner) else None)
    plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    return {
        "theta": given.get("rope_theta", getattr(config, "rope_theta", None)),
        "scaling": "none" if plain else json.loads(json.dumps(scaling, default=str)),
        "head_dim": head_dim,
        "partial": given.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None)),
        "max_position": getattr(config, "max_position_embeddings", None),
    }


def fusion_layer(model: Any) -> tuple[str, Any] | None:
    """The module that plays the part of `fc` in the draft, and its name; None if it has none."""
    return next(((name, m) for name, m in model.named_modules() if name.rpartition(".")[2] in FUSION_LAYERS), None)


def config_of(runner: Any, path: str | None) -> dict[str, Any]:
    """The draft's configuration as its file says it, else as the engine parsed it (empty without a runner)."""
    try:
        return json.loads((Path(path or "") / "config.json").read_text())
    except (OSError, ValueError):
        if runner is None:
            return {}
        return json.loads(json.dumps(runner.model_config.hf_config.to_dict(), default=str))


def _text(runner: Any) -> Any:
    config = getattr(runner, "model_config", None)
    return getattr(config, "hf_text_config", None) or getattr(config, "hf_config", None)


def layers(runner: Any) -> int | None:
    """Layers of a model's language model."""
    return getattr(_text(runner), "num_hidden_layers", None)


def prediction_layers(runner: Any) -> int | None:
    """Layers of multi-token prediction in a model's checkpoint, as its configuration says."""
    return getattr(_text(runner), "num_nextn_predict_layers", None)


def _hidden(runner: Any) -> int | None:
    return getattr(_text(runner), "hidden_size", None)


def _vocab(runner: Any) -> int | None:
    return getattr(getattr(runner, "model_config", None), "vocab_size", None)
