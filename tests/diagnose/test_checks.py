"""Each check alone: it fires, stays quiet, says unknown without its data, and keeps its threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from cases import (
    d2t_absolute,
    d2t_missing,
    d2t_partly_wrong,
    d2t_partly_wrong_but_sane,
    d2t_zero,
    embeddings_in_file,
    extra_key,
    full_vocabulary,
    head_overwritten,
    layer_ids_shifted,
    layer_ids_unread,
    layer_keys_0_5_9,
    no_final_norm,
    no_lm_head,
    no_v_proj,
    other_layers,
    served_as_eagle,
    t2d_disagrees,
    target_too_shallow,
    tied_embeddings,
    unread_ids_equal_defaults,
    use_aux_false,
)
from runtime_cases import (
    before_last_row,
    cached,
    constant_token,
    embeddings_of_a_relative,
    failing,
    falls_along_requests,
    first_round,
    grammar,
    grammar_masked,
    graph,
    graph_of_two,
    graph_width,
    image,
    input_norm,
    late,
    length_limit,
    other_rope,
    positions_shifted,
    quantised,
    recurrence,
    sampled,
    short_context,
    updated,
    varied,
    wrong_values,
)
from synthetic import AUX, DRAFT_VOCAB, HIDDEN, LAYER, SANE_MAP, VOCAB, Row, Synthetic

from eagletrace.diagnose import CAUSES, Check, policy
from eagletrace.diagnose.acceptance import measure
from eagletrace.diagnose.checks import FACT_PREFIX, CheckFile, CheckRunner, load_checks
from eagletrace.diagnose.statistics import wilson
from eagletrace.format import TABLES
from eagletrace.format.facts import CONTRACT_KEYS
from eagletrace.record.writer import TraceWriter
from eagletrace.store import open_run

CHECKS = load_checks()
Build = Callable[[], Synthetic]
TOP = "eagle_aux_hidden_state_layer_ids"


def outcome(check_id: str, synthetic: Synthetic, tmp_path: Path, *, hidden: list[Row] | None = None) -> Check:
    folder = synthetic.write(tmp_path)
    if hidden:
        TraceWriter(folder, {"host": "node", "pid": 8, "tp_rank": 0}).write("hidden", hidden)
    with open_run(folder) as run:
        measure(run)
        return CheckRunner(run).run(CHECKS[check_id])


def all_outcomes(synthetic: Synthetic, tmp_path: Path, checks: Iterable[CheckFile]) -> dict[str, Check]:
    with open_run(synthetic.write(tmp_path)) as run:
        measure(run)
        runner = CheckRunner(run)
        return {check.id: runner.run(check) for check in checks}


def edited(**facts: object) -> Synthetic:
    run = Synthetic()
    for name, value in facts.items():
        run.fact(name.replace("__", "."), value)
    return run


def hook(status: str, *, required: bool = True) -> Synthetic:
    run = Synthetic()
    run.hooks = [{"target": "v2.verify", "status": status, "required": required, "detail": "moved", "errors": 0}]
    return run


def nan_in(name: str, **changes: object) -> Synthetic:
    run = Synthetic()
    run.params[name] |= {"nan_count": 4, **changes}
    return run


def rejected_equal() -> Synthetic:
    run = Synthetic()
    run.wrong_expectation = True
    return run


OF_STATES = {"recurrence.depth2", "recurrence.rms", "numerics.nan_hidden", "rope.settings", "target.sibling"}


def test_what_asks_for_the_target_s_states_or_copies_does_not_apply_to_a_language_model_of_its_own(
    tmp_path: Path,
) -> None:
    alone = all_outcomes(edited(draft__family="standalone"), tmp_path / "alone", CHECKS.values())
    eagle3 = all_outcomes(edited(draft__family="eagle3"), tmp_path / "eagle3", CHECKS.values())
    assert {check.id for check in CHECKS.values() if check.not_for[0]} == OF_STATES
    assert {name for name in alone if alone[name] != eagle3[name]} == OF_STATES
    assert {(alone[name].status, alone[name].reason[:27]) for name in OF_STATES} == {
        ("not_applicable", "a language model of its own")
    }


NAN_HIDDEN: Row = {"round": 1, "request_seq": 1, "stage": "draft_in", "nan_count": 2, "rms": 1.0}
FIRES: dict[str, list[Build]] = {
    "config.algorithm": [served_as_eagle, lambda: edited(server__speculative_algorithm="STANDALONE")],
    "config.simulated": [lambda: edited(env__simulated_acceptance="2.5")],
    "weights.not_loaded": [layer_keys_0_5_9],
    "weights.layers": [lambda: Synthetic().dropped("layers.1.self_attn.q_proj.weight", [HIDDEN, HIDDEN])],
    "weights.missing": [no_lm_head, no_v_proj],
    "weights.neutral": [no_final_norm, lambda: no_final_norm().dropped("final_norm.weight", [HIDDEN])],
    "weights.unused_keys": [extra_key],
    "weights.nan_unwritten": [no_lm_head],
    "numerics.nan_weights": [lambda: nan_in("model.fc.weight")],
    "vocab.d2t_encoding": [d2t_absolute, lambda: edited(
        d2t__as_ids={**SANE_MAP, "max": 400}, d2t__as_offsets={**SANE_MAP, "max": 511, "t2d_agreement": 0.7}),
        lambda: edited(hot_token_id={**SANE_MAP, "max": 116, "unique": False})],
    "vocab.d2t_missing": [d2t_zero, d2t_missing, lambda: edited(hot_token_id=None)],
    "vocab.d2t_mismatch": [d2t_partly_wrong, lambda: edited(d2t__as_offsets={**SANE_MAP, "in_range": False})],
    "vocab.d2t_order": [lambda: edited(d2t__as_offsets={**SANE_MAP, "monotone": False})],
    "vocab.d2t_length": [tied_embeddings],
    "vocab.t2d": [t2d_disagrees],
    "vocab.d2t_region": [d2t_partly_wrong_but_sane],
    "vocab.coverage": [lambda: Synthetic(rates=(0.1, 0.1, 0.1), out_of_vocab=0.5)],
    "aux.flag": [use_aux_false],
    "aux.states": [target_too_shallow, use_aux_false, lambda: edited(aux__layers_captured=[2, 6, 99])],
    "aux.asked": [use_aux_false, lambda: edited(aux__capture_enabled={"Wrapper": False, "language_model": False})],
    "aux.width_hidden": [use_aux_false, lambda: edited(forward__target_hidden_width=2 * HIDDEN)],
    "aux.width": [use_aux_false, lambda: edited(forward__draft_input_width=100)],
    "aux.layers": [layer_ids_shifted, layer_ids_unread, lambda: edited(aux__layers_captured=[1, 5, 8])],
    "aux.ids_unread": [unread_ids_equal_defaults, other_layers],
    "fc.applied": [use_aux_false],
    "embed.replaced": [embeddings_in_file],
    "lm_head.replaced": [head_overwritten, served_as_eagle],
    "lm_head.tied": [tied_embeddings],
    "sampling.rule": [rejected_equal],
    "draft.target_rank": [lambda: Synthetic(rates=(0.1, 0.1, 0.1), far_rank=150)],
    "draft.entropy": [lambda: Synthetic(entropy=math.log(DRAFT_VOCAB) * 0.97), lambda: Synthetic(entropy=math.nan)],
    "engine.exception": [d2t_absolute],
    "trace.hooks": [lambda: hook("missing"), lambda: hook("shut_out", required=False)],
    "trace.rows_dropped": [lambda: Synthetic().event("rows_dropped", table="verifies", rows=9, reason="buffer full")],
    "metric.engine_counts": [lambda: Synthetic(engine_rounds_factor=1.3)],
    "verify.skipped": [lambda: Synthetic(rounds_recorded=False, engine_rounds_factor=0.0)],
    "numerics.nan_hidden": [Synthetic],
    "kv.prefix": [lambda: failing(cached)],
    "kv.prefix_low": [lambda: failing(cached, 0.3)],
    "batch.row": [lambda: failing(before_last_row)],
    "batch.row_low": [lambda: failing(before_last_row, 0.3)],
    "round.first": [lambda: failing(first_round)],
    "round.first_low": [lambda: failing(first_round, 0.1)],
    "graph.split": [lambda: failing(graph), lambda: failing(graph_of_two)],
    "graph.split_low": [lambda: failing(graph, 0.3)],
    "graph.width": [graph_width],
    "multimodal.images": [lambda: failing(image)],
    "multimodal.images_low": [lambda: failing(image, 0.3)],
    "grammar.requests": [lambda: failing(grammar)],
    "grammar.requests_low": [lambda: failing(grammar, 0.3)],
    "grammar.masked": [grammar_masked],
    "sampling.temperature": [lambda: failing(sampled, 0.3)],
    "length.limit": [length_limit],
    "length.config": [short_context],
    "rope.trend": [falls_along_requests],
    "rope.settings": [other_rope],
    "position.rope": [positions_shifted],
    "position.offset": [positions_shifted],
    "recurrence.depth2": [recurrence],
    "recurrence.rms": [lambda: Synthetic(hidden=[{**NAN_HIDDEN, "nan_count": 0, "stage": stage, "rms": rms}
                                                 for stage, rms in (("fc_out", 1.0), ("draft_in", 30.0))])],
    "draft.constant": [constant_token],
    "weights.changed": [lambda: updated("draft", "target")],
    "weights.one_sided": [lambda: updated("target")],
    "weights.step": [lambda: failing(late)],
    "weights.scales": [lambda: quantised("dropped")],
    "weights.decoded": [wrong_values, lambda: quantised(decoded=False)],
    "fc.norm": [lambda: input_norm(asked=False, tensor=True, served=False, loaded=False),
                lambda: input_norm(asked=True, tensor=False, served=False)],
    "target.sibling": [embeddings_of_a_relative],
    "ranks.rounds": [lambda: Synthetic().with_peer(Synthetic(seed=1), tp=1)],
    "ranks.weights": [lambda: Synthetic().with_peer(nan_in("model.fc.weight", checksum="f" * 16), tp=1)],
    "ranks.embed": [lambda: Synthetic().with_peer(edited(embed__shared_with_target=False), tp=1)],
    "ranks.head": [lambda: Synthetic().with_peer(edited(head__shared_with_target=True), dp=1)],
    "ranks.facts": [lambda: Synthetic().with_peer(edited(aux__count=1), tp=1)],
    "ranks.acceptance": [lambda: Synthetic().with_peer(Synthetic(rates=(0.1, 0.1, 0.1)), dp=1)],
}  # fmt: skip


def test_every_check_is_covered_here() -> None:
    assert set(FIRES) == set(CHECKS)


@pytest.mark.parametrize(("check_id", "build"), [(i, b) for i, builds in FIRES.items() for b in builds])
def test_fires(check_id: str, build: Build, tmp_path: Path) -> None:
    hidden = [NAN_HIDDEN] if check_id == "numerics.nan_hidden" else None
    found = outcome(check_id, build(), tmp_path, hidden=hidden)
    assert found.status == "alarm", found.reason
    assert found.reason and found.evidence and found.evidence[0].rows[0]["subject"]


def test_all_stay_quiet_on_a_healthy_run(tmp_path: Path) -> None:
    healthy = varied(hooks=hook("installed").hooks)
    healthy.hidden = [{**NAN_HIDDEN, "nan_count": 0, "stage": stage} for stage in ("fc_out", "draft_in")]
    found = all_outcomes(healthy, tmp_path, CHECKS.values())
    assert {i: c.reason for i, c in found.items() if c.status not in ("ok", "not_applicable")} == {}
    alone = [i for i in CHECKS if i.startswith("ranks.")]  # test_ranks.py has several
    never = ["embed.replaced", "fc.norm", "grammar.masked", "graph.width", "target.sibling", "weights.changed",
             "weights.one_sided", "weights.scales"]  # fmt: skip
    assert [i for i, c in found.items() if c.status == "not_applicable"] == sorted([*never, *alone])


def test_all_say_unknown_and_what_to_record_when_nothing_was(tmp_path: Path) -> None:
    empty = Synthetic(rounds=0, params={}, keys={}, facts={})
    found = all_outcomes(empty, tmp_path, [c for c in CHECKS.values() if c.requires])
    assert {i: c.status for i, c in found.items() if c.status != "unknown"} == {}
    assert {i: c.reason for i, c in found.items() if "EAGLETRACE" not in c.reason and "send" not in c.reason} == {}


@pytest.mark.parametrize("fact", sorted({r for c in CHECKS.values() for r in c.requires if r.startswith(FACT_PREFIX)}))
def test_checks_say_unknown_without_one_of_their_facts(fact: str, tmp_path: Path) -> None:
    name = fact.removeprefix(FACT_PREFIX)
    checks = [c for c in CHECKS.values() if fact in c.requires]
    found = all_outcomes(hook("installed").without(name), tmp_path, checks)
    assert {c.status for c in found.values()} == {"unknown"}
    assert all(name in c.reason for c in found.values())


def test_a_fact_that_could_not_be_observed_is_no_alarm(tmp_path: Path) -> None:
    unseen = hook("installed")
    for name in unseen.facts:
        unseen.fact(name, None, None)
    for row in unseen.params.values():
        row |= {"elements_loaded": None, "nan_count": None, "constant": None, "rms": None}
    found = all_outcomes(unseen, tmp_path, CHECKS.values())
    assert {i: c.reason for i, c in found.items() if c.status == "alarm"} == {}


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.id)
def test_front_matter(check: CheckFile) -> None:
    assert check.file.name == check.id.replace(".", "_")
    assert check.file.title
    assert check.severity in ("critical", "warning")
    assert check.certainty in ("sure", "possible", "symptom", "harmless")
    assert all(cause in CAUSES for cause in check.causes)
    assert check.causes or check.certainty in ("harmless", "symptom")
    facts = [r.removeprefix(FACT_PREFIX) for r in check.requires if r.startswith(FACT_PREFIX)]
    assert all(fact in CONTRACT_KEYS for fact in facts)
    tables = {r for r in check.requires if not r.startswith(FACT_PREFIX)}
    assert tables <= {*TABLES, "position_stats", "first_draft_tokens", "first_draft_entropy"}
    assert {n: p.default for n, p in check.file.params.items()} == {n: policy.SQL_PARAMS[n] for n in check.file.params}


# ---- near the thresholds


@pytest.mark.parametrize(("difference", "status"), [(0.049, "ok"), (0.051, "alarm")])
@pytest.mark.parametrize("check_id", ["embed.replaced", "lm_head.replaced"])
def test_tensors_equal_up_to_rounding_are_the_same(
    check_id: str, difference: float, status: str, tmp_path: Path
) -> None:
    run = embeddings_in_file() if check_id == "embed.replaced" else Synthetic()
    replaced = {"changed": True, "relative_difference": difference, "cosine": 1.0, "by": "set_embed"}
    run.fact("embed.replaced" if check_id == "embed.replaced" else "head.replaced", replaced)
    assert outcome(check_id, run, tmp_path).status == status


def test_coverage_needs_the_interval_above_its_threshold(tmp_path: Path) -> None:
    """Of 300 first drafts a quarter plus five points is enough, a quarter alone is not."""
    for share, status in ((0.25, "ok"), (0.38, "alarm")):
        run = Synthetic(rates=(0.0, 0.0, 0.0), out_of_vocab=share)
        found = outcome("vocab.coverage", run, tmp_path / f"{share}")
        row = found.evidence[0].rows[0]
        low, _ = wilson(row["out_of_vocabulary"], row["positions"])
        assert (found.status, low > policy.OUT_OF_VOCAB_SHARE) == (status, status == "alarm")


@pytest.mark.parametrize(("rounds", "status"), [(29, "unknown"), (30, "alarm")])
def test_ranks_and_entropy_need_enough_rounds(rounds: int, status: str, tmp_path: Path) -> None:
    run = Synthetic(rates=(0.0, 0.0, 0.0), rounds=rounds, far_rank=50, entropy=5.9, out_of_vocab=0.0)
    checks = [CHECKS[i] for i in ("draft.target_rank", "draft.entropy")]
    assert {c.status for c in all_outcomes(run, tmp_path, checks).values()} == {status}


@pytest.mark.parametrize(("factor", "status"), [(1.005, "ok"), (1.02, "alarm")])
def test_counts_may_differ_by_what_the_end_of_a_recording_explains(factor: float, status: str, tmp_path: Path) -> None:
    run = Synthetic(rounds=600, requests=1, engine_rounds_factor=factor)
    assert outcome("metric.engine_counts", run, tmp_path).status == status


# ---- what looks alike


def test_a_dropped_key_that_fits_only_a_written_parameter_is_left_over(tmp_path: Path) -> None:
    assert outcome("weights.not_loaded", extra_key(), tmp_path).status == "ok"


def test_a_missing_part_is_not_blamed_on_a_key_too_large_for_it(tmp_path: Path) -> None:
    run = no_v_proj().dropped("other.weight", [HIDDEN, 2 * HIDDEN])
    assert outcome("weights.not_loaded", run, tmp_path).status == "ok"


def test_a_dropped_part_of_a_fused_parameter_is_found(tmp_path: Path) -> None:
    run = no_v_proj().dropped("midlayer.self_attn.value.weight", [HIDDEN // 2, 2 * HIDDEN])
    found = outcome("weights.not_loaded", run, tmp_path)
    assert found.status == "alarm"
    assert found.evidence[0].rows[0]["fits"] == f"{LAYER}.self_attn.qkv_proj.weight"


def test_shared_parameters_and_computed_buffers_need_no_tensor(tmp_path: Path) -> None:
    run = Synthetic().unwritten("model.norm.weight", shared_with="target:norm")
    run.params["cache"] = {**run.params["model.fc.weight"], "name": f"{LAYER}.self_attn.rotary_emb.cos_sin_cache",
                           "elements_loaded": 0}  # fmt: skip
    assert outcome("weights.missing", run, tmp_path).status == "ok"


def test_zero_offsets_are_right_where_the_draft_vocabulary_is_the_first_part(tmp_path: Path) -> None:
    run = d2t_zero().fact("d2t.as_offsets", {**SANE_MAP, "max": DRAFT_VOCAB - 1, "identity": True})
    assert outcome("vocab.d2t_missing", run, tmp_path).status == "ok"


def test_a_full_vocabulary_needs_no_map(tmp_path: Path) -> None:
    found = outcome("vocab.d2t_missing", full_vocabulary(), tmp_path)
    assert (found.status, str(VOCAB) in found.reason) == ("not_applicable", True)


def test_ids_in_either_convention_are_right_where_the_engine_does_not_read_them(tmp_path: Path) -> None:
    for ids in ([1, 5, 8], [2, 6, 9]):
        run = edited(aux__config_ids={TOP: ids})
        assert outcome("aux.layers", run, tmp_path / str(ids[0])).status == "ok"


def test_ids_of_a_library_that_means_inputs_have_one_meaning(tmp_path: Path) -> None:
    run = edited(aux__config_ids={TOP: [1, 5, 8]}, draft__config={"speculators_version": "0.3"})
    found = outcome("aux.layers", run, tmp_path)
    assert found.status == "alarm"
    assert "meaning their inputs" in found.reason


def test_an_eagle1_draft_needs_no_aux_states(tmp_path: Path) -> None:
    run = Synthetic().fact("server.speculative_algorithm", "EAGLE", "EAGLE")
    for name in ("aux.use_aux_hidden_state", "aux.count", "aux.layers_captured", "forward.target_hidden_width",
                 "forward.draft_input_width"):  # fmt: skip
        run.fact(name, None, None)
    run.fact("aux.use_aux_hidden_state", True, None).fact("aux.count", 0, None)
    run.fact("draft.fc", {"in_features": 2 * HIDDEN, "out_features": HIDDEN, "name": "model.fc"})
    ids = [name for name in CHECKS if name.startswith("aux.")]
    found = all_outcomes(run, tmp_path, [CHECKS[i] for i in (*ids, "fc.applied")])
    assert len(ids) == 7
    assert {name: c.status for name, c in found.items()} == {**dict.fromkeys(ids, "not_applicable"), "fc.applied": "ok"}


def test_what_an_eagle1_draft_is_fed_is_compared_before_fc(tmp_path: Path) -> None:
    """At depth 1 the target's state, at depth 2 the draft's own: both go through `fc`."""
    states = [{**NAN_HIDDEN, "nan_count": 0, "stage": stage, "rms": rms}
              for stage, rms in (("target_aux", 30.0), ("fc_out", 1.0), ("draft_in", 1.0))]  # fmt: skip
    for family, status in (("eagle", "alarm"), ("eagle3", "ok")):
        run = Synthetic(hidden=states).fact("draft.family", family)
        assert outcome("recurrence.rms", run, tmp_path / family).status == status


def test_a_width_that_is_no_multiple_is_a_mismatch_and_not_a_missing_capture(tmp_path: Path) -> None:
    run = edited(forward__target_hidden_width=AUX * HIDDEN + 8, forward__draft_input_width=AUX * HIDDEN + 8)
    found = all_outcomes(run, tmp_path, [CHECKS[i] for i in ("aux.width_hidden", "aux.width")])
    assert [c.status for c in found.values()] == ["ok", "alarm"]


def padded() -> Synthetic:
    """358 rows of head and map, served in a head of 384 rows."""
    run = Synthetic().fact("draft.draft_vocab_size", 384, 358).fact("d2t.length", 358, 384)
    run.params["lm_head.weight"] |= {"elements_loaded": 358 * HIDDEN, "module_type": "ParallelLMHead"}
    return run


@pytest.mark.parametrize("check_id", ["weights.missing", "vocab.d2t_length", "vocab.d2t_missing"])
def test_padding_rows_are_not_missing(check_id: str, tmp_path: Path) -> None:
    assert outcome(check_id, padded(), tmp_path).status == "ok"


def test_a_head_padded_to_the_target_vocabulary_still_needs_its_map(tmp_path: Path) -> None:
    run = d2t_missing().fact("draft.draft_vocab_size", VOCAB, VOCAB - 12)
    assert outcome("vocab.d2t_missing", run, tmp_path).status == "alarm"


def test_more_rows_than_padding_are_missing(tmp_path: Path) -> None:
    run = padded()
    run.params["lm_head.weight"]["elements_loaded"] = 320 * HIDDEN
    assert outcome("weights.missing", run, tmp_path).status == "alarm"
    assert outcome("vocab.d2t_length", run.fact("d2t.length", 320, 384), tmp_path / "b").status == "alarm"


def test_one_dead_stretch_among_dead_ones_says_nothing(tmp_path: Path) -> None:
    run = d2t_partly_wrong_but_sane()
    run.rates = (0.0, 0.0, 0.0)
    assert outcome("vocab.d2t_region", run, tmp_path).status == "ok"


def test_a_dead_stretch_that_t2d_does_not_contradict_says_nothing(tmp_path: Path) -> None:
    agree, other_size = d2t_partly_wrong_but_sane(), d2t_partly_wrong_but_sane()
    agree.fact("t2d.agreement", {"share": 1.0, "marked": 384, "map_length": 384})
    other_size.fact("t2d.agreement", {"share": 0.9, "marked": 300, "map_length": 384})
    for name, run in (("a", agree), ("b", other_size)):
        found = outcome("vocab.d2t_region", run, tmp_path / name)
        assert (found.status, "none of" in found.reason) == ("ok", True)


def test_one_bad_token_is_no_dead_stretch(tmp_path: Path) -> None:
    run = d2t_partly_wrong_but_sane()
    run.dead_from = DRAFT_VOCAB - 4
    run.rounds = 2500
    assert outcome("vocab.d2t_region", run, tmp_path).status == "ok"


def test_parameters_of_like_shapes_are_matched_by_name(tmp_path: Path) -> None:
    """Here down_proj has the shape of q_proj: each dropped tensor is told beside the parameter of its own part."""
    run = layer_keys_0_5_9()
    run.dropped("layers.0.mlp.down_proj.weight", [HIDDEN, 2 * HIDDEN])
    down = f"{LAYER}.mlp.down_proj.weight"
    run.params[down] = {**run.params[f"{LAYER}.self_attn.o_proj.weight"], "name": down, "elements": 2 * HIDDEN * HIDDEN,
                        "shape": [HIDDEN, 2 * HIDDEN]}  # fmt: skip
    found = all_outcomes(run, tmp_path, [CHECKS["weights.not_loaded"], CHECKS["weights.missing"]])
    assert [c.status for c in found.values()] == ["alarm", "ok"]
    fits = {row["key"]: row["fits"] for row in found["weights.not_loaded"].evidence[0].rows}
    assert fits["midlayer.self_attn.q_proj.weight"] == f"{LAYER}.self_attn.qkv_proj.weight"
    assert fits["layers.0.mlp.down_proj.weight"] == down


def test_a_redacted_trace_has_no_stretches(tmp_path: Path) -> None:
    found = outcome("vocab.d2t_region", d2t_partly_wrong_but_sane().fact("trace.redacted", True), tmp_path)
    assert found.status == "unknown"
    assert "EAGLETRACE_REDACT" in found.reason
