"""SGLang's names, as data: what is hooked, where it lives, which releases have it, and what a hook relies on there.

Attaching feature-detects; no version string is parsed. `TARGETS` were read in the sources of every release from 0.5.3
to 0.5.23; docs/sglang-releases.md is made from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagletrace.instrumentations.patching import Target


@dataclass(frozen=True)
class EngineTarget(Target):
    """A target, and what its hook relies on; `a|b` stands for a name that releases spell differently.

    takes: the first parameters by position, without the instance. keywords: parameters that callers name.
    reads: (place, attributes): what a hook reads of an argument whose class the engine's source names (`self` is the
    instance), or of the objects of a class `module:Class`.
    """

    takes: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    reads: tuple[tuple[str, str], ...] = ()

    @property
    def module(self) -> str:
        """The module that has it."""
        return self.path.partition(":")[0]


SCHEDULER = "sglang.srt.managers.scheduler"
_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater:WeightUpdater"
_V1 = "sglang.srt.speculative.eagle_worker:EAGLEWorker"
_V2 = "sglang.srt.speculative.eagle_worker_v2:EAGLEWorkerV2"
_V2_DRAFT = "sglang.srt.speculative.eagle_worker_v2:EagleDraftWorker"
_DRAFT_GRAPHS = "sglang.srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner"
_EXTEND_GRAPHS = "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner"
_STEPS = "sglang.srt.speculative.multi_layer_eagle_worker_v2:MultiLayerEagle{}"
_STEP_GRAPHS = "sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner:{}MultiLayerEagle{}"
_V1_INFO = "sglang.srt.speculative.eagle_info"
_BATCH = ("batch|model_worker_batch",)
_BATCH_READS = (("batch|model_worker_batch", "reqs forward_mode"),)
_LINKS = ("retrieve_next_token|retrive_next_token", "retrieve_next_sibling|retrive_next_sibling")
_GREEDY = ("accept_index", "candidates", "target_predict", *_LINKS)
_REQUEST = "sglang.srt.managers.schedule_batch:Req"
_ACCEPTED = "accept_length_per_req_cpu|num_accepted_drafts_per_req_cpu|num_correct_drafts_per_req_cpu"
_RESULT = "logits_output can_run_cuda_graph accept_lens next_token_ids"
_VERIFY_INPUT = f"draft_token positions {' '.join(_LINKS)}"
_EXTENDED = "spec_info input_ids"
_CAPTURES = "speculative_num_steps eagle_worker model_runner"

TARGETS: tuple[EngineTarget, ...] = (
    EngineTarget("scheduler.init", f"{SCHEDULER}:Scheduler.__init__", True,
                 "start of a scheduler process; all releases", takes=("server_args",)),
    EngineTarget("scheduler.results", f"{SCHEDULER}:Scheduler.process_batch_result", True,
                 "results on the host: tokens kept, requests finished; all releases", takes=("batch", "result"),
                 reads=(("batch", "reqs"), (_REQUEST, "rid output_ids origin_input_ids sampling_params finished"))),
    EngineTarget("scheduler.result_copied", f"{SCHEDULER}:GenerationBatchResult.from_forward_batch_output", False,
                 "a worker's result becomes the scheduler's; 0.5.3 alone", keywords=("forward_batch_output",)),
    EngineTarget("scheduler.abort", f"{SCHEDULER}:Scheduler.abort_request", False,
                 "aborted requests that had begun and waited; all releases", takes=("recv_req",),
                 reads=(("self", "waiting_queue"),)),
    EngineTarget("scheduler.abort_output", f"{SCHEDULER}:Scheduler.send_abort_output", False,
                 "requests that end without a result, such as between two chunks; 0.5.23", takes=("abort_req", "req")),
    EngineTarget("runner.load_model", f"{_RUNNER}.load_model", True, "the target's and the draft's model; all releases",
                 reads=(("self", "is_draft_worker model model_config"),)),
    EngineTarget("loader.load_weights",
                 "sglang.srt.model_loader.loader:DefaultModelLoader.load_weights_and_postprocess", True,
                 "checkpoint tensors on their way into parameters; all releases", takes=("model", "weights")),
    EngineTarget("runner.update_disk", f"{_RUNNER}.update_weights_from_disk", False,
                 "weights that change while serving; to 0.5.15.post1", takes=("model_path",)),
    EngineTarget("runner.update_tensor", f"{_RUNNER}.update_weights_from_tensor", False,
                 "the same; to 0.5.15.post1", takes=("named_tensors",)),
    EngineTarget("runner.update_distributed", f"{_RUNNER}.update_weights_from_distributed", False,
                 "the same; to 0.5.15.post1", takes=("names",)),
    EngineTarget("runner.update_ipc", f"{_RUNNER}.update_weights_from_ipc", False,
                 "the same; 0.5.4 to 0.5.15.post1", takes=("recv_req",)),
    EngineTarget("updater.update_disk", f"{_UPDATER}.update_weights_from_disk", False,
                 "the same; 0.5.16 and later", takes=("model_path",)),
    EngineTarget("updater.update_tensor", f"{_UPDATER}.update_weights_from_tensor", False,
                 "the same; 0.5.16 and later", takes=("named_tensors",)),
    EngineTarget("updater.update_distributed", f"{_UPDATER}.update_weights_from_distributed", False,
                 "the same; 0.5.16 to 0.5.20", takes=("names",)),
    EngineTarget("updater.load_distributed", f"{_UPDATER}.load_weights_from_distributed", False,
                 "the same; 0.5.21 and later", takes=("named_tensors",)),
    EngineTarget("updater.update_ipc", f"{_UPDATER}.update_weights_from_ipc", False,
                 "the same; 0.5.16 and later", takes=("recv_req",)),
    EngineTarget("updater.end", f"{_UPDATER}.end_weight_update", False,
                 "the end of an update in several calls; 0.5.21 and later"),
    EngineTarget("runner.forward", f"{_RUNNER}.forward", True,
                 "forwards of the draft: widths, fc, logits (hidden by captured graphs); all releases",
                 takes=("forward_batch",), reads=(("forward_batch", "spec_info positions"),)),
    EngineTarget("v2.generate", f"{_V2}.forward_batch_generation", True, "one launch; 0.5.6 and later", "contract",
                 ("v1.generate",), takes=_BATCH, reads=_BATCH_READS),
    EngineTarget("v2.draft", f"{_V2_DRAFT}.draft", True, "the drafted tree; 0.5.4 and later", "contract", ("v1.draft",),
                 takes=_BATCH),
    EngineTarget("v2.draft_forward", f"{_V2_DRAFT}.draft_forward", False,
                 "draft steps and which branch each node came from (eager only); 0.5.4 and later", "tokens",
                 takes=("forward_batch",)),
    EngineTarget("v2.extend_prefill", f"{_V2_DRAFT}._draft_extend_for_prefill", True,
                 "draft over the prompt; 0.5.4 and later", "contract", ("v1.extend_prefill",),
                 takes=("batch", "target_hidden_states", "next_token_ids")),
    EngineTarget("v2.extend_decode", f"{_V2_DRAFT}._draft_extend_for_decode", True,
                 "draft over accepted tokens; 0.5.4 and later", "contract", ("v1.extend_decode",),
                 takes=("batch", "batch_result"), reads=(("batch_result", "logits_output"),)),
    EngineTarget("v2.verify", f"{_V2}.verify", True, "the target's verify forward; 0.5.3.post2 and later", "contract",
                 ("v1.verify",), takes=("batch",), reads=((f"{SCHEDULER}:GenerationBatchResult", _RESULT),)),
    EngineTarget("v1.generate", f"{_V1}.forward_batch_generation", True, "one launch; 0.5.3 to 0.5.12", "contract",
                 ("v2.generate",), takes=("batch",), reads=_BATCH_READS),
    EngineTarget("v1.draft", f"{_V1}.draft", True, "the drafted tree; to 0.5.12", "contract", ("v2.draft",),
                 takes=("batch",)),
    EngineTarget("v1.draft_forward", f"{_V1}.draft_forward", False, "draft steps (eager only); to 0.5.12", "tokens",
                 takes=("forward_batch",)),
    EngineTarget("v1.extend_prefill", f"{_V1}.forward_draft_extend", True, "draft over the prompt; to 0.5.12",
                 "contract", ("v2.extend_prefill",), takes=("batch", "hidden_states", "next_token_ids")),
    EngineTarget("v1.extend_decode", f"{_V1}.forward_draft_extend_after_decode", True,
                 "draft over accepted tokens; to 0.5.12", "contract", ("v2.extend_decode",), takes=("batch",)),
    EngineTarget("v1.verify", f"{_V1}.verify", True, "the target's verify forward; to 0.5.12", "contract",
                 ("v2.verify",), takes=("batch",), reads=((f"{_V1_INFO}:EagleVerifyOutput", _ACCEPTED),)),
    EngineTarget("v1.verify_tokens", f"{_V1_INFO}:EagleVerifyInput.verify", False,
                 "where the first worker keeps tokens and finishes requests; to 0.5.12 (unused in 0.5.13)",
                 takes=("batch", "logits_output")),
    EngineTarget("verify.greedy", "sglang.kernels.ops.speculative.spec_tree:verify_tree_greedy_func", True,
                 "the verdict: target tokens and the accepted path; 0.5.23", "contract",
                 ("verify.greedy_utils", "verify.greedy_kernel"), keywords=_GREEDY),
    EngineTarget("verify.greedy_utils", "sglang.srt.speculative.eagle_utils:verify_tree_greedy_func", True,
                 "the same, 0.5.4.post2 and later; 0.5.23 calls the other", "contract",
                 ("verify.greedy", "verify.greedy_kernel"), keywords=_GREEDY),
    EngineTarget("verify.greedy_kernel", f"{_V1_INFO}:verify_tree_greedy", True,
                 "the same, a compiled kernel that writes in place; to 0.5.4.post1", "contract",
                 ("verify.greedy", "verify.greedy_utils"), keywords=_GREEDY),
    EngineTarget("verify.sampling_kernel", f"{_V1_INFO}:tree_speculative_sampling_target_only", False,
                 "the first worker's verdict when requests sample, a compiled kernel; to 0.5.13", "contract",
                 keywords=("predicts", "accept_index", "candidates", "target_probs", "retrive_next_token",
                           "retrive_next_sibling")),
    EngineTarget("verify.sample", "sglang.srt.speculative.eagle_utils:eagle_sample", False,
                 "the verdict when requests sample; 0.5.14 and later", "contract",
                 takes=("verify_input", "batch", "logits_output"),
                 reads=(("verify_input", _VERIFY_INPUT), ("logits_output", "next_token_logits hidden_states"))),
    EngineTarget("verify.sample_mixin", "sglang.srt.speculative.eagle_info_v2:EagleVerifyInputV2Mixin.sample", False,
                 "the same; 0.5.3.post2 to 0.5.13", "contract", takes=("batch", "logits_output"),
                 reads=(("self", _VERIFY_INPUT), ("logits_output", "next_token_logits hidden_states"))),
    EngineTarget("graph.draft", f"{_DRAFT_GRAPHS}.execute", False,
                 "draft steps from a captured graph: the drafted tree; 0.5.14 and later", "tokens",
                 takes=("forward_batch",), reads=(("self", "bs capture_bs"), ("forward_batch", "spec_info"))),
    EngineTarget("graph.draft_replay", f"{_DRAFT_GRAPHS}.replay", False, "the same; to 0.5.13", "tokens",
                 takes=("forward_batch",), reads=(("self", "bs capture_bs"), ("forward_batch", "spec_info"))),
    EngineTarget("graph.extend", f"{_EXTEND_GRAPHS}.execute", False,
                 "draft extend from a captured graph: logits and widths; 0.5.14 and later", "tokens",
                 takes=("forward_batch",), reads=(("self", "buffers capture_bs"), ("forward_batch", _EXTENDED))),
    EngineTarget("graph.extend_replay", f"{_EXTEND_GRAPHS}.replay", False, "the same; to 0.5.13", "tokens",
                 takes=("forward_batch",),
                 reads=(("self", "buffers|hidden_states"), ("self", "capture_bs"), ("forward_batch", _EXTENDED))),
    EngineTarget("graph.capture", f"{_DRAFT_GRAPHS}.capture_one_shape", False,
                 "where taps are placed, with EAGLETRACE_GRAPH_TAPS=1; 0.5.14 and later", "tokens",
                 takes=("size",), reads=(("self", _CAPTURES),)),
    EngineTarget("graph.capture_batch", f"{_DRAFT_GRAPHS}.capture_one_batch_size", False, "the same; to 0.5.13",
                 "tokens", takes=("num_seqs",), reads=(("self", _CAPTURES),)),
)  # fmt: skip
MULTI_LAYER: tuple[EngineTarget, ...] = (
    EngineTarget("multi_layer.generate", _STEPS.format("WorkerV2.forward_batch_generation"), True,
                 "one launch; 0.5.9, 0.5.20, 0.5.23", "contract", ("v2.generate", "v1.generate"), takes=_BATCH,
                 reads=_BATCH_READS),
    EngineTarget("multi_layer.draft", _STEPS.format("DraftWorker.draft"), True, "the drafted chain; the same",
                 "contract", ("v2.draft", "v1.draft"), takes=_BATCH),
    EngineTarget("multi_layer.extend_prefill", _STEPS.format("DraftWorker._draft_extend_for_prefill"), True,
                 "every step's draft over the prompt; the same", "contract", ("v2.extend_prefill", "v1.extend_prefill"),
                 takes=("batch", "target_hidden_states", "next_token_ids"), reads=(("self", "draft_runner_list"),)),
    EngineTarget("multi_layer.extend_decode", _STEPS.format("DraftWorker._draft_extend_for_decode"), True,
                 "every step's draft over accepted tokens; the same", "contract",
                 ("v2.extend_decode", "v1.extend_decode"), takes=("batch", "batch_result"),
                 reads=(("batch_result", "logits_output accept_lens"),)),
    EngineTarget("multi_layer.verify", _STEPS.format("WorkerV2.verify"), True,
                 "the target's verify forward; the same", "contract", ("v2.verify", "v1.verify"), takes=("batch",),
                 reads=((f"{SCHEDULER}:GenerationBatchResult", _RESULT),)),
    EngineTarget("multi_layer.replay", _STEP_GRAPHS.format("", "MultiStepDraftExtendCudaGraphRunner.replay"), False,
                 "one step's draft from a captured graph: logits; 0.5.20, 0.5.23", "tokens", takes=("step",)),
    EngineTarget("multi_layer.replay_one",
                 _STEP_GRAPHS.format("OneGraph", "MultiStepDraftExtendCudaGraphRunner.replay"), False,
                 "the same from one graph of all steps; 0.5.20, 0.5.23", "tokens", takes=("step",)),
)  # fmt: skip
"""The worker that has a draft for each step: as in 0.5.9 (with the overlap scheduler; its graphs are other ones), in
0.5.20 and in 0.5.23, which were read. It is looked for where the engine imported it, which it does to serve with it."""

BY_NAME = {t.name: t for t in (*TARGETS, *MULTI_LAYER)}


def stand_ins(name: str) -> tuple[str, ...]:
    """Targets of workers that are imported where they serve alone and then do the work of a target."""
    return tuple(t.name for t in MULTI_LAYER if name in t.alternatives)


# Checkpoint tensors that SGLang's draft classes skip by name, by design (llama_eagle3.py, `"t2d" in name`).
SKIPPED_BY_DESIGN = ("t2d",)

# Where drafts' configurations name the aux layers, and whether SGLang reads the place
# (spec_aux_hidden_state.py of 0.5.23, model_runner.py of 0.5.9).
AUX_LAYER_KEYS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
AUX_LAYER_PATH_READ = "eagle_config.eagle_aux_hidden_state_layer_ids"
