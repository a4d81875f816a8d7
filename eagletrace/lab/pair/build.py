"""Builds a pair: tokenizer, target, the target's own texts, then one draft after another."""
# torch's, safetensors' and transformers' own types are partial:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from eagletrace.errors import UnknownNameError
from eagletrace.lab.pair.corpus import training_text
from eagletrace.lab.pair.draft_training import DraftTask, FrozenTarget, train_draft
from eagletrace.lab.pair.evaluate import load_target
from eagletrace.lab.pair.export import save_draft, save_target, write_json
from eagletrace.lab.pair.measure import measure_pair
from eagletrace.lab.pair.rollout import observe, write_texts
from eagletrace.lab.pair.settings import PAIRS, SIZES, SIZES_OF, Pair, PairSettings, Size
from eagletrace.lab.pair.target import Progress, TargetModel, train_target
from eagletrace.lab.pair.tokenizer import BYTE_TOKENS, train_tokenizer
from eagletrace.lab.pair.variants import EARLY_LAYERS, FOUR_LAYERS, RECIPES_OF

OTHER_TARGET_SEED = 100
"""The target that the variant ``other_target`` is trained for has a seed so much larger."""
REPORT = "pair.json"
"""How a pair was made and what it measured, beside ``target/`` and ``drafts/``."""


@dataclass(frozen=True)
class TrainedTarget:
    """A target and all that the drafts are trained from."""

    model: TargetModel
    tokenizer: Tokenizer
    ids: Tensor
    """The training text, [tokens]."""
    texts: Tensor
    """Texts that the target wrote, [texts, time]."""


def build_pair(
    out: Path,
    seed: int = 0,
    size: Size = "full",
    progress: Progress = print,
    variants: Sequence[str] | None = None,
    *,
    pair: Pair = PAIRS[0],
    keep_target: bool = False,
) -> Path:
    """Trains a pair into ``out/target`` and ``out/drafts/<variant>``, measures it, and returns ``out``.

    The same seed, size, Python and torch on the same kind of processor give the same tensors. With ``keep_target``
    the target that ``out`` has is kept, which gives the same drafts if it was made with this seed and size. Raises
    `UnknownNameError` for a pair, variant or size that does not exist.
    """
    if pair not in PAIRS:
        raise UnknownNameError("pair", pair, PAIRS)
    recipes, sizes = RECIPES_OF[pair], SIZES_OF[pair]
    variants = tuple(recipes) if variants is None else variants
    for name in variants:
        if name not in recipes:
            raise UnknownNameError("variant of the lab's draft", name, recipes)
    if size not in sizes:
        raise UnknownNameError("size of the lab's pair", size, sizes)
    settings = sizes[size]
    started = time.monotonic()

    def say(text: str) -> None:
        progress(f"{time.monotonic() - started:5.0f} s  {text}")

    with fixed_threads(settings.threads):
        if keep_target:
            target = read_target(out / "target", seed, settings, say)
        else:
            target = build_target(seed, settings, say)
            save_target(target.model, target.tokenizer, out / "target", settings)
        build_drafts(target, out / "drafts", seed, settings, pair, variants, say)
        built = [name for name in recipes if (out / "drafts" / name).is_dir()]
        measured = measure_pair(out, built, 48 if size == "full" else 16)
    command = f"python -m eagletrace.lab.pair.build OUT --pair {pair} --seed {seed} --size {size}"
    report: dict[str, object] = {"command": command, "seed": seed}
    report |= {"seconds": round(time.monotonic() - started), "versions": versions(), "settings": asdict(settings)}
    write_json(out / REPORT, report | {"measured": measured})
    return out


def build_target(seed: int, settings: PairSettings, progress: Progress) -> TrainedTarget:
    """Tokenizer, target and the texts that it writes."""
    torch.manual_seed(seed)
    text = training_text()
    tokenizer = train_tokenizer(text, settings.vocab_size)
    ids = torch.tensor(tokenizer.encode(text).ids)
    progress(f"{ids.numel()} tokens of text, {tokenizer.get_vocab_size()} in the vocabulary")
    model = train_target(ids, settings, torch.Generator().manual_seed(seed), progress)
    return with_texts(model, tokenizer, ids, seed, settings, progress)


