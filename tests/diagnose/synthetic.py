"""Synthetic runs: a healthy pair as the recorder describes it, and one small change for each fault."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagletrace.record.writer import TraceWriter

Row = dict[str, Any]
HIDDEN, AUX, VOCAB, DRAFT_VOCAB, LAYERS, INTERMEDIATE = 64, 3, 512, 384, 12, 128
DEFAULT_LAYERS = [2, 6, 9]
HEALTHY_RATES = (0.72, 0.75, 0.78)
LAYER = "model.midlayer"
SANE_MAP: Row = {
    "length": DRAFT_VOCAB, "min": 0, "max": 500, "in_range": True, "monotone": True, "unique": True,
    "identity": False, "t2d_agreement": 1.0,
}  # fmt: skip
ROPE: Row = {"theta": 10000.0, "scaling": "none", "head_dim": 32, "partial": None, "max_position": 4096}
REQUEST: Row = {"has_image": False, "has_grammar": False, "temperature": 0.0, "prompt_tokens": 0}
OFFSETS_AS_IDS: Row = {**SANE_MAP, "max": 116, "monotone": False, "unique": False, "t2d_agreement": 0.9}


def by(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a row (or a request's number), where the type checker cannot know what it is given."""
    return function


def param(name: str, shape: list[int], keys: Sequence[str], **changes: Any) -> Row:
    """A parameter that `keys` wrote fully."""
    elements = math.prod(shape)
    row: Row = {
        "side": "draft", "name": name, "elements": elements, "elements_loaded": elements, "checkpoint_keys": list(keys),
        "shared_with": None, "shape": shape, "dtype": "float32", "rms": 0.1, "checksum": "0" * 16, "epoch": 0,
        "constant": None, "nan_count": 0, "phase": "serving", "module_type": "Linear", "time_unix_nano": 2,
    }  # fmt: skip
    return {**row, **changes}


def key(name: str, shape: list[int], **changes: Any) -> Row:
    """A tensor of the checkpoint that was loaded."""
    elements = math.prod(shape)
    row: Row = {"key": name, "shape": shape, "dtype": "float32", "fate": "loaded", "elements": elements, "rms": 0.1}
    return row | changes


def _healthy_params() -> dict[str, Row]:
    rows = [
        param("model.embed_tokens.weight", [VOCAB, HIDDEN], [], elements_loaded=0, shared_with="target:embed"),
        param("model.fc.weight", [HIDDEN, AUX * HIDDEN], ["fc.weight"]),
        param(f"{LAYER}.self_attn.qkv_proj.weight", [2 * HIDDEN, 2 * HIDDEN],
              [f"midlayer.self_attn.{p}_proj.weight" for p in "qkv"]),
        param(f"{LAYER}.self_attn.o_proj.weight", [HIDDEN, HIDDEN], ["midlayer.self_attn.o_proj.weight"]),
        param(f"{LAYER}.mlp.gate_up_proj.weight", [2 * INTERMEDIATE, HIDDEN],
              ["midlayer.mlp.gate_proj.weight", "midlayer.mlp.up_proj.weight"]),
        param(f"{LAYER}.hidden_norm.weight", [HIDDEN], ["midlayer.hidden_norm.weight"]),
        param("model.norm.weight", [HIDDEN], ["norm.weight"], module_type="RMSNorm"),
        param("lm_head.weight", [DRAFT_VOCAB, HIDDEN], ["lm_head.weight"]),
    ]  # fmt: skip
    return {row["name"]: row for row in rows}


