"""Text that every Python has: its own standard library, split by file into a training and a held-out part."""

import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

PACKAGES = (
    "asyncio",
    "collections",
    "concurrent",
    "email",
    "http",
    "json",
    "logging",
    "unittest",
    "urllib",
)
HELD_OUT_EVERY = 12
"""Every twelfth file is kept from training; the prompts come from these."""

LONGEST_PROMPT = 1200
"""Characters that surely hold 120 tokens."""


def training_text() -> str:
    """The files that tokenizer, target and drafts are trained on."""
    return "".join(text for held_out, text in _files() if not held_out)


def held_out_text() -> str:
    """The files that nothing was trained on."""
    return "".join(text for held_out, text in _files() if held_out)


def _files() -> Iterator[tuple[bool, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [
        path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if not {"test", "tests", "__pycache__"} & set(path.relative_to(root).parts)
    ]
    for index, path in enumerate(paths):
        yield index % HELD_OUT_EVERY == HELD_OUT_EVERY // 2, path.read_text("utf-8", errors="replace")


def sample_prompts(count: int, seed: int, tokenizer: Path) -> list[str]:
    """``count`` prompts of 8 to 120 tokens from held-out files, each from the start of a line to the end of a token."""
    encoder = Tokenizer.from_file(str(tokenizer))
    text, random = held_out_text(), Random(seed)
    line_starts = [match.end() for match in re.finditer(r"\n(?=[ \w])", text[:-LONGEST_PROMPT])]
    prompts: list[str] = []
    while len(prompts) < count:
        start, length = random.choice(line_starts), random.randint(8, 120)
        ids = encoder.encode(text[start : start + LONGEST_PROMPT]).ids[:length]
        prompt = encoder.decode(ids, skip_special_tokens=False)
        if len(encoder.encode(prompt).ids) == length:
            prompts.append(prompt)
    return prompts
