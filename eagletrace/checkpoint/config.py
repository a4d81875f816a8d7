"""What a configuration says, whichever library wrote it: SpecForge, speculators (flat or nested), EAGLE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

Config = Mapping[str, Any]

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
NESTED = ("transformer_layer_config", "text_config", "llm_config", "language_config", "thinker_config")
"""Where libraries put the settings of the decoder layers; a name at the top wins over the same name in there."""

AUX_PLACES = (f"eagle_config.{LAYER_IDS}", LAYER_IDS, f"speculators_config.{LAYER_IDS}", "aux_hidden_state_layer_ids",
              "eagle_config.aux_hidden_state_layer_ids", "eagle_config.layer_ids", "target_layer_ids")  # fmt: skip

LLAMA_THETA = 10_000.0
"""Rotary theta of transformers' LlamaConfig where a configuration names none."""


@dataclass(frozen=True)
class AuxIds:
    """Aux layer ids at one place of a configuration; `means_inputs`: its library means the inputs of these layers."""

    path: str
    ids: tuple[int, ...]
    means_inputs: bool


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: `type` "default" has no scaling; `scaling` as the configuration has it, without theta."""

    theta: float
    type: str
    scaling: dict[str, Any]
    theta_given: bool


def flat(config: Config) -> dict[str, Any]:
    """One level of settings: those nested for the decoder layers, overlaid by those at the top."""
    settings: dict[str, Any] = {}
    for name in NESTED:
        nested = config.get(name)
        if isinstance(nested, dict):
            settings.update(flat(cast("Config", nested)))
    settings.update({k: v for k, v in config.items() if k not in NESTED and (v is not None or k not in settings)})
    return settings


def lookup(config: Config, path: str) -> Any:
    """The value at a dotted path, or None."""
    value: Any = config
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = cast("Config", value).get(name)
    return value


def integer(config: Config, name: str) -> int | None:
    """A whole number, or None where it is missing or something else."""
    value = config.get(name)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(config: Config, name: str, default: float) -> float:
    """A number, or the default."""
    value = config.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def flag(config: Config, name: str) -> bool | None:
    """A truth value, or None where it is missing."""
    value = config.get(name)
    return None if value is None else bool(value)


def is_speculators(config: Config) -> bool:
    """Whether the speculators library wrote it."""
    return any(name.startswith("speculators_") for name in config) or "transformer_layer_config" in config


def architecture(config: Config) -> str | None:
    """The first of `architectures`."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return None


def aux_places(config: Config) -> tuple[AuxIds, ...]:
    """All places that name aux layers; speculators means the inputs of layers, except under `eagle_config`."""
    speculators = is_speculators(config)
    found: list[AuxIds] = []
    for path in AUX_PLACES:
        ids: Any = lookup(config, path)
        if isinstance(ids, list) and ids and all(type(i) is int for i in cast("list[Any]", ids)):
            found.append(AuxIds(path, tuple(cast("list[int]", ids)), speculators and "eagle_config" not in path))
    return tuple(found)


def rope(settings: Config) -> Rope:
    """The rotary embedding, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    parameters = settings.get("rope_parameters")
    given = settings.get("rope_scaling")
    source: dict[str, Any] = {}
    if isinstance(parameters, dict):
        source = dict(cast("Config", parameters))
    elif isinstance(given, dict):
        source = dict(cast("Config", given))
    theta = source.pop("rope_theta", settings.get("rope_theta"))
    kind = str(source.pop("rope_type", None) or source.pop("type", None) or "default")
    source.pop("type", None)
    valid = isinstance(theta, int | float)
    return Rope(float(theta) if valid else LLAMA_THETA, kind, source if kind != "default" else {}, valid)


Attention = Literal["gqa", "mla"]


def attention(settings: Config) -> Attention:
    """Grouped-query attention, or multi-head latent attention (DeepSeek, Kimi)."""
    return "mla" if integer(settings, "kv_lora_rank") else "gqa"
