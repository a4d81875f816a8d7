"""Runs inside an engine's environment: builds a draft's class from a configuration and feeds its `load_weights`.

Arguments: a target's folder (for server arguments) and a free port. stdin: a case on each line, `{"config": {...},
"tensors": {key: [dtype, shape]}}`. stdout: an answer for each, `{"class": name or null, "params": {name: {"shape",
"keys", "unfilled"}}, "map": bool, "error": text or null}`. Parameters hold a sentinel before loading and each tensor
holds a value of its own, so that what landed where can be read off.
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# The engine's classes differ between releases.
from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

SENTINEL = -7777.0


def prepare(folder: str, port: str) -> None:
    """Server arguments and a process group of one, in the way of the release that is installed."""
    from sglang.srt import distributed
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path=folder, device="cpu", attention_backend="torch_native", skip_tokenizer_init=True,
        disable_shared_experts_fusion=True,
    )  # fmt: skip
    try:
        from sglang.srt.runtime_context import SpawnRanks, publish

        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
    except ImportError:
        try:
            from sglang.srt.runtime_context import publish

            publish(arguments, role="scheduler")
        except ImportError:
            from sglang.srt.server_args import set_global_server_args_for_scheduler

            set_global_server_args_for_scheduler(arguments)
    where = f"tcp://127.0.0.1:{port}"
    distributed.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, distributed_init_method=where, backend="gloo"
    )
    distributed.initialize_model_parallel()


def dp_attention(config: Any) -> None:
    """The attention's parallel groups of releases that keep them apart."""
    from sglang.srt.layers import dp_attention as module
    from sglang.srt.server_args import ServerArgs

    del config
    arguments = ServerArgs(
        model_path=sys.argv[1], device="cpu", attention_backend="torch_native", skip_tokenizer_init=True
    )
    wanted = inspect.signature(module.initialize_dp_attention).parameters
    known: dict[str, Any] = {"server_args": arguments}
    if "model_config" in wanted:
        from sglang.srt.configs.model_config import ModelConfig

        known["model_config"] = ModelConfig.from_server_args(arguments)
    module.initialize_dp_attention(**{name: value for name, value in known.items() if name in wanted})


def build(config: dict[str, Any]) -> nn.Module:
    """The engine's class for a configuration, as its loader finds and builds it."""
    from sglang.srt.models.registry import ModelRegistry
    from transformers import AutoConfig, PretrainedConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            parsed = AutoConfig.from_pretrained(folder)
        except (ValueError, KeyError):
            parsed = PretrainedConfig.from_dict(config)
    cls, _ = ModelRegistry.resolve_model_cls(parsed.architectures)
    return cls(config=parsed, quant_config=None)


def tensor(dtype: str, shape: list[int], value: float) -> torch.Tensor:
    """A constant tensor."""
    return torch.full(shape, value, dtype=torch.float32).to(getattr(torch, dtype))


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """What one checkpoint does to the class."""
    try:
        model = build(case["config"])
    except Exception as error:  # noqa: BLE001 -- whatever the engine raises is the answer
        return {"class": None, "params": {}, "map": False, "error": f"build: {type(error).__name__}: {error}"}
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.data.fill_(SENTINEL)
    keys = list(case["tensors"])
    weights = [(key, tensor(*case["tensors"][key], value=float(i + 1))) for i, key in enumerate(keys)]
    error = None
    try:
        model.load_weights(iter(weights))
    except Exception as raised:  # noqa: BLE001
        error = f"load: {type(raised).__name__}: {raised}"
    found: dict[str, Any] = {}
    for name, parameter in parameters.items():
        values = parameter.data.float().flatten()
        landed = [keys[int(v) - 1] for v in values.unique().tolist() if 0 < v <= len(keys)]
        found[name] = {
            "shape": list(parameter.shape), "keys": sorted(landed), "unfilled": int((values == SENTINEL).sum()),
        }  # fmt: skip
    has_map = getattr(model, "hot_token_id", None) is not None
    return {"class": type(model).__name__, "params": found, "map": has_map, "error": error}


def main() -> None:
    """Answer every case."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what the engine prints
    prepare(*sys.argv[1:3])
    dp_attention(None)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
