"""The catalogue of causes is the contract's, complete, and tied to checks that exist."""

from __future__ import annotations

import pytest

from eagletrace.diagnose import CAUSES, explain
from eagletrace.diagnose.causes import STAGES, SYMPTOMS, CauseInfo
from eagletrace.diagnose.checks import load_checks
from eagletrace.errors import UnknownNameError

CONTRACT = """
config.algorithm_mismatch config.simulated_acceptance weights.not_loaded weights.missing weights.changed
weights.quantization vocab.d2t_encoding vocab.d2t_missing vocab.d2t_mismatch vocab.coverage aux.not_captured
aux.layers_mismatch aux.width_mismatch fc.bypassed fc.norm_mismatch embed.mismatch lm_head.replaced recurrence.hidden
rope.mismatch position.offset length.limit kv.prefix graph.stale batch.row round.first basis.rotated numerics.nan
multimodal.embeds sampling.rule grammar.masked verify.skipped draft.undertrained draft.misaligned target.mismatch
metric.artifact
"""
CHECKS = load_checks()


def test_ids_are_the_contracts() -> None:
    assert sorted(CAUSES) == sorted(CONTRACT.split())


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.id)
def test_every_cause_has_its_page(cause: CauseInfo) -> None:
    assert cause.stage in STAGES
    for text in (cause.title, cause.what, cause.why, cause.shows, cause.fix):
        assert len(text) > 15
    assert not cause.title.endswith(".") and cause.what.endswith(".")
    assert cause.fix.count("{") == cause.fix.count("}") and "{{" not in cause.fix


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.id)
def test_a_cause_is_named_by_a_check_or_says_what_it_needs(cause: CauseInfo) -> None:
    naming = [c.id for c in CHECKS.values() if c.causes[:1] == (cause.id,)]
    assert bool(naming) != bool(cause.needs)
    known = {*CHECKS, *SYMPTOMS}
    assert set(cause.effects) <= known and not set(cause.effects) & set(SYMPTOMS)


def test_explain_suggests_the_nearest_names() -> None:
    assert explain("weights.missing").id == "weights.missing"
    with pytest.raises(UnknownNameError, match=r"weights\.missing"):
        explain("weights.mising")
