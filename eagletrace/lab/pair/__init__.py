"""The lab's pairs: a tiny Llama or Kimi-K2.5 target and EAGLE drafts for it, trained on Python's standard library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from eagletrace.lab.pair.settings import PAIRS, Pair, Size
from eagletrace.lab.pair.variants import VARIANTS

__all__ = ["PAIRS", "VARIANTS", "Pair", "build_pair", "prompts", "shipped_pair"]


def shipped_pair(pair: str = PAIRS[0]) -> Path:
    """The folder of a pair that ships with the package: ``target/`` and ``drafts/<variant>/``."""
    return Path(__file__).parent / "data" / pair


def build_pair(
    out: Path,
    seed: int = 0,
    size: Size = "full",
    progress: Callable[[str], None] = print,
    variants: Sequence[str] | None = None,
    *,
    pair: Pair = PAIRS[0],
) -> Path:
    """Trains a pair into ``out`` (minutes; needs torch); see `eagletrace.lab.pair.build.build_pair`."""
    from eagletrace.lab.pair import build

    return build.build_pair(out, seed, size, progress, variants, pair=pair)


def prompts(n: int, seed: int = 0) -> list[str]:
    """``n`` prompts of 8 to 120 tokens, cut at a line or word from files that no pair was trained on.

    The same ``n`` and ``seed`` give the same prompts on the same Python.
    """
    from eagletrace.lab.pair.corpus import sample_prompts

    return sample_prompts(n, seed, shipped_pair() / "target" / "tokenizer.json")
