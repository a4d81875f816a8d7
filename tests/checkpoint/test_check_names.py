"""The naming rules against the real `load_weights` of the engines that are installed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from check_drafts import (
    DRAFT_VOCAB,
    EAGLE,
    HIDDEN,
    INNER,
    LLAMA,
    MLA,
    QWEN_EAGLE,
    TARGET,
    VOCAB,
    Config,
    Shapes,
    target_tensors,
    write,
)
from check_drafts import shapes as shapes_of
from mtp_cases import MTP_CASES

from eagletrace.checkpoint import TensorInfo
from eagletrace.checkpoint.engines import Landing, predict, release
from eagletrace.checkpoint.engines.sizes import Unbuildable
from eagletrace.lab.engines import EngineMissingError, engine, engine_python
from eagletrace.lab.server import free_port

pytest.importorskip("torch")

PROBE = Path(__file__).parent / "probe" / "load_names.py"
TIMEOUT_S = 300
ENGINES = [
    pytest.param("0.5.9", marks=pytest.mark.lab_0_5_9),
    pytest.param("0.5.20", marks=pytest.mark.lab_0_5_20),
    pytest.param("0.5.23"),
]
Case = tuple[Config, Shapes]


def renamed(shapes: Shapes, old: str, new: str) -> Shapes:
    return {key.replace(old, new): shape for key, shape in shapes.items()}


def without(shapes: Shapes, *parts: str) -> Shapes:
    return {key: shape for key, shape in shapes.items() if not any(part in key for part in parts)}


def case(config: Config, change: Callable[[Shapes], Shapes] = lambda s: s, **settings: Any) -> Case:
    """A checkpoint that fits `config`, then changed; `settings` change the configuration after that."""
    changed = change(shapes_of(config))
    return {**config, **settings}, changed


NORMED = {**LLAMA, "norm_before_fc": True, "fc_norm": True}
TWO_LAYERS = {**LLAMA, "num_hidden_layers": 2}
MLA_NORMED = {**MLA, "fc_norm": True}
FOUR_AUX = {**LLAMA, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5, 7]}}
BIASED = {**LLAMA, "bias": True}
IDS_AT_TOP = {**MLA, "eagle_aux_hidden_state_layer_ids": [1, 4]}
UNSIZED = {k: v for k, v in LLAMA.items() if k != "draft_vocab_size"}
PLAIN = "midlayer.self_attn.qkv_proj.weight"

CASES: dict[str, Case] = {
    "llama": case(LLAMA),
    "llama, layers.0": case(LLAMA, lambda s: renamed(s, "midlayer.", "layers.0.")),
    "llama, model.midlayer": case(LLAMA, lambda s: renamed(s, "midlayer.", "model.midlayer.")),
    "llama, model. everywhere": case(LLAMA, lambda s: {f"model.{k}": v for k, v in s.items()}),
    "llama, unknown prefix": case(LLAMA, lambda s: renamed(s, "midlayer.", "draft_model.decoder.0.")),
    "llama, no head": case(LLAMA, lambda s: without(s, "lm_head")),
    "llama, no v_proj": case(LLAMA, lambda s: without(s, "v_proj")),
    "llama, no norm, no down_proj": case(LLAMA, lambda s: without(s, "down_proj", "norm.weight")),
    "llama, no map": case(LLAMA, lambda s: without(s, "d2t", "t2d")),
    "llama, map under a prefix": case(LLAMA, lambda s: renamed(renamed(s, "d2t", "model.d2t"), "t2d", "model.t2d")),
    "llama, leftovers": case(LLAMA, lambda s: {**s, "verifier_lm_head.weight": (8, 8), "scale": (1,)}),
    "llama, embeddings": case(LLAMA, lambda s: {**s, "embed_tokens.weight": (VOCAB, HIDDEN)}),
    "llama, fused in the file": case(LLAMA, lambda s: {**without(s, "q_proj", "k_proj", "v_proj"), PLAIN: (64, 64)}),
    "llama, tied": case(LLAMA, tie_word_embeddings=True),
    "llama, no draft_vocab_size": case({**LLAMA, "draft_vocab_size": VOCAB}, draft_vocab_size=None),
    "llama, head of another size": case(LLAMA, lambda s: {**s, "lm_head.weight": (DRAFT_VOCAB - 64, HIDDEN)}),
    "llama, narrow fc": case(LLAMA, lambda s: {**s, "fc.weight": (HIDDEN, 2 * HIDDEN)}),
    "llama, wide norm": case(LLAMA, lambda s: {**s, "norm.weight": (2 * HIDDEN,)}),
    "llama, narrow q_proj": case(LLAMA, lambda s: {**s, "midlayer.self_attn.q_proj.weight": (HIDDEN, HIDDEN)}),
    "llama, both norms": case(NORMED),
    "llama, both norms, old names": case(NORMED, lambda s: renamed(renamed(renamed(
        s, "fc_norm.0", "aux_norm_low"), "fc_norm.1", "aux_norm_mid"), "fc_norm.2", "aux_norm_high")),
    "llama, norms without flags": case(NORMED, norm_before_fc=False, fc_norm=None),
    "llama, flags without norms": case(LLAMA, norm_before_fc=True, fc_norm=True),
    "llama, norm flag nested": case(NORMED, norm_before_fc=None, eagle_config={"norm_before_fc": True}),
    "llama, two layers": case(TWO_LAYERS),
    "llama, four aux states": case(FOUR_AUX),
    "llama, num_aux_hidden_states": case(FOUR_AUX, eagle_config=None, num_aux_hidden_states=4),
    "llama, wide target": case({**LLAMA, "target_hidden_size": 2 * HIDDEN}),
    "llama, target_hidden_size null": case(LLAMA, target_hidden_size=None),
    "llama, draft_vocab_size not there": (UNSIZED, shapes_of(LLAMA)),
    "llama, tied, draft_vocab_size not there": (
        {**UNSIZED, "tie_word_embeddings": True}, shapes_of(LLAMA)
    ),
    "llama, bias": case(BIASED),
    "llama, bias missing": case(BIASED, lambda s: without(s, "fc.bias")),
    "mla": case(MLA),
    "mla, layers.0": case(MLA, lambda s: renamed(s, "midlayer.", "layers.0.")),
    "mla, model.": case(MLA, lambda s: renamed(s, "midlayer.", "model.midlayer.")),
    "mla, one of a pair": case(MLA, lambda s: without(s, "kv_a_proj_with_mqa")),
    "mla, no gate": case(MLA, lambda s: without(s, "gate_proj")),
    "mla, map by part": case(MLA, lambda s: renamed(s, "d2t", "my_d2t_map")),
    "mla, norms": case(MLA_NORMED),
    "mla, norms, old names": case(MLA_NORMED, lambda s: renamed(s, "fc_norm.0", "aux_norm_low")),
    "mla, ids at the top": case(IDS_AT_TOP),
    "eagle": case(EAGLE),
    "eagle, model.": case(EAGLE, lambda s: {f"model.{k}": v for k, v in s.items()}),
    "eagle, head and map": case(EAGLE, lambda s: {**s, "lm_head.weight": (VOCAB, HIDDEN), "d2t": (8,)}),
    "eagle, no bias": case(EAGLE, lambda s: without(s, "fc.bias")),
    "eagle, attention bias": case({**EAGLE, "attention_bias": True}),
    "eagle, two layers": case({**EAGLE, "num_hidden_layers": 2}),
    "eagle, narrow mlp": case(EAGLE, lambda s: {**s, "midlayer.mlp.gate_proj.weight": (INNER, HIDDEN // 2)}),
    "qwen2 eagle": case(QWEN_EAGLE),
    "qwen2 eagle, no q bias": case(QWEN_EAGLE, lambda s: without(s, "q_proj.bias")),
    **MTP_CASES,
}  # fmt: skip


def eagle_layers(shapes: Shapes) -> Shapes:
    """EAGLE's own names: layers.N."""
    return renamed(shapes, "midlayer.", "layers.0.")


