"""What can be wrong with the files of a checkpoint."""

from __future__ import annotations

from eagletrace.errors import EagletraceError


class CheckpointError(EagletraceError):
    """Files that are no checkpoint, are damaged or incomplete; the message names the file or tensor and the remedy."""
