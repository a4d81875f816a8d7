"""SGLang's names, as data: what is hooked, where it lives, which releases have it.

Attaching feature-detects; no version string is parsed. Read from the sources of 0.5.9 and 0.5.23.
"""

from __future__ import annotations

from eagletrace.instrumentations.patching import Target

SCHEDULER = "sglang.srt.managers.scheduler"
_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"
_V1 = "sglang.srt.speculative.eagle_worker:EAGLEWorker"
_V2 = "sglang.srt.speculative.eagle_worker_v2:EAGLEWorkerV2"
_V2_DRAFT = "sglang.srt.speculative.eagle_worker_v2:EagleDraftWorker"

TARGETS: tuple[Target, ...] = (
    Target("scheduler.init", f"{SCHEDULER}:Scheduler.__init__", True, "start of a scheduler process; all releases"),
    Target("scheduler.results", f"{SCHEDULER}:Scheduler.process_batch_result", True,
           "results on the host: tokens kept, requests finished; all releases"),
    Target("runner.load_model", f"{_RUNNER}.load_model", True, "the target's and the draft's model; all releases"),
    Target("loader.load_weights",
           "sglang.srt.model_loader.loader:DefaultModelLoader.load_weights_and_postprocess", True,
           "checkpoint tensors on their way into parameters; all releases"),
    Target("runner.forward", f"{_RUNNER}.forward", True,
           "forwards of the draft: widths, fc, logits (hidden by captured graphs); all releases"),
    Target("v2.generate", f"{_V2}.forward_batch_generation", True, "one launch; 0.5.6 and later", "contract",
           ("v1.generate",)),
    Target("v2.draft", f"{_V2_DRAFT}.draft", True, "the drafted tree; 0.5.6 and later", "contract", ("v1.draft",)),
    Target("v2.draft_forward", f"{_V2_DRAFT}.draft_forward", False,
           "draft steps and which branch each node came from (eager only); 0.5.6 and later", "tokens"),
    Target("v2.extend_prefill", f"{_V2_DRAFT}._draft_extend_for_prefill", True,
           "draft over the prompt; 0.5.6 and later", "contract", ("v1.extend_prefill",)),
    Target("v2.extend_decode", f"{_V2_DRAFT}._draft_extend_for_decode", True,
           "draft over accepted tokens; 0.5.6 and later", "contract", ("v1.extend_decode",)),
    Target("v2.verify", f"{_V2}.verify", True, "the target's verify forward; 0.5.6 and later", "contract",
           ("v1.verify",)),
    Target("v1.generate", f"{_V1}.forward_batch_generation", True, "one launch; 0.5.3 to 0.5.11", "contract",
           ("v2.generate",)),
    Target("v1.draft", f"{_V1}.draft", True, "the drafted tree; to 0.5.11", "contract", ("v2.draft",)),
    Target("v1.draft_forward", f"{_V1}.draft_forward", False, "draft steps (eager only); to 0.5.11", "tokens"),
    Target("v1.extend_prefill", f"{_V1}.forward_draft_extend", True, "draft over the prompt; to 0.5.11", "contract",
           ("v2.extend_prefill",)),
    Target("v1.extend_decode", f"{_V1}.forward_draft_extend_after_decode", True,
           "draft over accepted tokens; to 0.5.11", "contract", ("v2.extend_decode",)),
    Target("v1.verify", f"{_V1}.verify", True, "the target's verify forward; to 0.5.11", "contract", ("v2.verify",)),
    Target("v1.verify_tokens", "sglang.srt.speculative.eagle_info:EagleVerifyInput.verify", False,
           "where the first worker keeps tokens and finishes requests; 0.5.3 to 0.5.11"),
    Target("verify.greedy", "sglang.kernels.ops.speculative.spec_tree:verify_tree_greedy_func", True,
           "the verdict: target tokens and the accepted path; 0.5.23", "contract", ("verify.greedy_utils",)),
    Target("verify.greedy_utils", "sglang.srt.speculative.eagle_utils:verify_tree_greedy_func", True,
           "the same, to 0.5.20", "contract", ("verify.greedy",)),
    Target("verify.sample", "sglang.srt.speculative.eagle_utils:eagle_sample", False,
           "the verdict when requests sample; 0.5.16 and later", "contract"),
    Target("verify.sample_mixin", "sglang.srt.speculative.eagle_info_v2:EagleVerifyInputV2Mixin.sample", False,
           "the same; 0.5.6 to 0.5.13", "contract"),
)  # fmt: skip
BY_NAME = {t.name: t for t in TARGETS}

# Checkpoint tensors that SGLang's draft classes skip by name, by design (llama_eagle3.py, `"t2d" in name`).
SKIPPED_BY_DESIGN = ("t2d",)

# Where drafts' configurations name the aux layers, and whether SGLang reads the place
# (spec_aux_hidden_state.py of 0.5.23, model_runner.py of 0.5.9).
AUX_LAYER_KEYS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
AUX_LAYER_PATH_READ = "eagle_config.eagle_aux_hidden_state_layer_ids"
