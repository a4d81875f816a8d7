"""What is traced, diagnosed and replayed, each with the test that shows it.

The page docs/support.md is made from here, and a session over all tests fails when a test named here did not pass
(`tests/conftest.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

COLUMNS = ("traced", "diagnosed", "replayed")


@dataclass(frozen=True)
class Support:
    """One row: what was served, and the tests that show what eagletrace did with it; None where none does."""

    target: str  # the engine's class
    draft: str
    sglang: str
    shape: str  # chain or tree, the worker where there are two
    traced: str | None  # counts and tokens are the engine's
    diagnosed: str | None  # faults are named and the healthy server is called healthy
    replayed: str | None  # the reference drafts what the server drafted

    @property
    def tests(self) -> list[str]:
        """The ids of its tests."""
        return [test for test in (self.traced, self.diagnosed, self.replayed) if test is not None]


AGREEMENT = "tests/lab/test_agreement.py::test_counts_agree_with_the_engine[{}]"
FAULTS = "tests/lab/test_faults_on_the_engine.py::test_a_fault_is_named_first_and_proved[{}]"
EAGLE1 = "tests/lab/test_eagle1.py::{}"
KIMI = "tests/lab/test_kimi.py::{}"
MTP = "tests/lab/test_mtp.py::{}"
STANDALONE = "tests/lab/test_standalone.py::{}"
MULTI_LAYER = "tests/lab/test_multi_layer.py::{}"
EAGLE31 = "tests/lab/test_eagle31.py::{}"
OTHER = "tests/lab/test_other_targets.py::test_a_target_served_right_is_healthy_and_replayed[{}]"
OTHER_FAULT = "tests/lab/test_other_targets.py::test_other_layers_of_a_target_are_named_by_the_run_alone[{}]"
QWEN2_FAULT = "tests/lab/test_other_targets.py::test_shifted_layer_ids_of_a_qwen2_are_named_and_proved"
LLAMA = Support("LlamaForCausalLM", "LlamaForCausalLMEagle3", "0.5.23", "chain", None, None, None)

ROWS = (
    replace(LLAMA, traced=AGREEMENT.format("0.5.23-v2-chain"), diagnosed=FAULTS.format("rope-theta"),
            replayed=FAULTS.format("rope-theta")),
    replace(LLAMA, shape="tree", traced=AGREEMENT.format("0.5.23-v2-tree")),
    replace(LLAMA, sglang="0.5.20", traced=AGREEMENT.format("0.5.20-v2-chain")),
    replace(LLAMA, sglang="0.5.20", shape="tree", traced=AGREEMENT.format("0.5.20-v2-tree")),
    replace(LLAMA, sglang="0.5.9", shape="chain, first worker", traced=AGREEMENT.format("0.5.9-v1-chain"),
            diagnosed=FAULTS.format("layer-keys-0.5.9"), replayed=FAULTS.format("layer-keys-0.5.9")),
    replace(LLAMA, sglang="0.5.9", shape="tree, first worker", traced=AGREEMENT.format("0.5.9-v1-tree")),
    replace(LLAMA, sglang="0.5.9", shape="chain, second worker", traced=AGREEMENT.format("0.5.9-v2-chain")),
    replace(
        LLAMA, draft="LlamaForCausalLMEagle",
        traced=EAGLE1.format("test_a_draft_served_right_is_healthy_and_its_counts_are_the_engine_s"),
        diagnosed=EAGLE1.format("test_states_before_the_target_s_final_norm_are_named_and_proved"),
        replayed=EAGLE1.format("test_the_reference_drafts_what_was_served"),
    ),
    Support(
        "KimiK25ForConditionalGeneration", "LlamaForCausalLMEagle3", "0.5.23", "chain",
        KIMI.format("test_a_draft_of_each_class_is_traced_and_replayed[kimi-healthy]"),
        KIMI.format("test_a_wrapper_that_swallows_the_request_is_named_with_widths_and_proved"),
        KIMI.format("test_a_draft_of_each_class_is_traced_and_replayed[kimi-healthy]"),
    ),
    Support(
        "KimiK25ForConditionalGeneration", "Eagle3DeepseekV2ForCausalLM", "0.5.23", "chain",
        KIMI.format("test_a_draft_of_each_class_is_traced_and_replayed[kimi-latent]"),
        KIMI.format("test_keys_that_the_latent_draft_drops_are_named_and_proved"),
        KIMI.format("test_a_draft_of_each_class_is_traced_and_replayed[kimi-latent]"),
    ),
    Support(
        "KimiK25ForConditionalGeneration", "LlamaForCausalLMEagle3", "0.5.9", "-", None,
        KIMI.format("test_0_5_9_is_named_by_the_trace"), None,
    ),
    Support(
        "DeepseekV3ForCausalLM", "DeepseekV3ForCausalLMNextN", "0.5.23", "chain, NEXTN",
        MTP.format("test_a_layer_served_right_is_healthy_and_its_counts_are_the_engine_s"),
        MTP.format("test_a_layer_that_the_engine_looks_for_under_another_number_is_named_and_proved"),
        MTP.format("test_the_reference_drafts_what_was_served"),
    ),
    Support(
        "Step3p5ForCausalLM", "Step3p5MTP", "0.5.23", "chain; multi-layer, a draft for each step",
        MULTI_LAYER.format("test_counts_are_the_engine_s_and_tokens_are_those_of_a_server_without_a_tracer"),
        None, None,
    ),
    replace(
        LLAMA, draft="LlamaForCausalLM", shape="chain, STANDALONE",
        traced=STANDALONE.format("test_a_model_served_right_is_healthy_and_its_counts_are_the_engine_s"),
        diagnosed=STANDALONE.format("test_served_as_an_eagle_draft_it_is_named"),
    ),
    replace(
        LLAMA, shape="chain; two layers, four aux states, fc_norm, norm_output",
        traced=EAGLE31.format("test_a_draft_served_right_is_healthy_and_its_counts_are_the_engine_s"),
        diagnosed=EAGLE31.format("test_a_second_layer_that_was_not_built_is_named_and_proved"),
        replayed=EAGLE31.format("test_the_reference_drafts_what_was_served"),
    ),
    replace(LLAMA, target="Qwen2ForCausalLM", traced=OTHER.format("qwen2"), diagnosed=QWEN2_FAULT,
            replayed=OTHER.format("qwen2")),
    replace(LLAMA, target="Qwen3ForCausalLM", traced=OTHER.format("qwen3"), replayed=OTHER.format("qwen3"),
            diagnosed=OTHER_FAULT.format("qwen3")),
    replace(LLAMA, target="GptOssForCausalLM", traced=OTHER.format("gpt_oss"), replayed=OTHER.format("gpt_oss"),
            diagnosed=OTHER_FAULT.format("gpt_oss")),
)  # fmt: skip


def tests() -> list[str]:
    """The ids of all tests that the table names, each once."""
    return list(dict.fromkeys(test for row in ROWS for test in row.tests))


def cells() -> Iterator[tuple[str, ...]]:
    """The table's rows: a cell that a test shows leads to it."""
    for row in ROWS:
        shown = (getattr(row, column) for column in COLUMNS)
        yield (f"`{row.target}`", f"`{row.draft}`", row.sglang, row.shape,
               *("-" if test is None else f"[yes](../{test.split('::')[0]})" for test in shown))  # fmt: skip
