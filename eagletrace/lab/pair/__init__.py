"""The lab's pair: a tiny Llama target and EAGLE-3 drafts for it, trained here on Python's standard library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from eagletrace.lab.pair.settings import Size
from eagletrace.lab.pair.variants import VARIANTS

__all__ = ["VARIANTS", "build_pair", "prompts", "shipped_pair"]


def shipped_pair() -> Path:
    """The folder of the pair that ships with the package: ``target/`` and ``drafts/<variant>/``."""
    return Path(__file__).parent / "data" / "llama"


def build_pair(
    out: Path,
    seed: int = 0,
    size: Size = "full",
    progress: Callable[[str], None] = print,
    variants: Sequence[str] = VARIANTS,
) -> Path:
    """Trains a pair into ``out`` (minutes; needs torch); see `eagletrace.lab.pair.build.build_pair`."""
    from eagletrace.lab.pair import build

    return build.build_pair(out, seed, size, progress, variants)


def prompts(n: int, seed: int = 0) -> list[str]:
    """``n`` prompts of 8 to 120 tokens, cut at a line or word from files that no pair was trained on.

    The same ``n`` and ``seed`` give the same prompts on the same Python.
    """
    from eagletrace.lab.pair.corpus import sample_prompts

    return sample_prompts(n, seed, shipped_pair() / "target" / "tokenizer.json")
