"""What a built pair measures without an engine: healthy accept lengths, and what each wrong wiring costs.

``python -m eagletrace.lab.pair.measure PAIR`` prints the figures of a folder with ``target/`` and ``drafts/``.
"""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from eagletrace.lab.pair.corpus import held_out_text
from eagletrace.lab.pair.draft import Draft
from eagletrace.lab.pair.evaluate import LoadedDraft, Wiring, load_draft, load_target, simulate
from eagletrace.lab.pair.rollout import continue_greedily
from eagletrace.lab.pair.standalone import StandaloneDraft
from eagletrace.lab.pair.target import TargetModel, sample_windows

PROMPT_LENGTH, NEW_TOKENS = 48, 112
SHIFTS = (-3, -2, -1, 1, 2, 3)


@dataclass(frozen=True)
class DraftMeasure:
    """Simulated accept lengths of one draft, chain of three."""

    layers: tuple[int, ...]
    accept_length: float
    rounds_by_correct_drafts: tuple[int, ...]
    served_wrongly: dict[str, float]
    """What was done to it -> accept length."""
    layers_shifted_by: dict[str, float]
    """Every captured layer moved by so many -> accept length."""


def measure_pair(pair: Path, variants: Sequence[str], texts: int = 48) -> dict[str, object]:
    """Accept lengths of each variant on ``texts`` held-out prompts, chain of three, healthy and miswired."""
    target = load_target(pair / "target")
    greedy = held_out_continuations(target, pair / "target" / "tokenizer.json", texts)
    return {
        "texts": texts,
        "prompt_tokens": PROMPT_LENGTH,
        "new_tokens": NEW_TOKENS,
        "chain": 3,
        "repeated_share": repeated_share(greedy[:, PROMPT_LENGTH:]),
        "drafts": {name: asdict(measure_draft(target, pair / "drafts" / name, greedy)) for name in variants},
    }


def held_out_continuations(target: TargetModel, tokenizer: Path, count: int) -> Tensor:
    """The target's greedy continuations of text that nothing was trained on, [count, time]."""
    ids = torch.tensor(Tokenizer.from_file(str(tokenizer)).encode(held_out_text()).ids)
    prompts = sample_windows(ids, count, PROMPT_LENGTH, torch.Generator().manual_seed(7))
    return continue_greedily(target, prompts, PROMPT_LENGTH + NEW_TOKENS)


def measure_draft(target: TargetModel, folder: Path, texts: Tensor) -> DraftMeasure:
    """One variant on greedy texts whose first ``PROMPT_LENGTH`` tokens are the prompt."""
    last: int = target.config.num_hidden_layers
    kimi = target.config.model_type == "deepseek_v3"
    draft = load_draft(folder, last, kimi=kimi, target_head=target.lm_head.weight)

    def served(wiring: Wiring) -> float:
        return round(simulate(target, draft, texts, PROMPT_LENGTH, wiring).accept_length, 3)

    shifts = SHIFTS if draft.layers else ()
    return DraftMeasure(
        layers=draft.layers,
        accept_length=served(Wiring()),
        rounds_by_correct_drafts=simulate(target, draft, texts, PROMPT_LENGTH).histogram,
        served_wrongly={name: served(wiring) for name, wiring in wrong_wirings(target, draft).items()},
        layers_shifted_by={str(shift): served(Wiring(layers=shifted(draft.layers, shift, last))) for shift in shifts},
    )


def wrong_wirings(target: TargetModel, draft: LoadedDraft) -> dict[str, Wiring]:
    """What can be done to a draft wrongly."""
    last: int = target.config.num_hidden_layers
    module = draft.module
    if isinstance(module, StandaloneDraft):
        return {}
    if not isinstance(module, Draft):
        return {"target's states before its final norm": Wiring(layers=(last,))}
    default = (2, last // 2, last - 3)
    wrongly = {"default layers": Wiring(layers=default)} if len(draft.layers) == len(default) else {}
    wrongly |= {
        "first and last layer swapped": Wiring(layers=draft.layers[::-1]),
        "target's normed output instead of fc": Wiring(skip_fc=True),
        "target's embeddings": Wiring(target_embeddings=True),
    }
    if module.input_norm is not None or module.fc_norm is not None or module.norm_output:
        wrongly["norm flags ignored"] = Wiring(ignore_norms=True)
    if draft.token_of.numel() == target.config.vocab_size:
        wrongly["target's head"] = Wiring(target_head=True)
    return wrongly


def shifted(layers: tuple[int, ...], shift: int, last: int) -> tuple[int, ...]:
    """The layers moved by ``shift``, kept between 0 and ``last`` (the output of the last layer)."""
    return tuple(min(max(layer + shift, 0), last) for layer in layers)


def repeated_share(texts: Tensor, length: int = 8) -> float:
    """Share of ``length``-grams seen before in the same text: 1 for loops only."""
    repeated = total = 0
    rows: list[list[int]] = texts.tolist()
    for row in rows:
        grams = [tuple(row[start : start + length]) for start in range(len(row) - length + 1)]
        repeated += len(grams) - len(set(grams))
        total += len(grams)
    return round(repeated / total, 3)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the measurements of a pair as JSON."""
    parser = argparse.ArgumentParser(description="Accept lengths of a pair, simulated without an engine.")
    parser.add_argument("pair", type=Path)
    parser.add_argument("--texts", type=int, default=48)
    given = parser.parse_args(arguments)
    variants = sorted(folder.name for folder in (given.pair / "drafts").iterdir())
    print(json.dumps(measure_pair(given.pair, variants, given.texts), indent=2))


if __name__ == "__main__":
    main()