def asked(name: str) -> Case:
    config, shapes = CASES[name]
    eagle = name.startswith(("eagle", "qwen2"))
    return config, eagle_layers(shapes) if eagle else shapes


@pytest.fixture(scope="module", params=ENGINES)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What the engine does with every case."""
    version = request.param
    try:
        python = engine_python(version)
    except EngineMissingError as error:
        pytest.skip(str(error))
    target = write(tmp_path_factory.mktemp("pair") / "target", TARGET, target_tensors())
    lines: list[str] = []
    for name in CASES:
        config, shapes = asked(name)
        listed = {key: ["int64" if "d2t" in key else "bfloat16", list(shape)] for key, shape in shapes.items()}
        lines.append(json.dumps({"config": config, "tensors": listed}))
    spec = engine(version)
    done = subprocess.run(
        [python, str(PROBE), str(target), str(free_port())], input="\n".join(lines) + "\n", text=True,
        capture_output=True, timeout=TIMEOUT_S, env={**os.environ, **spec.environment(spec.workers[0])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return version, dict(zip(CASES, found, strict=True))


def predicted(version: str, name: str) -> Landing | None:
    """What the rules say; None where they say that the class cannot be built, or know none."""
    config, shapes = asked(name)
    rules = release(version).rules(config["architectures"][0])
    infos = {key: TensorInfo(key, "bfloat16", shape, Path(), 0, 0) for key, shape in shapes.items()}
    if rules is None:
        return None
    try:
        return predict(infos, config, rules)
    except Unbuildable:
        return None


def disagreements(landing: Landing | None, real: dict[str, Any], shapes: Shapes, architecture: str) -> list[str]:
    """Where prediction and engine differ. A release without the class may fall back to its Transformers backend."""
    error: str | None = real["error"]
    if landing is None:
        return ["the class was built and loaded"] if real["class"] == architecture and not error else []
    if error and error.startswith("build"):
        return [f"the engine cannot build it: {error}"]
    if bool(landing.misfits or landing.not_built) != bool(error):
        return [f"misfits {landing.misfits}, not built {landing.not_built}, engine: {error}"]
    if error:
        return []
    found: list[str] = []
    params: dict[str, Any] = real["params"]
    if set(params) != set(landing.parameters):
        found.append(f"parameters: {sorted(set(params) ^ set(landing.parameters))}")
    for name in set(params) & set(landing.parameters):
        keys = sorted(set(landing.filled.get(name, {}).values()))
        due = landing.parameters[name].shape
        if params[name]["keys"] != keys:
            found.append(f"{name}: keys {params[name]['keys']}, predicted {keys}")
        if name not in ("lm_head.weight", "model.embed_tokens.weight") and tuple(params[name]["shape"]) != due:
            found.append(f"{name}: shape {params[name]['shape']}, predicted {due}")
        if bool(params[name]["unfilled"]) != (name in landing.missing()):
            found.append(f"{name}: {params[name]['unfilled']} unfilled, predicted {landing.missing().get(name)}")
    landed = {key for p in params.values() for key in p["keys"]}
    loaded = {key for key, fate in landing.fates.items() if fate == "loaded"}
    if landed != loaded:
        found.append(f"loaded: {sorted(landed ^ loaded)}")
    if set(landing.fates) != set(shapes):
        found.append("a key has no fate")
    if real["map"] != ("consumed_as_attribute" in landing.fates.values()):
        found.append(f"map {real['map']}")
    return found


@pytest.mark.slow
def test_rules_say_what_load_weights_does(answers: tuple[str, dict[str, Any]]) -> None:
    version, found = answers
    wrong = {
        name: said
        for name, real in found.items()
        if (said := disagreements(predicted(version, name), real, asked(name)[1], CASES[name][0]["architectures"][0]))
    }
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.slow
def test_the_cases_cover_every_outcome(answers: tuple[str, dict[str, Any]]) -> None:
    """Else agreement would mean little: cases that load, that drop, that leave gaps, and that die."""
    version, found = answers
    landings = [landing for name in found if (landing := predicted(version, name)) is not None]
    fates = {fate for landing in landings for fate in landing.fates.values()}
    assert fates == {"loaded", "consumed_as_attribute", "ignored_by_engine", "dropped"}
    assert any(landing.misfits for landing in landings)
    assert any(landing.not_built for landing in landings)
    assert any(landing.missing() for landing in landings)
    assert any(
        not landing.dropped() and set(landing.missing()) <= {"model.embed_tokens.weight"} for landing in landings
    )
