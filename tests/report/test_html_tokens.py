"""Token ids as text: byte-level and SentencePiece vocabularies, ids that no tokenizer has, files that are none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import eagletrace
from eagletrace.report.html import TokenizerError, TokenNames, load_tokenizer
from eagletrace.report.html.tokens import visible

tokenizers = pytest.importorskip("tokenizers")
TARGET = Path(eagletrace.__file__).parent / "lab" / "pair" / "data" / "llama" / "target"


def test_every_whole_token_is_what_the_tokenizer_decodes() -> None:
    names, tokenizer = load_tokenizer(TARGET), tokenizers.Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    compared = 0
    for number in range(tokenizer.get_vocab_size()):
        token, decoded = names(number), tokenizer.decode([number], skip_special_tokens=False)
        assert token is not None and token.id == str(number) and token.is_text
        if "\ufffd" not in decoded:
            assert token.shown == visible(decoded)
            compared += 1
    assert compared > 300


def test_bytes_that_are_part_of_a_character_stay_bytes() -> None:
    token = load_tokenizer(TARGET)(101)
    assert token is not None and token.shown == "\\xa5"


def test_sentence_piece(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁the": 1, "<0x0A>": 2, "<0xE2>": 3, "cat": 4}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>", "byte_fallback": True}
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoder = {"type": "Sequence", "decoders": [space, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    added = [{"id": 0, "content": "<unk>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False}]  # fmt: skip
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model, "decoder": decoder}))
    names = load_tokenizer(file)
    shown = [token.shown if (token := names(n)) else None for n in range(5)]
    assert shown == ["<unk>", "·the", "↵", "\\xe2", "cat"]


def test_ids_without_a_text_stay_ids() -> None:
    names = load_tokenizer(TARGET)
    for number in (512, 1 << 40, -7):
        token = names(number)
        assert token is not None and (token.shown, token.is_text) == (str(number), False)
    assert names(None) is None


def test_hashes_are_short() -> None:
    token = TokenNames(redacted=True)(-2)
    assert token is not None and (token.id, token.shown) == ("fffffffffffffffe", "ffffff")


def test_spaces_can_be_seen_and_control_characters_are_escaped() -> None:
    assert visible(" a\n\t\x1b\u202e") == "·a↵⇥\\x1b\\u202e" and visible("") == "(empty)"


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("[" * 100_000, "not JSON"), ("nonsense", "not JSON"), ('{"a": 1}', "no tokenizer"),
     ("[]", "no tokenizer"), ('{"version": "1.0", "model": {"type": "None"}}', "no tokenizer")],
    ids=["missing", "deep", "text", "other JSON", "list", "odd model"],
)  # fmt: skip
def test_files_that_are_no_tokenizer(text: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(TokenizerError, match=said) as raised:
        load_tokenizer(file)
    assert "tokenizer.json" in str(raised.value) and raised.value.exit_code == 2


def test_binary_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe\0")
    with pytest.raises(TokenizerError, match="not JSON"):
        load_tokenizer(tmp_path)


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizerError, match=r"pip install 'eagletrace\[report\]'"):
        load_tokenizer(TARGET)
