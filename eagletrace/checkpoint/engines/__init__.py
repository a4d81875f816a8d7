"""What an engine makes of a draft's files: its naming rules for each release, as data, and what follows from them."""

from __future__ import annotations

from eagletrace.checkpoint.engines.landing import Landing, Misfit, layer_number, predict
from eagletrace.checkpoint.engines.release import Release, release

__all__ = ["Landing", "Misfit", "Release", "layer_number", "predict", "release"]
