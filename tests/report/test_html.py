"""The page of a run, read without a browser: what it says, that it is whole, that no text of a trace is markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import eagletrace
from eagletrace.cli.demo import DEMO_RUN
from eagletrace.report.html import Origin, Shown, gather, load_tokenizer, render
from eagletrace.report.text import safe
from eagletrace.store import open_run
from tests.report.html_parse import Page, page_of
from tests.report.html_runs import HOSTILE, hostile_run, tree_run
from tests.store.runs import make_folder, small_run, writer

TOKENIZER = Path(eagletrace.__file__).parent / "lab" / "pair" / "data" / "llama" / "target" / "tokenizer.json"
LIMIT = 3_000_000


@pytest.fixture(scope="module")
def demo() -> str:
    return page_of(DEMO_RUN)


def test_verdict_and_fix_come_first(demo: str) -> None:
    with open_run(DEMO_RUN) as run:
        diagnosis = eagletrace.diagnose(run)
    text, cause = Page(demo).text, diagnosis.causes[0]
    order = [
        text.index(part) for part in ("FAULT", cause.title, diagnosis.why, cause.fix, "Evidence", "Acceptance by depth")
    ]
    assert order == sorted(order)
    for evidence in cause.evidence:
        assert evidence.text in text
    assert f"confidence {100 * cause.confidence:.0f} %" in text
    for check in diagnosis.checks:
        assert check.id in text and " ".join(check.reason.split()) in text


def test_counts_are_those_of_the_diagnosis(demo: str) -> None:
    with open_run(DEMO_RUN) as run:
        acceptance = eagletrace.diagnose(run).acceptance
    text = Page(demo).text
    for d in acceptance.by_depth:
        assert d.rate is not None and d.unconditional is not None
        low, high = d.interval
        row = f"{d.depth} {d.reached} {d.accepted} {d.rate:.1%} {low:.1%} to {high:.1%} {d.unconditional:.1%}"
        assert row in text
    for correct, rounds in enumerate(acceptance.histogram):
        assert f"{correct} {rounds} {rounds / acceptance.rounds:.1%}" in text


def test_every_table_of_facts_is_there(demo: str) -> None:
    text = Page(demo).text
    with open_run(DEMO_RUN) as run:
        columns = (
            "key FROM contract",
            "key FROM checkpoint_keys",
            "target FROM hooks",
            "name FROM params",
            "kind FROM events",
        )
        facts = run.execute(" UNION ".join(f"SELECT {column}" for column in columns))
    assert len(facts) > 100
    assert not [name for (name,) in facts if name not in text]


def test_every_chart_has_a_caption_a_label_and_a_table(demo: str) -> None:
    page = Page(demo)
    charts = [a for a in page.all("div") if a.get("class") == "chart"]
    assert len(charts) >= 8
    assert all(len(a["aria-label"] or "") > 20 and a["role"] == "img" for a in charts)
    drawn = json.loads(page.scripts[0])
    assert set(drawn) == {a["data-figure"] for a in charts}
    for figure in re.findall(r"<figure.*?</figure>", demo, re.DOTALL):
        assert "<figcaption>" in figure and "<caption>" in figure and "<tbody>" in figure


def test_ids_are_unique_and_links_lead_somewhere(demo: str) -> None:
    page = Page(demo)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"] or "" for a in page.all("a")]
    assert links and all(href[1:] in ids for href in links)


def test_nothing_comes_from_outside(demo: str) -> None:
    page = Page(demo)
    assert not [tag for tag, a in page.tags if {"src", "srcset", "action", "style"} & set(a)]
    assert all((a.get("href") or "#").startswith("#") for _, a in page.tags)
    assert not re.search(r"url\(|@import", " ".join(page.styles))


def test_the_policy_allows_these_scripts_and_styles_alone(demo: str) -> None:
    page = Page(demo)
    (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and "unsafe" not in policy and "http" not in policy
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["base-uri"] == "'none'" and rules["form-action"] == "'none'"

    def hashes(texts: list[str]) -> set[str]:
        return {f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts}

    assert set(rules["script-src"].split()) == hashes(page.scripts[1:])
    assert hashes(page.styles) < set(rules["style-src"].split())


def test_a_run_full_of_markup_shows_it_as_text(tmp_path: Path) -> None:
    text = page_of(hostile_run(tmp_path / "run"))
    page = Page(text)
    assert len(page.scripts) == 4 and len(page.styles) == 1 and not page.all("img")
    assert not [name for _, a in page.tags for name in a if name.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)
    shown = page.text.count(safe(HOSTILE))
    assert shown >= 50, "the strings of the trace are shown, not left out"
    json.loads(page.scripts[0])


@pytest.mark.parametrize("table", ["contract", "hooks", "events", "checkpoint_keys", "params", "requests"])
def test_no_table_is_left_out_of_the_hostile_run(table: str, tmp_path: Path) -> None:
    """That the run above holds what it should: each table of texts has them."""
    path = hostile_run(tmp_path / "run")
    with open_run(path) as run:
        rows = run.query(f"FROM all_ranks.{table}").rows()
    found = [row for row in rows if "<script>" in json.dumps(row, default=str)]
    assert found


def test_a_run_without_rounds(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    writer(path).write("contract", [{"key": "engine.version", "actual": '"0.5.23"', "source": "x"}])
    page = Page(page_of(path))
    assert "INCONCLUSIVE" in page.text and "engine.version" in page.text
    assert not [a for a in page.all("div") if a.get("class") == "chart"]
    assert not [a for a in page.all("a") if a["href"] == "#acceptance"]


def test_a_run_of_totals_alone_has_their_timeline(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run", settings={"level": "contract"})
    row = {"drafted": 300, "reached_by_depth": [100], "correct_drafts_histogram": [50, 50]}
    writer(path).write("totals", [
        {**row, "time_unix_nano": n * 10**9, "rounds": 100, "accepted": 50 + n, "accepted_by_depth": [50 + n]}
        for n in range(5)
    ])  # fmt: skip
    page = Page(page_of(path))
    figures = json.loads(page.scripts[0])
    assert [round(s["length"], 3) for s in figures["timeline"]["data"]["steps"]] == [1.5, 1.51, 1.52, 1.53, 1.54]
    assert "counted from the totals" in page.text


def test_trees_are_trees(tmp_path: Path) -> None:
    text = page_of(tree_run(tmp_path / "run"))
    trees = re.findall(r'<ul class="tree">.*?</ul></div>', text, re.DOTALL)
    assert len(trees) == 10
    inner = Page(trees[0].removesuffix("</div>"))
    read = inner.text
    assert read == (
        "10 root 11 accepted (draft 50 %) 21 accepted (draft 50 %) 31 rejected (draft 50 %) 32 rejected (draft 50 %) "
        "target wanted 33 , the draft's no. 7 22 rejected (draft 50 %) 34 not judged (draft 50 %) "
        "12 rejected (draft 50 %)"
    )
    depth, deepest = 0, 0
    for mark in re.findall(r"<ul|</ul", trees[0]):
        depth += 1 if mark == "<ul" else -1
        deepest = max(deepest, depth)
    assert deepest == 4


def test_chains_are_rows(tmp_path: Path) -> None:
    page = Page(page_of(small_run(tmp_path / "run")))
    assert "1 10 100 101 accepted 102 accepted 7 rejected target wanted 103 , the draft's no. 4 103" in page.text
    assert "2 13 103 8 rejected target wanted 104 , the draft's no. 4 8 not judged 8 not judged 104" in page.text


def test_the_output_of_sampled_rounds_says_where_each_token_came_from(tmp_path: Path) -> None:
    """A third round that was cut to three tokens: 105, 106, 107 are kept, the bonus 108 is not."""
    text = page_of(small_run(tmp_path / "run"))
    (output,) = re.findall(r'<p class="output">(.*?)</p>', text, re.DOTALL)
    tokens = re.findall(r'class="tok (\w+)" title="id (\d+)"', output)
    assert tokens == [("accepted", "101"), ("accepted", "102"), ("target", "103"), ("target", "104"),
                      ("accepted", "105"), ("accepted", "106"), ("accepted", "107")]  # fmt: skip


def test_tokens_as_text(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    text = page_of(tree_run(tmp_path / "run"), load_tokenizer(TOKENIZER))
    page = Page(text)
    assert ('title="id 34"><span class="as-text">@</span><span class="as-id">34</span></code>') in text
    assert [a for a in page.all("button") if a.get("id") == "tokens"]
    assert "Numbers are token ids" not in page.text and "Numbers are token ids" in page_of(tmp_path / "run")


def test_hashes_of_a_redacted_run_are_no_token_ids(tmp_path: Path) -> None:
    path = small_run(tmp_path / "run", settings={"level": "tokens", "redact": True})
    with open_run(path) as run:
        report = gather(run, load_tokenizer(TOKENIZER))
        page = Page(render([Shown(report, Origin(str(path)))]))
    assert any("EAGLETRACE_REDACT" in note for note in report.notes)
    assert "keyed hashes" in page.text and not [a for a in page.all("button") if a.get("id") == "tokens"]
    assert {a["title"] for a in page.all("code") if "title" in a} >= {f"id {101:016x}"}


def test_secrets_among_the_servers_arguments_are_not_shown(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "api_key": "s3cret",
        "admin_api_key": "s3cret",
        "watermark_key": "s3cret",
        "tp_size": 2,
    }
    page = Page(page_of(small_run(tmp_path / "run", server_args={**arguments, "quantization": None})))
    assert "s3cret" not in page.text and "tp_size 2" in page.text and "quantization" not in page.text


def test_how_to_record_it_again(tmp_path: Path) -> None:
    settings = {"level": "tensors", "sample": 0.5, "aux_layers": "all", "hidden_every": 32, "redact": False}
    text = Page(page_of(small_run(tmp_path / "run", settings=settings))).text
    assert (
        "EAGLETRACE=1 EAGLETRACE_LEVEL=tensors EAGLETRACE_SAMPLE=0.5 EAGLETRACE_AUX_LAYERS=all <the server's command>"
        in text
    )


def test_the_size_does_not_grow_with_names(tmp_path: Path) -> None:
    """Names, events and hooks without end: the page stays small."""
    path = small_run(tmp_path / "run")
    out = writer(path)
    out.write(
        "checkpoint_keys", [{"key": f"layers.{n}.weight", "fate": "loaded", "landed_in": "[]"} for n in range(9_000)]
    )
    out.write("params", [{"name": f"layers.{n}.weight", "side": "draft", "time_unix_nano": 1} for n in range(9_000)])
    out.write(
        "events",
        [{"time_unix_nano": n * 10**6, "kind": "retraction", "detail": '{"request_ids": []}'} for n in range(9_000)],
    )
    out.write("hooks", [{"target": f"a.b:{n}", "status": "installed", "time_unix_nano": 1} for n in range(2_000)])
    text = page_of(path)
    assert len(text.encode()) < LIMIT / 2
    assert "9000" in Page(text).text, "how many events there were is told"
