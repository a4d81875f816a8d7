"""Records a validation step of an EAGLE-3 draft in training, in the tables of a served run."""

from __future__ import annotations

from importlib.util import find_spec

from eagletrace.errors import EagletraceError

if find_spec("torch") is None:
    raise EagletraceError(
        "eagletrace.record_training needs torch, which is not installed in this environment: call it in the process "
        "that trains"
    )

from eagletrace.instrumentations.training.recording import TrainingRecording, record_training

__all__ = ["TrainingRecording", "record_training"]