def read_target(folder: Path, seed: int, settings: PairSettings, progress: Progress) -> TrainedTarget:
    """A target that was built before, and the texts that it writes."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor(tokenizer.encode(training_text()).ids)
    return with_texts(load_target(folder), tokenizer, ids, seed, settings, progress)


def with_texts(
    model: TargetModel, tokenizer: Tokenizer, ids: Tensor, seed: int, settings: PairSettings, progress: Progress
) -> TrainedTarget:
    """Lets the target write its texts."""
    texts = write_texts(model, ids, settings, torch.Generator().manual_seed(seed))
    progress(f"the target wrote {texts.shape[0]} texts of {texts.shape[1]} tokens")
    return TrainedTarget(model, tokenizer, ids, texts)


def build_drafts(
    target: TrainedTarget,
    out: Path,
    seed: int,
    settings: PairSettings,
    pair: Pair,
    variants: Sequence[str],
    progress: Progress,
) -> None:
    """Trains and writes each variant; a variant is the same whichever others are built."""
    tasks = [draft_task(pair, name, target, settings) for name in variants]
    own = [task for task in tasks if not task.recipe.other_target]
    train_for(target, own, out, seed, settings, progress)
    others = [task for task in tasks if task.recipe.other_target]
    if others:
        progress("another target, of another seed")
        other = build_target(seed + OTHER_TARGET_SEED, settings, progress)
        train_for(other, others, out, seed, settings, progress)


def train_for(
    target: TrainedTarget, tasks: Sequence[DraftTask], out: Path, seed: int, settings: PairSettings, progress: Progress
) -> None:
    """Trains and writes drafts for one target."""
    rollouts = observe(target.model, target.texts, {layer for task in tasks for layer in task.layers})
    embeddings = target.model.model.embed_tokens.weight
    frozen = FrozenTarget(embeddings, target.model.lm_head.weight)
    for task in tasks:
        torch.manual_seed(seed + 1 + task.place)
        generator = torch.Generator().manual_seed(seed)
        own = replace(settings, rope_theta=task.recipe.rope_theta or settings.rope_theta)
        draft = train_draft(task, rollouts, frozen, own, generator, progress)
        save_draft(draft, task, out / task.name, own, embeddings if task.recipe.other_target else None)


def draft_task(pair: Pair, name: str, target: TrainedTarget, settings: PairSettings) -> DraftTask:
    """What the variant ``name`` of a pair is trained with."""
    recipes = RECIPES_OF[pair]
    recipe = recipes[name]
    seen = torch.bincount(torch.cat([target.ids, target.texts.flatten()]), minlength=settings.vocab_size)
    size = settings.vocab_size if recipe.full_vocabulary else settings.draft_vocab_size
    if not recipe.byte_tokens:
        seen[:BYTE_TOKENS] = -1
        size = min(size, settings.vocab_size - BYTE_TOKENS)
    kept = seen.topk(size).indices.sort().values
    layers = settings.other_layers if recipe.other_layers else settings.default_layers
    layers = EARLY_LAYERS if recipe.early_layers else FOUR_LAYERS if recipe.four_states else layers
    layers = layers if recipe.aux_states else ()
    return DraftTask(name, layers, kept, recipe, list(recipes).index(name))


class fixed_threads:  # noqa: N801 - reads as a function
    """Fixes torch's thread count inside the block: sums split otherwise round otherwise."""

    def __init__(self, threads: int) -> None:
        self.threads, self.before = threads, torch.get_num_threads()

    def __enter__(self) -> None:
        torch.set_num_threads(self.threads)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)


def versions() -> dict[str, str]:
    """What the tensors depend on besides the seed."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m eagletrace.lab.pair.build OUT [--pair llama|kimi] [--seed 0] [--size full|small] [--variants …]``."""
    parser = argparse.ArgumentParser(description="Train the lab's target and its drafts.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--pair", choices=PAIRS, default=PAIRS[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--variants", nargs="+", help="default: all of the pair")
    parser.add_argument("--keep-target", action="store_true", help="train drafts for the target that OUT has")
    given = parser.parse_args(arguments)
    build_pair(
        given.out, given.seed, given.size, lambda text: print(text, flush=True), given.variants,
        pair=given.pair, keep_target=given.keep_target,
    )  # fmt: skip


if __name__ == "__main__":
    main()