def _healthy_keys() -> dict[str, Row]:
    rows = [
        key("fc.weight", [HIDDEN, AUX * HIDDEN]),
        key("midlayer.self_attn.q_proj.weight", [HIDDEN, 2 * HIDDEN]),
        key("midlayer.self_attn.k_proj.weight", [HIDDEN // 2, 2 * HIDDEN]),
        key("midlayer.self_attn.v_proj.weight", [HIDDEN // 2, 2 * HIDDEN]),
        key("midlayer.self_attn.o_proj.weight", [HIDDEN, HIDDEN]),
        key("midlayer.mlp.gate_proj.weight", [INTERMEDIATE, HIDDEN]),
        key("midlayer.mlp.up_proj.weight", [INTERMEDIATE, HIDDEN]),
        key("midlayer.hidden_norm.weight", [HIDDEN]),
        key("norm.weight", [HIDDEN]),
        key("lm_head.weight", [DRAFT_VOCAB, HIDDEN]),
        key("d2t", [DRAFT_VOCAB], fate="consumed_as_attribute"),
        key("t2d", [VOCAB], fate="ignored_by_engine"),
    ]
    return {row["key"]: row for row in rows}


def _healthy_facts() -> dict[str, tuple[Any, Any, str]]:
    """key -> (actual, expected, source)."""
    width = AUX * HIDDEN
    pairs: dict[str, tuple[Any, Any]] = {
        "engine.version": ("0.5.23", None),
        "server.model_path": ("/models/target-a", None),
        "server.speculative_draft_model_path": ("/models/draft-b", None),
        "server.speculative_algorithm": ("EAGLE3", "EAGLE3"),
        "env.simulated_acceptance": (None, None),
        "target.num_hidden_layers": (LAYERS, None),
        "target.hidden_size": (HIDDEN, None),
        "target.vocab_size": (VOCAB, None),
        "draft.architecture": ("LlamaForCausalLMEagle3", None),
        "draft.draft_vocab_size": (DRAFT_VOCAB, DRAFT_VOCAB),
        "draft.tie_word_embeddings": (False, False),
        "draft.load_lm_head_from_target": (False, None),
        "draft.config": ({"architectures": ["LlamaForCausalLMEagle3"]}, None),
        "draft.fc": ({"in_features": width, "out_features": HIDDEN, "name": "model.fc"}, None),
        "d2t.in_checkpoint": (True, None),
        "d2t.length": (DRAFT_VOCAB, DRAFT_VOCAB),
        "d2t.all_zero": (False, None),
        "d2t.as_offsets": (SANE_MAP, None),
        "d2t.as_ids": (OFFSETS_AS_IDS, None),
        "t2d.in_checkpoint": (True, None),
        "t2d.agreement": ({"share": 1.0, "marked": DRAFT_VOCAB, "map_length": DRAFT_VOCAB}, None),
        "hot_token_id": (SANE_MAP, {"length": DRAFT_VOCAB, "max_below": VOCAB}),
        "draft.rope": (ROPE, None),
        "target.rope": (ROPE, None),
        "server.chunked_prefill_size": (2048, None),
        "aux.use_aux_hidden_state": (True, True),
        "aux.count": (AUX, AUX),
        "aux.config_ids": ({}, None),
        "aux.layers_requested": (None, None),
        "aux.layers_captured": (DEFAULT_LAYERS, DEFAULT_LAYERS),
        "aux.capture_enabled": ({"LlamaForCausalLM": True}, None),
        "aux.set_layers_calls": (1, None),
        "embed.in_checkpoint": (False, None),
        "embed.shared_with_target": (True, None),
        "embed.replaced": (None, None),
        "head.in_checkpoint": (True, None),
        "head.shared_with_target": (False, None),
        "head.replaced": ({"changed": False, "relative_difference": None, "cosine": None, "by": None}, None),
        "forward.target_hidden_width": (width, width),
        "forward.draft_input_width": (width, width),
        "forward.fc_applied": (True, True),
    }
    return {name: (actual, expected, "test") for name, (actual, expected) in pairs.items()}


@dataclass
class Synthetic:
    """A run to be written; change its facts, parameters, keys, events or rates, then `write` it."""

    facts: dict[str, tuple[Any, Any, str]] = field(default_factory=_healthy_facts)
    params: dict[str, Row] = field(default_factory=_healthy_params)
    keys: dict[str, Row] = field(default_factory=_healthy_keys)
    events: list[tuple[str, Row]] = field(default_factory=list[tuple[str, Row]])
    hooks: list[Row] = field(default_factory=list[Row])
    hidden: list[Row] = field(default_factory=list[Row])
    rates: tuple[float, ...] = HEALTHY_RATES
    rounds: int = 300
    requests: int = 3
    out_of_vocab: float = 0.02
    far_rank: int = 3
    entropy: float | None = 1.5
    dead_from: int | None = None
    level: str = "tokens"
    engine_rounds_factor: float = 1.0
    rounds_recorded: bool = True
    wrong_expectation: bool = False
    seed: int = 0
    round_columns: Callable[[Row], Row] = lambda row: {}  # of a round, from its other columns
    request_columns: Callable[[int], Row] = lambda seq: {}
    rates_of: Callable[[Row], Sequence[float]] | None = None  # of a round and the columns of its request
    token_of: Callable[[Row], int | None] = lambda row: None  # the drafted token, None: any
    target_of: Callable[[Row, int], int] = lambda row, depth: 6  # the target's choice after a node
    masked: Callable[[Row, bool], bool | None] = lambda row, accepted: None  # grammar_masked of a node
    unjudged: Callable[[Row], bool] = lambda row: False  # whether a round's verdict was not recorded
    kept: Callable[[Row], bool] = lambda node: True  # whether a node of a tree was recorded
    vocab_known: bool = True  # whether it was recorded which tokens the draft vocabulary holds
    rope_shift: int | None = 0  # positions too far from depth 2 on; None: not recorded
    rope_shift_of: Callable[[Row], int] | None = None  # the same, of a round
    process: Row = field(default_factory=lambda: {"pid": 7, "tp_rank": 0, "dp_rank": None})
    peers: list[Synthetic] = field(default_factory=list["Synthetic"])  # other ranks of the same run

    def fact(self, name: str, actual: Any, expected: Any = ..., source: str = "test") -> Synthetic:
        """Set a fact; its expected value stays unless given."""
        before = self.facts.get(name, (None, None, source))
        self.facts[name] = (actual, before[1] if expected is ... else expected, source)
        return self

    def without(self, *names: str) -> Synthetic:
        """Facts that were not recorded."""
        for name in names:
            del self.facts[name]
        return self

    def event(self, kind: str, **detail: Any) -> Synthetic:
        self.events.append((kind, detail))
        return self

    def unwritten(self, name: str, loaded: int = 0, **changes: Any) -> Synthetic:
        """A parameter that no tensor, or not all of it, was written into."""
        self.params[name] |= {"elements_loaded": loaded, "checkpoint_keys": [] if not loaded else ["some"], **changes}
        return self

    def dropped(self, name: str, shape: list[int] | None = None) -> Synthetic:
        """A tensor of the checkpoint that landed nowhere."""
        self.keys[name] = {**(self.keys.get(name) or key(name, shape or [])), "fate": "dropped"}
        return self

    def with_peer(self, peer: Synthetic, *, tp: int = 0, dp: int | None = None) -> Synthetic:
        """A run of one more rank; the first is rank 0 of its kind."""
        if dp is not None:
            self.process["dp_rank"] = 0
        self.peers.append(peer)
        peer.process = {"pid": 7 + len(self.peers), "tp_rank": tp, "dp_rank": dp}
        return self

    def write(self, parent: Path, name: str = "run-1") -> Path:
        """Write the run below `parent` and return its folder."""
        folder = parent / name
        folder.mkdir(parents=True)
        run = {"schema_version": 1, "run_id": name, "start_time_unix_nano": 1, "host": "node", "sglang": "0.5.23",
               "settings": {"level": self.level}}  # fmt: skip
        (folder / "run.json").write_text(json.dumps(run))
        for rank in (self, *self.peers):
            rank._write_tables(folder)
        return folder

    def _write_tables(self, folder: Path) -> None:
        writer = TraceWriter(folder, {"host": "node", "pp_rank": 0, **self.process})
        writer.write("contract", [
            {"key": k, "actual": json.dumps(a), "expected": None if e is None else json.dumps(e), "source": s,
             "time_unix_nano": 1}
            for k, (a, e, s) in self.facts.items()
        ])  # fmt: skip
        writer.write("params", list(self.params.values()))
        writer.write("checkpoint_keys", [{**row, "landed_in": "[]"} for row in self.keys.values()])
        writer.write("events", [
            {"time_unix_nano": d.get("at", 3), "kind": k, "detail": json.dumps(d)} for k, d in self.events
        ])  # fmt: skip
        writer.write("hooks", self.hooks)
        writer.write("hidden", self.hidden)
        if self.rounds:
            self._write_rounds(writer)

    def _write_rounds(self, writer: TraceWriter) -> None:
        rng = random.Random(self.seed)
        rounds, drafts, verifies = list[Row](), list[Row](), list[Row]()
        done: dict[int, tuple[int, int]] = {}
        fused = self.facts.get("forward.fc_applied", (True,))[0]
        for number in range(1, self.rounds + 1):
            seq = 1 + (number - 1) * self.requests // self.rounds
            count, sum_ = done.get(seq, (0, 0))
            row: Row = {
                "round": number, "request_round": count + 1, "request_seq": seq, "request_id": f"req-{seq}", "row": 0,
                "batch_size": 1, "position": number, "cached_tokens": 0, "counted": True, "fc_applied": fused,
                "graph": False, "time_unix_nano": 1000 * number,
            }  # fmt: skip
            row |= self.round_columns(row)
            accepted, nodes, drafted = self._round(rng, row)
            verifies += filter(self.kept, nodes)
            drafts += drafted
            done[seq] = (count + 1, sum_ + accepted)
            verdict = None if self.unjudged(row) else accepted
            rounds.append({**row, "drafted": len(drafted), "accepted": verdict, "committed": accepted + 1})
        if self.level == "tokens" and self.rounds_recorded:
            writer.write("rounds", rounds)
            writer.write("drafts", drafts)
            writer.write("verifies", verifies)
        if self.rounds_recorded:
            writer.write("totals", [self._totals(rounds)])
        writer.write("requests", [
            {"request_seq": seq, "request_id": f"req-{seq}", "request_kind": "user", "output_tokens": count + total + 1,
             "finish_reason": "length", "end_time_unix_nano": 9, "engine_accepted": total,
             "engine_rounds": round(count * self.engine_rounds_factor), "time_unix_nano": 9,
             **REQUEST, **self.request_columns(seq)}
            for seq, (count, total) in done.items()
        ])  # fmt: skip

    def _round(self, rng: random.Random, row: Row) -> tuple[int, list[Row], list[Row]]:
        place = {"round": row["round"], "request_seq": row["request_seq"]}
        whole = {**REQUEST, **self.request_columns(row["request_seq"]), **row}
        token, fixed = rng.randrange(DRAFT_VOCAB), self.token_of(whole)
        token = token if fixed is None else fixed
        rates = list(self.rates if self.rates_of is None else self.rates_of(whole))
        if self.dead_from is not None and token >= self.dead_from:
            rates[0] = 0.0
        accepted = next((k for k, rate in enumerate(rates) if rng.random() >= rate), len(rates))
        nodes: list[Row] = [{**place, "node": 0, "depth": 0, "draft_token": 5, "reached": True,
                             "position": row["position"], "target_token": self.target_of(whole, 0)}]  # fmt: skip
        drafts: list[Row] = []
        for depth in range(1, len(rates) + 1):
            ok, known = depth <= accepted, depth <= accepted or rng.random() >= self.out_of_vocab
            nodes.append({
                **place, "node": depth, "parent_node": depth - 1, "depth": depth, "draft_token": token,
                "expected_token": token if ok or self.wrong_expectation else token + 1,
                "target_token": self.target_of(whole, depth),
                "reached": depth <= accepted + 1, "accepted": ok,
                "target_token_in_draft_vocab": known if self.vocab_known else None,
                "draft_rank_of_target_token": 1 if ok else self.far_rank if known else None,
                "position": row["position"] + depth, "grammar_masked": self.masked(whole, ok),
            })  # fmt: skip
            shift = self.rope_shift if self.rope_shift_of is None else self.rope_shift_of(whole)
            shift = None if depth == 1 else shift
            rope = None if shift is None else row["position"] + depth - 2 + shift
            drafts.append({**place, "node": depth, "parent_node": depth - 1, "depth": depth, "token": token,
                           "draft_vocab_id": token, "draft_entropy": self.entropy, "position": row["position"] + depth,
                           "rope_position": rope})  # fmt: skip
        return accepted, nodes, drafts

    def _totals(self, rounds: list[Row]) -> Row:
        depths = range(1, len(self.rates) + 1)
        return {
            "time_unix_nano": 9, "rounds": len(rounds), "drafted": sum(r["drafted"] for r in rounds),
            "accepted": sum(r["committed"] - 1 for r in rounds),
            "reached_by_depth": [sum(r["committed"] >= d for r in rounds) for d in depths],
            "accepted_by_depth": [sum(r["committed"] > d for r in rounds) for d in depths],
        }  # fmt: skip


POOR = (0.05, 0.1, 0.1)
