"""One run, or two and their diff, as a self-contained HTML page."""

from eagletrace.report.html.gather import RunReport, gather
from eagletrace.report.html.page import Shown, render
from eagletrace.report.html.repeat import Origin
from eagletrace.report.html.tokens import TokenizerError, TokenNames, TokenTexts, load_tokenizer

__all__ = [
    "Origin", "RunReport", "Shown", "TokenNames", "TokenTexts", "TokenizerError", "gather", "load_tokenizer", "render",
]  # fmt: skip
