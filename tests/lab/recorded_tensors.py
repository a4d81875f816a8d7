"""What a run's table `tensors` says of each request, and what the target alone says of the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from eagletrace.store import Run

Array = npt.NDArray[Any]
Key = tuple[str, int | None, int | None]  # stage, layer, depth


@dataclass
class Recorded:
    """One request: the first row's position and all rows of a stage over positions, and single rows by round."""

    seq: int
    tokens: list[int]
    prompt: int
    chunk_ends: set[int] = field(default_factory=set[int])  # the last positions of a prompt's chunks but the last
    over: dict[Key, dict[int, Array]] = field(default_factory=dict[Key, "dict[int, Array]"])
    rounds: dict[tuple[str, int], dict[int, tuple[int, Array]]] = field(
        default_factory=dict[tuple[str, int], "dict[int, tuple[int, Array]]"]
    )

    def positions(self, stage: str, layer: int | None = None) -> list[int]:
        """Positions that have a row."""
        return sorted(self.over.get((stage, layer, None), {}))

    def values(self, stage: str, layer: int | None = None) -> Array:
        """Rows by position."""
        rows = self.over[stage, layer, None]
        return np.stack([rows[position] for position in sorted(rows)])


def read(run: Run) -> Iterator[Recorded]:
    """The requests of a run that have tensors. AssertionError if a position was stored twice."""
    outputs = {row["request_seq"]: row["output_ids"] for row in run.rows("SELECT * FROM outputs")}
    found: dict[int, Recorded] = {}
    for row in run.rows("SELECT * FROM tensors ORDER BY request_seq, stage <> 'prompt_ids', position"):
        data = np.frombuffer(row["data"], dtype=row["dtype"]).reshape(row["shape"])
        seq, stage = row["request_seq"], row["stage"]
        if stage == "prompt_ids":
            found[seq] = Recorded(seq, [*data.tolist(), *outputs.get(seq, [])], len(data))
        elif row["depth"] is not None:
            found[seq].rounds.setdefault((stage, row["depth"]), {})[row["round"]] = (row["position"], data)
        else:
            end = row["position"] + len(data)
            if row["round"] is None and end < found[seq].prompt:
                found[seq].chunk_ends.add(end - 1)
            rows = found[seq].over.setdefault((stage, row["layer"], None), {})
            for place, values in enumerate(data):
                assert row["position"] + place not in rows, (seq, stage, row["position"] + place)
                rows[row["position"] + place] = values
    yield from found.values()


def layer_inputs(target: Path, tokens: Sequence[int]) -> Array:
    """Inputs of all layers and, last, the output of the last, [layers + 1, tokens, H], by Transformers in float32."""
    from transformers import LlamaForCausalLM

    from eagletrace.lab.pair.rollout import states_of

    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    inputs, _ = states_of(model, torch.tensor([list(tokens)]))
    return torch.stack([state[0] for state in inputs]).numpy()
