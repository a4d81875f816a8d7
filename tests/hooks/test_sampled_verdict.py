"""The verdict where a batch samples: which path the engine took, and which token it drew after each node of it.

No GPU samples here, and on a CPU SGLang verifies greedily at any temperature: `sampled` does what its kernel does
(`tree_speculative_sampling_target_only`, thresholds 1), and the hook reads what `eagle_sample` would return.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eagletrace.diagnose.acceptance import measure  # noqa: E402
from eagletrace.diagnose.checks import CheckRunner, load_checks  # noqa: E402
from eagletrace.instrumentations.patching import Target  # noqa: E402
from eagletrace.instrumentations.sglang.launch_state import Launch  # noqa: E402
from eagletrace.instrumentations.sglang.session import Session  # noqa: E402
from eagletrace.instrumentations.sglang.verdict import Sample  # noqa: E402
from eagletrace.record.recorder import Recorder  # noqa: E402
from eagletrace.record.requests import RequestState  # noqa: E402
from eagletrace.record.rounds import RoundPacket  # noqa: E402
from eagletrace.settings import Settings  # noqa: E402
from eagletrace.store import Run, open_run  # noqa: E402

PROCESS = {"host": "node", "pid": 7, "tp_rank": 0, "dp_rank": None, "pp_rank": 0}
BS, VOCAB, STEPS, LAUNCHES = 4, 6, 3, 40
CHAIN = ([1, 2, 3, -1], [-1, -1, -1, -1])  # first child and next sibling of each node
TREE = ([1, 3, -1, 5, -1, -1], [-1, 2, -1, 4, -1, -1])


def draw(probs: Any, coin: float) -> int:
    """The token at which the cumulated probabilities pass the coin."""
    return int((probs.cumsum(0) / probs.sum() <= coin).sum().clamp(max=len(probs) - 1))


def sampled(tokens: Any, links: tuple[list[int], list[int]], probs: Any) -> tuple[Any, Any, Any]:
    """(predict [bs * D], correct drafts [bs], accept_index [bs, S + 1]) for tokens [bs, D] and probs [bs, D, V]."""
    bs, nodes = tokens.shape
    predict = torch.zeros(bs * nodes, dtype=torch.int32)
    correct, path = torch.zeros(bs, dtype=torch.int32), torch.full((bs, STEPS + 1), -1, dtype=torch.int32)
    for row in range(bs):
        node, path[row, 0] = 0, row * nodes
        left = probs[row].clone()
        while correct[row] < STEPS:
            coin, passed, child = torch.rand(()), 0.0, links[0][node]
            while child >= 0:
                token = int(tokens[row, child])
                passed += float(probs[row, node, token])
                if coin <= passed:
                    break
                left[node, token] = 0
                child = links[1][child]
            if child < 0:
                break
            predict[row * nodes + node] = tokens[row, child]
            correct[row] += 1
            node = child
            path[row, correct[row]] = row * nodes + node
        predict[row * nodes + node] = draw(left[node], float(torch.rand(())))
    return predict, correct, path


class Recorded:
    """Launches that sampled, as the hook left them in a run, and what the engine drew in each."""

    def __init__(self, folder: Path, links: tuple[list[int], list[int]], topk: int, greedy_rows: int = 0) -> None:
        torch.manual_seed(1)
        (folder / "run.json").write_text('{"schema_version": 1, "run_id": "sampled", "settings": {"level": "tokens"}}')
        self.recorder = Recorder(folder, Settings(), PROCESS, {})
        self.session = Session(self.recorder, "0", None)
        self.hook = Sample(Target("verify.sample", "m:f", required=False, doc=""), self.session)
        self.states = [RequestState(n + 1, f"r{n}", "user", True, 0, None, 5) for n in range(BS)]
        self.committed: list[list[int]] = [[] for _ in range(BS)]
        self.correct: list[list[int]] = [[] for _ in range(BS)]
        self.position, self.links, self.topk = [5] * BS, links, topk
        self.roots = torch.randint(VOCAB, (BS,))
        self.best_rejected = 0
        self.recorder.start()
        for number in range(1, LAUNCHES + 1):
            self.launch(number, greedy_rows)
        self.recorder.stop()

    def launch(self, number: int, greedy_rows: int) -> None:
        """One launch of BS requests; the first `greedy_rows` of them have temperature 0."""
        nodes = len(self.links[0])
        logits = torch.randn(BS, nodes, VOCAB)
        probs = torch.softmax(logits, -1)
        probs[:greedy_rows] = torch.nn.functional.one_hot(logits[:greedy_rows].argmax(-1), VOCAB).float()
        tokens = torch.cat([self.roots[:, None], torch.randint(VOCAB, (BS, nodes - 1))], dim=1)
        for first, sibling in zip(*self.links, strict=True):  # siblings differ, as the K best of a step do
            if first >= 0 and self.links[1][first] >= 0:
                tokens[:, self.links[1][first]] = (tokens[:, first] + 1) % VOCAB
            assert sibling < nodes
        predict, correct, path = sampled(tokens, self.links, probs)
        depth = self.depths()
        packet = RoundPacket(number, number, self.states, [number] * BS, 0, committed=(correct + 1).tolist(),
                             counted=[True] * BS)  # fmt: skip
        positions = torch.tensor(self.position)[:, None] + torch.tensor(depth)
        self.session.launch = Launch(packet, [object()] * BS, positions=positions.reshape(-1), topk=self.topk)
        verify_input = SimpleNamespace(
            draft_token=tokens.reshape(-1), retrieve_next_token=torch.tensor([self.links[0]] * BS),
            retrieve_next_sibling=torch.tensor([self.links[1]] * BS),
        )  # fmt: skip
        output = SimpleNamespace(next_token_logits=logits.reshape(-1, VOCAB))
        self.hook.after(None, (predict, correct, path), (verify_input, None, output), {})
        self.recorder.launch(packet)
        for row in range(BS):
            taken = path[row][path[row] >= 0].tolist()
            drawn = predict[taken].tolist()
            self.committed[row] += drawn
            self.correct[row].append(len(taken) - 1)
            self.position[row] += len(taken)
            self.roots[row] = drawn[-1]
            child, best = self.links[0][taken[-1] - row * nodes], int(logits[row, taken[-1] - row * nodes].argmax())
            self.best_rejected += child >= 0 and int(tokens[row, child]) == best

    def depths(self) -> list[int]:
        """Depth of each node."""
        depth = [0] * len(self.links[0])
        for node, child in enumerate(self.links[0]):
            while child >= 0:
                depth[child] = depth[node] + 1
                child = self.links[1][child]
        return depth


def outcome(run: Run) -> tuple[str, str]:
    measure(run)
    found = CheckRunner(run).run(load_checks()["sampling.rule"])
    return found.status, found.reason


@pytest.mark.parametrize(("links", "topk"), [(CHAIN, 1), (TREE, 2)], ids=["chain", "tree"])
@pytest.mark.parametrize("greedy_rows", [0, 2], ids=["all sample", "some are greedy"])
def test_what_was_drawn_is_what_is_recorded(
    links: tuple[list[int], list[int]], topk: int, greedy_rows: int, tmp_path: Path
) -> None:
    made = Recorded(tmp_path, links, topk, greedy_rows)
    with open_run(tmp_path) as run:
        accepted = run.rows("SELECT request_seq, list(accepted ORDER BY round) AS n FROM rounds GROUP BY 1 ORDER BY 1")
        assert [row["n"] for row in accepted] == made.correct
        outputs = run.rows("SELECT output_ids FROM outputs ORDER BY request_seq")
        assert [row["output_ids"][1:] for row in outputs] == made.committed  # the first is the root of round 1
        wrong = run.rows("SELECT count(*) AS n FROM verifies WHERE accepted AND draft_token <> expected_token")
        assert wrong[0]["n"] == 0
        assert len(run.rows("FROM verifies WHERE depth > 0 AND reached AND NOT accepted")) > 40


@pytest.mark.parametrize(("links", "topk"), [(CHAIN, 1), (TREE, 2)], ids=["chain", "tree"])
def test_a_draft_that_chance_rejects_is_no_fault(links: tuple[list[int], list[int]], topk: int, tmp_path: Path) -> None:
    """Where a batch samples, even the target's likeliest token is rejected now and then."""
    made = Recorded(tmp_path, links, topk)
    assert made.best_rejected > 3
    with open_run(tmp_path) as run:
        status, reason = outcome(run)
        assert status == "ok", reason


def test_a_node_off_the_path_has_the_likeliest_token(tmp_path: Path) -> None:
    """Nothing was drawn after it: what the target would choose at temperature 0 stands there."""
    made = Recorded(tmp_path, CHAIN, 1)
    launch = made.session.launch
    torch.manual_seed(2)
    made.launch(LAUNCHES + 1, 0)
    torch.manual_seed(2)
    likeliest = torch.randn(BS, len(CHAIN[0]), VOCAB).argmax(-1).reshape(-1)
    values = made.session.launch.packet.values
    assert launch is not made.session.launch
    targets = torch.from_numpy(values.ints())[BS * 4 : 2 * BS * 4]
    path = torch.from_numpy(values.ints())[2 * BS * 4 : 2 * BS * 4 + BS * (STEPS + 1)]
    off = torch.ones(BS * 4, dtype=torch.bool)
    off[path[path >= 0]] = False
    assert off.any() and bool((targets[off] == likeliest[off]).all())
