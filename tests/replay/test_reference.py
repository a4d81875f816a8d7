"""The reference drafts what independent implementations of a draft do: the lab's trainer, speculators, SGLang."""
# The packages compared with are typed in part:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagletrace.lab.pair import shipped_pair  # noqa: E402
from eagletrace.lab.pair.evaluate import load_draft  # noqa: E402
from eagletrace.replay.changes.intended import intended  # noqa: E402
from eagletrace.replay.recipe import Recipe  # noqa: E402
from eagletrace.replay.recorded import Recording  # noqa: E402
from eagletrace.replay.reference import Reference, _Candidates  # noqa: E402  # pyright: ignore[reportPrivateUsage]
from eagletrace.replay.result import ReplayError  # noqa: E402
from tests.replay import offline  # noqa: E402


@pytest.fixture(scope="module")
def recording() -> Recording:
    return offline.empty(count=2)


@pytest.fixture(scope="module")
def recipe(recording: Recording) -> Recipe:
    return intended(offline.material(), recording)


@pytest.mark.parametrize(
    ("pair", "variant", "layers"),
    [("llama", "default", (2, 6, 9)), ("kimi", "default", (2, 5, 7)), ("kimi", "latent", (2, 5, 7))],
)
def test_chains_are_those_of_the_trainer(pair: str, variant: str, layers: tuple[int, ...]) -> None:
    """The trainer runs all anchors of a text at once, with its own attention and cache."""
    recording = offline.empty(layers=layers, count=2, pair=pair)
    recipe = intended(offline.material(variant, pair=pair), recording)
    draft = load_draft(shipped_pair(pair) / "drafts" / variant, 12)
    offline.assert_chains_are_the_trainers(recording, recipe, draft)


def test_a_chain_is_a_tree_of_one_branch(recording: Recording, recipe: Recipe) -> None:
    reference, sequence = Reference(recipe), recording.sequences[0]
    with torch.inference_mode():
        extended = reference.extend(sequence)
        drafted = reference.draft(sequence, extended, torch.arange(40, 60), 4, 1, 4)
        tree = reference.draft(sequence, extended, torch.arange(40, 60), 4, 3, 12)
    assert drafted.parents.tolist() == [[-1, 0, 1, 2]] * 20
    assert bool((tree.tokens[:, 0] == drafted.tokens[:, 0]).all())
    assert bool((tree.depths.diff(dim=1) >= 0).all())
    above = torch.where(tree.parents < 0, 0, tree.depths.gather(1, tree.parents.clamp(min=0)))
    assert bool((above == tree.depths - 1).all())


def test_a_later_row_changes_nothing_before_it(recording: Recording, recipe: Recipe) -> None:
    sequence = recording.sequences[0]
    changed = replace(sequence, captured=sequence.captured.clone())
    changed.captured[50:] = 0
    with torch.inference_mode():
        first, second = (Reference(recipe).extend(s).out for s in (sequence, changed))
    assert torch.allclose(first[:50], second[:50], atol=1e-6)
    assert not torch.allclose(first[50:], second[50:])


@pytest.mark.parametrize(("topk", "steps", "nodes"), [(2, 2, 3), (3, 3, 9), (4, 4, 7), (8, 3, 15)])
def test_the_choice_of_nodes_is_the_engines(topk: int, steps: int, nodes: int) -> None:
    """Random probabilities through SGLang's own `select_top_k_tokens` and `organize_draft_results`."""
    engine = pytest.importorskip("sglang.srt.speculative.spec_utils")
    utils = pytest.importorskip("sglang.srt.speculative.eagle_utils")
    bs, generator = 3, torch.Generator().manual_seed(topk * 100 + nodes)
    first = torch.rand(bs, topk, generator=generator).sort(-1, descending=True).values
    ids = torch.randint(0, 1000, (bs, topk), generator=generator)
    scores, hidden = None, torch.zeros(bs, 1)
    mine = _Candidates(ids, first)
    lists: tuple[list[object], list[object], list[object]] = ([], [], [])
    p, index = first, ids
    for step in range(steps):
        _, hidden, scores, tree = engine.select_top_k_tokens(step, p, index, hidden, scores, topk)
        for kept, new in zip(lists, tree, strict=True):
            kept.append(new)
        if step == steps - 1:
            break
        p = torch.rand(bs * topk, topk, generator=generator).sort(-1, descending=True).values
        index = torch.randint(0, 1000, (bs * topk, topk), generator=generator)
        mine.grow(index.view(bs, topk, topk), p.view(bs, topk, topk))
    _, _, expected = utils.organize_draft_results(*lists, nodes + 1)
    tokens, parents, depths = mine.choose(nodes)
    assert tokens.tolist() == expected.tolist()
    assert bool((parents < torch.arange(nodes)).all()) and bool((depths >= 1).all())


def test_states_of_the_wrong_width_are_refused_by_name(recording: Recording, recipe: Recipe) -> None:
    narrow = replace(recording.sequences[0], captured=recording.sequences[0].captured[:, :128])
    with pytest.raises(ReplayError, match="fc takes 384 elements, the states have 128"):
        Reference(recipe).extend(narrow)


def test_a_missing_tensor_is_named(recipe: Recipe) -> None:
    with pytest.raises(ReplayError, match=r"no tensor layers\.0\.mlp\.up_proj\.weight"):
        Reference(recipe.without("layers.0.mlp.up_proj.weight"))


def test_a_layer_that_was_not_recorded_is_named(recording: Recording, recipe: Recipe) -> None:
    with pytest.raises(ReplayError, match="no states of target layer 77"):
        Reference(replace(recipe, layers=(2, 6, 77))).extend(recording.sequences[0])
