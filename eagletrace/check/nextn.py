"""What files tell of a layer of multi-token prediction: whether its class looks for it where it stands."""

from __future__ import annotations

from eagletrace.check.facts import Facts
from eagletrace.check.outcome import Outcome, alarm
from eagletrace.checkpoint.engines import layer_number


def elsewhere(f: Facts) -> Outcome | None:
    """The layer stands under another number than the one that its class loads; None where it does not, or where the
    class looks for no number.

    The number is that of the model's layers, or 0 where config.json has one layer: an export of the layer alone
    (`_initialize_nextn_conf` of 0.5.9, 0.5.20 and 0.5.23).
    """
    layers = f.settings.get("num_hidden_layers")
    if f.draft.algorithm != "NEXTN" or f.rules is None or not f.rules.numbered or layers is None:
        return None
    due = f"model.layers.{layer_number(f.settings)}."
    lost = [key for key in f.draft.names.values() if not key.startswith(due)]
    if not lost:
        return None
    return alarm(
        f"with num_hidden_layers {layers} the class loads what begins with {due}: {len(lost)} tensors of the layer "
        f"({lost[0]}) would land nowhere",
        [{"key": key, "due": due} for key in lost[:20]],
    )
