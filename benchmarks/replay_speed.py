"""How long a replay takes: of 2,000 tokens of the lab's pair, and of 256 tokens of a draft of Kimi-K2.5's size.

    python -m benchmarks.replay_speed

Writes `benchmarks/out/replay.json` and prints it. The lab's figure is the whole search, on texts that the target wrote;
the large draft has random weights in float32 (bfloat16 for its embeddings, as `eagletrace.replay` keeps them), and one
fidelity and potential are computed of a chain of five drafts.
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import torch

from benchmarks.statistics import Figure, publish, single
from eagletrace.replay.architecture import Architecture
from eagletrace.replay.changes.intended import intended
from eagletrace.replay.recipe import Recipe
from eagletrace.replay.recorded import Recording, Round, Sequence
from eagletrace.replay.rope import Rope
from eagletrace.replay.scoring import score
from eagletrace.replay.search import search
from tests.replay import offline

LAB_SECONDS, LARGE_SECONDS, LARGE_GIB = 5.0, 120.0, 16.0
LAB_TEXTS, LARGE_TOKENS = 14, 256
HIDDEN, VOCAB, DRAFT_VOCAB, HEADS, KV_HEADS, HEAD_DIM, INNER = 7168, 163_840, 32_000, 56, 8, 128, 18_432


def lab() -> list[Figure]:
    """The search on about 2,000 positions, one thread."""
    torch.set_num_threads(1)
    material, recording = offline.material(), offline.empty(count=LAB_TEXTS)
    recording = offline.served(recording, intended(material, recording))
    start = time.perf_counter()
    search(material, recording, lambda _: None)
    seconds = (time.perf_counter() - start) * 2000 / recording.positions
    return [single("replay of 2,000 tokens of the lab's pair, whole search", "s", seconds, LAB_SECONDS)]


def large_recipe() -> Recipe:
    """Random weights of a Llama-style draft for Kimi-K2.5."""
    shape = Architecture(HIDDEN, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, 1, 1e-6, 3, Rope(HEAD_DIM, 50_000.0))
    sizes = {
        "fc": (HIDDEN, 3 * HIDDEN), "layers.0.self_attn.q_proj": (HEADS * HEAD_DIM, 2 * HIDDEN),
        "layers.0.self_attn.k_proj": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "layers.0.self_attn.v_proj": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "layers.0.self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM), "layers.0.mlp.gate_proj": (INNER, HIDDEN),
        "layers.0.mlp.up_proj": (INNER, HIDDEN), "layers.0.mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    tensors = {f"{name}.weight": torch.empty(size).uniform_(-0.02, 0.02) for name, size in sizes.items()}
    embedding = torch.empty(VOCAB, HIDDEN, dtype=torch.bfloat16).uniform_(-0.02, 0.02)
    head = torch.empty(DRAFT_VOCAB, HIDDEN).uniform_(-0.02, 0.02)
    return Recipe(shape, tensors, embedding, head, torch.arange(DRAFT_VOCAB) * 5)


def large() -> list[Figure]:
    """Fidelity and potential of one request, all threads."""
    recipe = large_recipe()
    tokens = torch.randint(0, VOCAB, (LARGE_TOKENS + 1,))
    rounds = [Round(i, i, anchor, (0,) * 5, (-1, 0, 1, 2, 3), (1, 2, 3, 4, 5), (None,) * 5, 0)
              for i, anchor in enumerate(range(63, LARGE_TOKENS), 1)]  # fmt: skip
    sequence = Sequence(1, tokens, 64, 0, torch.randn(LARGE_TOKENS, 3 * HIDDEN), {}, rounds)
    start = time.perf_counter()
    score(recipe, replace(Recording([sequence], 5, 1, 5)))
    seconds = time.perf_counter() - start
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    return [
        single("replay of 256 tokens of a draft of Kimi-K2.5's size", "s", seconds, LARGE_SECONDS),
        single("memory for it", "GiB", gib, LARGE_GIB),
    ]


def main() -> None:
    """Measure and publish."""
    print(publish("replay", [*lab(), *large()]).read_text())


if __name__ == "__main__":
    main()
