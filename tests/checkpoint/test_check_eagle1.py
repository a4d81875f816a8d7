"""Files of EAGLE-1 drafts: what fits is healthy, checks of aux states and maps do not apply, and faults are named.

A bias of `fc` that is missing is in `test_check_formats.py`, a head of the file in `test_check_findings.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from check_drafts import EAGLE, TARGET, Tensors, target_tensors, tensors, write

from eagletrace.check import FileCheck, check
from eagletrace.lab.pair import shipped_pair

NOT_ASKED = ("aux.", "vocab.", "fc.norm", "recurrence.", "lm_head.", "embed.", "basis.", "config.algorithm")


def checked(folder: Path, values: Tensors, **config: object) -> FileCheck:
    draft = write(folder / "draft", {**EAGLE, **config}, values)
    return check(draft, write(folder / "target", TARGET, target_tensors()), "sglang==0.5.23")


def drafted() -> Tensors:
    return tensors(EAGLE, "layers.0")


def test_checks_that_an_eagle_1_draft_does_not_ask_for_do_not_apply(tmp_path: Path) -> None:
    found = checked(tmp_path, drafted())
    assert found.verdict == "healthy"
    status = {c.id: c.status for c in found.checks if c.id.startswith(NOT_ASKED)}
    assert len(status) == 22
    assert set(status.values()) == {"not_applicable"}
    reasons = {c.reason for c in found.checks if c.id.startswith("aux.")}
    assert reasons == {"the draft needs no aux hidden states"}


def test_the_shipped_draft_with_a_bias_is_healthy_and_the_one_without_is_told() -> None:
    pair = shipped_pair()
    for variant, told in (("eagle1", set[str]()), ("eagle1_no_bias", {"weights.neutral"})):
        found = check(pair / "drafts" / variant, pair / "target", "sglang==0.5.23")
        assert found.causes == ()
        assert {check.id for check in found.checks if check.status == "alarm"} == told


@pytest.mark.parametrize("prefix", ["model.", "ea_layer.layer."])
def test_keys_under_a_prefix_land_nowhere(prefix: str, tmp_path: Path) -> None:
    found = checked(tmp_path, {prefix + key: value for key, value in drafted().items()})
    assert found.causes[0].id == "weights.not_loaded"
    assert "fc.weight" in found.causes[0].evidence[0].text
    repaired = check(tmp_path / "draft", tmp_path / "target", "sglang==0.5.23", fix=tmp_path / "repaired").repair
    assert repaired is not None and repaired.verdict == "healthy"


def test_a_bias_switch_meant_for_fc_makes_attention_biases_that_no_tensor_fills(tmp_path: Path) -> None:
    """SGLang's Llama layer takes `bias` for attention's; EAGLE's own trainer means the bias of `fc`."""
    found = checked(tmp_path, drafted(), bias=True)
    assert found.causes[0].id == "weights.missing"
    assert "qkv_proj.bias" in found.causes[0].evidence[0].text
