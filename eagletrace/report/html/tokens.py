"""Token ids for people: as text where a tokenizer is given, as ids otherwise, as short hashes in a redacted run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from eagletrace.errors import EagletraceError
from eagletrace.report.text import safe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
MAX_BYTES = 256 << 20  # the largest published ones take some 20 MB
HASH_DIGITS = 6
SPACES = {" ": "·", "\n": "↵", "\t": "⇥"}
META_SPACE = "▁"


class TokenizerError(EagletraceError):
    """A tokenizer that cannot be used: missing, damaged, or the library is absent."""


@dataclass(frozen=True)
class Token:
    """One token: `shown` is its text with visible spaces, or the id; `id` the whole id."""

    id: str
    shown: str
    is_text: bool = False


class TokenNames:
    """Names tokens by their ids; `redacted` ids are hashes and shortened."""

    has_text = False

    def __init__(self, *, redacted: bool = False) -> None:
        self.redacted = redacted

    def __call__(self, token: int | None) -> Token | None:
        """The token, None for None."""
        if token is None:
            return None
        if self.redacted:
            digits = f"{token & (1 << 64) - 1:016x}"
            return Token(digits, digits[:HASH_DIGITS])
        return Token(str(token), str(token))


class TokenTexts(TokenNames):
    """Names tokens by their text in a `tokenizer.json`; ids that it does not have stay ids."""

    has_text = True

    def __init__(self, tokenizer: Tokenizer, decoders: set[str]) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
        self._read: Callable[[str], str] = _byte_level if "ByteLevel" in decoders else _sentence_piece

    def __call__(self, token: int | None) -> Token | None:
        """The token, None for None."""
        if token is None:
            return None
        text = self._added.get(token)
        if text is None:
            piece = self._tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
            if piece is None:
                return Token(str(token), str(token))
            text = self._read(piece)
        return Token(str(token), visible(text), is_text=True)


def visible(text: str) -> str:
    """Text in which spaces, line ends and tabs can be seen; other control characters become escapes."""
    shown = "".join(SPACES.get(c, c) for c in text)
    return safe(shown) or "(empty)"


def load_tokenizer(path: Path) -> TokenTexts:
    """Read a `tokenizer.json`, or the one in a folder; TokenizerError if that cannot be done."""
    file = path / FILE if path.is_dir() else path
    try:
        if file.stat().st_size > MAX_BYTES:
            raise TokenizerError(f"--tokenizer {path}: larger than {MAX_BYTES >> 20} MiB; give a {FILE}")
        text = file.read_text(encoding="utf-8")
        settings: Any = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not JSON ({error})"
        raise TokenizerError(f"--tokenizer {path}: cannot read {file.name}: {why}; {_WANTED}") from None
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError(
            f"--tokenizer needs the tokenizers library ({error}): pip install 'eagletrace[report]'; "
            "without --tokenizer the report shows token ids"
        ) from None
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 -- the library raises Exception itself
        raise TokenizerError(f"--tokenizer {path}: {file.name} is no tokenizer ({error}); {_WANTED}") from None
    return TokenTexts(tokenizer, set(_types(cast("dict[str, Any]", settings).get("decoder"))))


_WANTED = f"give the target's {FILE}, or the folder that holds it"


def _types(decoder: Any) -> Iterator[str]:
    """The types of a decoder and of its parts."""
    if isinstance(decoder, dict):
        part = cast("dict[str, Any]", decoder)
        yield str(part.get("type"))
        for inner in cast("list[Any]", part.get("decoders") or []):
            yield from _types(inner)


@cache
def _bytes_of_characters() -> dict[str, int]:
    """The byte that each character stands for in a byte-level vocabulary (GPT-2's table): printable bytes stand for
    themselves, the others for the characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


def _byte_level(piece: str) -> str:
    """The text of a byte-level token; bytes that are only part of a character stay `\\xNN`."""
    table = _bytes_of_characters()
    if any(c not in table for c in piece):
        return piece
    return bytes(table[c] for c in piece).decode("utf-8", "backslashreplace")


def _sentence_piece(piece: str) -> str:
    """The text of a SentencePiece token; a byte token such as `<0x0A>` becomes its character."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)]).decode("utf-8", "backslashreplace")
    return piece.replace(META_SPACE, " ")
