"""Checkpoints on disk: safetensors headers, configurations, and what engines make of a tensor's name. No torch."""

from __future__ import annotations

from eagletrace.checkpoint.draft import Draft, describe
from eagletrace.checkpoint.errors import CheckpointError
from eagletrace.checkpoint.folder import Checkpoint, open_checkpoint
from eagletrace.checkpoint.header import TensorInfo

__all__ = ["Checkpoint", "CheckpointError", "Draft", "TensorInfo", "describe", "open_checkpoint"]
