"""What target classes of the installed SGLang do with aux layer ids, by their own methods: what is recorded of it, what
the tracer says that they would capture, and what `eagletrace check` says of them.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from eagletrace.checkpoint.engines import release  # noqa: E402
from eagletrace.instrumentations.sglang.capture import METHOD, served_facts, watch, would_capture  # noqa: E402

DEPTH = 12
INNER = {"Qwen3MoeForCausalLM": ("qwen2_moe", "Qwen2MoeModel")}
"""Targets whose decoder has such a method too: it marks the layers themselves."""
MODULES = {
    "LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
    "GptOssForCausalLM": "gpt_oss",
    "Qwen3MoeForCausalLM": "qwen3_moe", "DeepseekV2ForCausalLM": "deepseek_v2",
}  # fmt: skip
IDS = (None, [1, 5, 8], [2, 6, 9], [2, 6, DEPTH])


def method(module: str, owner: str) -> Callable[..., Any]:
    """A class' own METHOD, from its source: importing the engine takes long and changes the process."""
    package = importlib.util.find_spec("sglang")
    if package is None or package.origin is None:
        pytest.skip("no sglang is installed here")
    file = Path(package.origin).parent / "srt" / "models" / f"{module}.py"
    (body,) = (n.body for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef) and n.name == owner)
    (node,) = (n for n in body if isinstance(n, ast.FunctionDef) and n.name == METHOD)
    names: dict[str, Any] = {"List": list, "Optional": Optional}
    exec(compile(ast.Module([node], []), str(file), "exec"), names)
    return names[METHOD]


def target(name: str) -> Any:
    """A model of twelve layers with the methods of a class, before it was asked for anything."""
    inner = {METHOD: method(*INNER[name])} if name in INNER else {}
    decoder: Any = type("Decoder", (nn.Module,), inner)()
    decoder.layers, decoder.layers_to_capture = nn.ModuleList(nn.Linear(1, 1) for _ in range(DEPTH)), []
    model: Any = type(name, (nn.Module,), {METHOD: method(MODULES[name], name)})()
    model.pp_group, model.config = SimpleNamespace(is_last_rank=True), SimpleNamespace(num_hidden_layers=DEPTH)
    model.model, model.capture_aux_hidden_states = decoder, False
    return model


def served(model: Any, ids: list[int] | None) -> tuple[dict[str, tuple[Any, Any]], list[dict[str, Any]]]:
    """Facts and events of a server that asks for ids; those of the configuration are the same."""
    facts: dict[str, tuple[Any, Any]] = {}
    events: list[dict[str, Any]] = []

    def fact(key: str, actual: Any, expected: Any = None, source: str | None = None) -> None:
        facts[key] = actual, expected

    def count(what: str) -> None:
        state.counts[what] = state.counts.get(what, 0) + 1

    def event(kind: str, **detail: Any) -> None:
        events.append({"kind": kind, **detail})

    recorder = SimpleNamespace(fact=fact, event=event)
    state: Any = SimpleNamespace(
        recorder=recorder, undo=[], counts={}, count=count, target_runner=SimpleNamespace(model=model),
        draft_facts={"eagle3": True, "fc_in": 12, "target_hidden_size": 4}, requested_layers=None,
    )  # fmt: skip
    watch(state, model)
    getattr(model, METHOD)(ids)
    served_facts(state, {} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}, True)
    return facts, events


@pytest.mark.parametrize("ids", IDS, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_trace_and_check_say_what_the_class_does(name: str, ids: list[int] | None) -> None:
    model = target(name)
    said = would_capture(model, ids)
    assert model.model.layers_to_capture == [] and model.capture_aux_hidden_states is False
    assert not any(hasattr(layer, "_is_layer_to_capture") for layer in model.model.layers)
    if name in INNER and ids == [2, 6, DEPTH]:
        return  # the class ends with an IndexError: it has no layer of that number
    facts, events = served(model, ids)
    done = model.model.layers_to_capture
    assert len(done) == 3 and model.capture_aux_hidden_states is True
    assert said == done == release("0.5.23").captured(name, None if ids is None else tuple(ids), DEPTH)
    assert events == [{"kind": "layers_captured", "requested": ids, "captured": done, "caller": events[0]["caller"],
                       "model": name}]  # fmt: skip
    assert facts["aux.layers_captured"] == (done, done)
    assert facts["aux.layers_requested"] == (ids, ids)
    assert facts["aux.count"] == (3, 3)


def test_classes_differ_where_an_id_is_the_number_of_layers() -> None:
    """A gpt-oss then takes all ids as inputs, so that the last is the output of its last layer; others add one."""
    found = {name: would_capture(target(name), [2, 6, DEPTH]) for name in MODULES if name not in INNER}
    assert found["GptOssForCausalLM"] == found["DeepseekV2ForCausalLM"] == [2, 6, DEPTH]
    assert found["LlamaForCausalLM"] == found["Qwen2ForCausalLM"] == found["Qwen3ForCausalLM"] == [3, 7, DEPTH + 1]
