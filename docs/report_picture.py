"""Draws docs/report.png: parts of the report of the recorded run that ships with the package, as Chromium shows them.

python -m docs.report_picture
"""

from __future__ import annotations

import base64
import shutil
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from eagletrace.cli.demo import DEMO_RUN
from eagletrace.report.html import Origin, Shown, gather, load_tokenizer, render
from eagletrace.store import open_run

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "report.png"
TOKENIZER = ROOT / "eagletrace" / "lab" / "pair" / "data" / "llama" / "target"
# Where each picture begins, how high it is, and in which theme.
PARTS = (
    ("header", 1_010, "light"),
    ("#acceptance", 1_010, "dark"),
    ("#time", 620, "dark"),
    ("section#tokens", 620, "light"),
)
WIDTH = 940
COLOURS = 128  # of the file, a third as large


def main() -> None:
    """Write the report, photograph its parts, put them side by side."""
    with open_run(DEMO_RUN) as run:
        page = render([Shown(gather(run, load_tokenizer(TOKENIZER)), Origin("eagletrace-runs"))])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = Path(folder) / "report.html"
        file.write_text(page, encoding="utf-8")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        pictures = [_part(browser, file, *part) for part in PARTS]
        sheet = browser.new_page(viewport={"width": 1_500, "height": 100})
        images = "".join(f'<img src="data:image/png;base64,{base64.b64encode(data).decode()}">' for data in pictures)
        style = "body{margin:0;display:grid;grid-template-columns:1fr 1fr;gap:8px;background:#888}img{width:100%}"
        sheet.set_content(f"<style>{style}</style>{images}")
        whole = Image.open(BytesIO(sheet.screenshot(full_page=True)))
        browser.close()
    whole.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)
    print(f"wrote {PICTURE.relative_to(ROOT)} ({PICTURE.stat().st_size // 1000} kB)")


def _part(browser: Browser, file: Path, start: str, height: int, theme: str) -> bytes:
    page = browser.new_page(
        viewport={"width": WIDTH, "height": height}, color_scheme="dark" if theme == "dark" else "light"
    )
    page.goto(file.as_uri())
    top = page.locator(start).first.evaluate("(part) => part.getBoundingClientRect().top + scrollY")
    taken = page.screenshot(full_page=True, clip={"x": 0, "y": top, "width": WIDTH, "height": height})
    page.close()
    return taken


if __name__ == "__main__":
    main()
