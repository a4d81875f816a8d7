"""A tiny EAGLE-3 draft trained by speculators' own trainer, on a CPU, for the lab's target."""
# The packages used are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from eagletrace.lab.pair import shipped_pair
from eagletrace.lab.pair.corpus import training_text
from eagletrace.lab.pair.rollout import continue_greedily, states_of

LAYERS = (2, 6, 9)  # what both speculators and SGLang take of 12 layers unless told otherwise
LENGTH, PROMPT = 96, 32
UNLOGGED = 1 << 30  # steps that are no multiple of it are not timed


@dataclass
class Trained:
    """speculators' `Trainer`, with its model and the batches that it validates on."""

    trainer: Any
    valid: list[dict[str, Any]]

    @property
    def model(self) -> Any:
        """The draft in training."""
        return self.trainer.model

    def steps(self, count: int) -> None:
        """Train on `count` batches more."""
        trainer = self.trainer
        due = trainer.global_step + count
        trainer.config = trainer.config._replace(max_steps=due)
        while trainer.global_step < due:
            trainer.train_epoch(0)

    def validation_epoch(self) -> dict[str, float]:
        """The trainer's validation epoch: means of its metrics."""
        return self.trainer.val_epoch(0)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """The same batches; sums of speculators' own metrics."""
        self.model.eval()
        sums: dict[str, float] = {}
        for batch in self.valid:
            _, _, metrics = self.model(**batch, **self.trainer.config.val_call_kwargs)
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def export(self, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
        """Save by the trainer's checkpointer; the checkpoint's folder."""
        checkpointer = type(self.trainer.checkpointer)(folder)
        checkpointer.save_checkpoint(self.model, self.trainer.optimizers, 0, dtype)
        return folder / "0"


def path_of(recording: Any) -> Path:
    """The run of a recording that was made."""
    assert recording.path is not None, recording.problem
    return recording.path


def target_folder() -> Path:
    return shipped_pair() / "target"


def texts(target: LlamaForCausalLM, count: int) -> torch.Tensor:
    """Texts that the target writes greedily after windows of the corpus, [count, LENGTH]."""
    ids = torch.tensor(
        Tokenizer.from_file(str(target_folder() / "tokenizer.json")).encode(training_text()[:400_000]).ids
    )
    starts = torch.linspace(0, ids.numel() - PROMPT - 1, count).long()
    return continue_greedily(target, ids[starts[:, None] + torch.arange(PROMPT)], LENGTH)


def batch_of(target: LlamaForCausalLM, tokens: torch.Tensor) -> dict[str, Any]:
    """Texts packed into one row, shifted as speculators' `shift_batch` does, and no record that was dropped."""
    inputs, _ = states_of(target, tokens)
    count, length = tokens.shape
    states = torch.cat([inputs[layer] for layer in LAYERS], -1)[:, :-1]
    return {
        "hidden_states": states.reshape(1, count * (length - 1), -1),
        "input_ids": tokens[:, 1:].reshape(1, -1),
        "verifier_last_hidden_states": inputs[-1][:, 1:].reshape(1, count * (length - 1), -1),
        "loss_mask": (torch.arange(1, length) >= PROMPT).repeat(count)[None],
        "document_ids": torch.arange(count).repeat_interleave(length - 1)[None],
        "position_ids": torch.arange(1, length).repeat(count)[None],
        "error_records": 0,
    }


def new_draft(seed: int = 0, layer: dict[str, Any] | None = None, **flags: Any) -> Any:
    """A draft that is not trained yet, with the target's embedding, head and norm, loaded by speculators."""
    from speculators.models.eagle3.core import Eagle3DraftModel

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.manual_seed(seed)
    config = LlamaConfig.from_pretrained(target_folder())
    config.num_hidden_layers, config.intermediate_size = 1, 256
    for name, value in (layer or {}).items():
        setattr(config, name, value)
    maps = load_file(shipped_pair() / "drafts" / "default" / "model.safetensors")
    t2d, d2t = maps["t2d"], maps["d2t"]
    settings = {"norm_before_residual": False, **flags}
    return Eagle3DraftModel.from_training_args(
        config, t2d=t2d, d2t=d2t, draft_vocab_size=d2t.numel(), target_layer_ids=list(LAYERS), ttt_steps=3,
        verifier_name_or_path=str(target_folder()), draft_attn_impl="eager", **settings,
    )  # fmt: skip


def load_shipped(model: Any) -> None:
    """Give it the weights of the lab's draft, which drafts well: names apart, the two are one architecture."""
    tensors = load_file(shipped_pair() / "drafts" / "default" / "model.safetensors")
    state = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(name.split(".")[0] in ("embed_tokens", "verifier_lm_head", "verifier_norm")
                                  for name in missing), (missing, unexpected)  # fmt: skip


def trained(texts_count: int, steps: int, *, shipped: bool = False, rate: float = 3e-3) -> Trained:
    """Train for some steps on the CPU, from scratch or from the lab's draft."""
    from speculators.losses import resolve_loss_config

    target: Any = LlamaForCausalLM.from_pretrained(target_folder(), dtype=torch.float32).eval()
    written = texts(target, texts_count + 8)
    batches = [batch_of(target, part) for part in written.split(8)]
    model = new_draft().float()
    if shipped:
        load_shipped(model)
    calls = {"ttt_steps": 3, "ttt_step_loss_decay": 0.8, "loss_config": resolve_loss_config("kl_div", "eager")}
    found = Trained(_trainer(model, batches, calls, rate), batches[-1:])
    found.steps(steps)
    return found


def _trainer(model: Any, batches: list[dict[str, Any]], calls: dict[str, Any], rate: float) -> Any:
    """speculators' trainer. Left to itself it looks for a GPU, and times each step that it logs by the GPU's clock."""
    from speculators.train import trainer

    config = trainer.TrainerConfig(
        lr=rate, num_epochs=1, save_path=tempfile.mkdtemp(prefix="trainer-"), train_call_kwargs=calls,
        val_call_kwargs=calls, scheduler_type="none", hidden_states_dtype=torch.float32, log_freq=UNLOGGED,
    )  # fmt: skip
    train, valid = (DataLoader(cast("Any", part), batch_size=None) for part in (batches[:-1], batches[-1:]))
    with mock.patch.object(trainer, "get_local_rank", return_value=torch.device("cpu")):
        found = trainer.Trainer(model, config, train, valid)
    found.global_step = 1
    return found
