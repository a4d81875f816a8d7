"""A byte-level BPE tokenizer, in a form that transformers 4 and 5 both load."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS, UNKNOWN = "<s>", "</s>", "<unk>"
BOS_ID, EOS_ID, UNKNOWN_ID = 0, 1, 2
BYTE_TOKENS = 3 + 256
"""So many ids come before the first merge: the special tokens and one for each byte."""


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Learns ``vocab_size`` tokens from ``text``: three special ones, 256 bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Writes ``tokenizer.json`` and a ``tokenizer_config.json`` with the class name both transformers know."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
