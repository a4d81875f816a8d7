"""Recordings made without an engine: the lab's pair run by transformers, rounds drafted by a recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from eagletrace.checkpoint import config as configs
from eagletrace.checkpoint import describe, open_checkpoint
from eagletrace.lab.pair import prompts, shipped_pair
from eagletrace.lab.pair.draft import AnchorCache
from eagletrace.lab.pair.evaluate import LoadedDraft, load_target
from eagletrace.lab.pair.rollout import continue_greedily, states_of
from eagletrace.replay.architecture import Architecture
from eagletrace.replay.material import EMBEDDING, HEAD, Material, first, values
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording, Round, Sequence
from eagletrace.replay.reference import Reference, longest_path

LAYERS = (2, 6, 9)
LENGTH = 120


@dataclass(frozen=True)
class Shape:
    """What the server drafts in a round."""

    steps: int = 3
    topk: int = 1
    nodes: int = 3


CHAIN, TREE = Shape(), Shape(3, 3, 9)


@cache
def texts(count: int = 4, pair: str = "llama") -> tuple[tuple[torch.Tensor, int, dict[int, torch.Tensor]], ...]:
    """(tokens, prompt length, input of each target layer) of some greedy continuations."""
    from tokenizers import Tokenizer

    target = load_target(shipped_pair(pair) / "target")
    tokenizer = Tokenizer.from_file(str(shipped_pair(pair) / "target" / "tokenizer.json"))
    found: list[tuple[torch.Tensor, int, dict[int, torch.Tensor]]] = []
    for prompt in prompts(count, 3):
        ids = torch.tensor([tokenizer.encode(prompt).ids[:40]])
        tokens = continue_greedily(target, ids, ids.shape[1] + LENGTH)
        inputs, _ = states_of(target, tokens)
        found.append((tokens[0], ids.shape[1], {n: states[0] for n, states in enumerate(inputs)}))
    return tuple(found)


def material(variant: str = "default", facts: dict[str, Any] | None = None, pair: str = "llama") -> Material:
    """Draft and target as their files say, served as they are."""
    files, target = (open_checkpoint(shipped_pair(pair) / part) for part in (f"drafts/{variant}", "target"))
    draft = describe(files)
    filed = {name: values(files, key) for name, key in draft.names.items()}
    embedding, head = first(target, EMBEDDING), first(target, HEAD)
    assert embedding is not None and head is not None
    known = {"aux.layers_captured": list(LAYERS), "hot_token_id": {"length": 384}, "forward.fc_applied": True}
    known |= facts or {}
    return Material(
        draft, Architecture.of(draft), filed, {k: v for k, v in filed.items() if k not in ("d2t", "t2d")}, embedding,
        head, configs.flat(target.config), known, {"aux.layers_captured": list(LAYERS)},
        dict.fromkeys(draft.names.values(), "loaded"),
    )  # fmt: skip


def empty(shape: Shape = CHAIN, layers: tuple[int, ...] = LAYERS, count: int = 4, pair: str = "llama") -> Recording:
    """Sequences without rounds; `layers` were captured, all were recorded."""
    sequences = [
        Sequence(i, tokens, prompt, 0, torch.cat([states[n] for n in layers], -1)[:-1],
                 {n: s[:-1] for n, s in states.items()}, [], chunk_ends=(prompt,))
        for i, (tokens, prompt, states) in enumerate(texts(count, pair))
    ]  # fmt: skip
    return Recording(sequences, shape.steps, shape.topk, shape.nodes)


def served(recording: Recording, recipe: Recipe, *, rope_shift: int = 0) -> Recording:
    """The same with the rounds that a server would have run that drafts by `recipe`."""
    reference = Reference(recipe)
    sequences: list[Sequence] = []
    with torch.inference_mode():
        for sequence in recording.sequences:
            extended = reference.extend(sequence)
            anchor, rounds = sequence.prompt - 1, list[Round]()
            while anchor < sequence.rows:
                drafted = reference.draft(
                    sequence, extended, torch.tensor([anchor]), recording.steps, recording.topk, recording.nodes
                )
                depths = tuple(drafted.depths[0].tolist())
                correct = int(longest_path(drafted, sequence.tokens)[0])
                ropes = tuple(None if d == 1 else anchor + d - 1 + rope_shift for d in depths)
                rounds.append(
                    Round(len(rounds) + 1, len(rounds) + 1, anchor, tuple(drafted.tokens[0].tolist()),
                          tuple(drafted.parents[0].tolist()), depths, ropes, correct)
                )  # fmt: skip
                anchor += correct + 1
            sequences.append(replace(sequence, rounds=rounds))
    return replace(recording, sequences=sequences)


def assert_chains_are_the_trainers(
    recording: Recording, recipe: Recipe, draft: LoadedDraft, atol: float = 1e-3
) -> None:
    """The reference drafts what the trainer does, which runs all anchors of a text at once with its own modules."""
    reference = Reference(recipe)
    for sequence in recording.sequences:
        with torch.inference_mode():
            hidden, kept = draft.module.fuse(sequence.captured[None]), AnchorCache()
            tokens, chains, logits = sequence.tokens[None, 1:], list[torch.Tensor](), list[torch.Tensor]()
            for _ in range(3):
                hidden, found = draft.module.step(recipe.embedding[tokens], hidden, kept)
                tokens = draft.token_of[found.argmax(-1)]
                chains.append(tokens[0])
                logits.append(found[0])
            extended = reference.extend(sequence)
            drafted = reference.draft(sequence, extended, torch.arange(sequence.rows), 3, 1, 3)
            torch.testing.assert_close(reference.logits(extended.out), logits[0], atol=atol, rtol=1e-3)
        assert (drafted.tokens == torch.stack(chains, 1)).float().mean() > 0.999
