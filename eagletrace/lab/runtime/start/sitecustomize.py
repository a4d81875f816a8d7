"""Imported at the start of each process of a lab server, unless another `sitecustomize` comes first.

The engine's modules are imported without the garbage collector, which takes a fifth of that time, in three processes of
each server. A server with a patched runtime is patched from here as well.
"""

import gc
import os
import sys
from typing import Any


def _collect_again(_module: Any) -> None:
    gc.enable()


if "resource_tracker" not in " ".join(sys.orig_argv):
    import wrapt

    gc.disable()
    for name in ("scheduler", "detokenizer_manager"):  # the last of its imports in one process or another
        wrapt.register_post_import_hook(_collect_again, f"sglang.srt.managers.{name}")

if os.environ.get("LAB_START"):
    from eagletrace.lab.runtime import arrange

    arrange(os.environ["LAB_START"])
