"""A page as a test reads it: its elements, and what a browser makes of it."""

import base64
import json
import shutil
import subprocess
from html.parser import HTMLParser
from urllib.parse import unquote_to_bytes

import pytest

VOID = {"meta", "link", "input", "br", "img", "hr"}
CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")


class Page(HTMLParser):
    """The elements of a page with their texts; fails on tags that do not nest."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag):
        return [element for element in self.elements if element["tag"] == tag]


def parse(path):
    html = path.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    return Page(html)


def browse(page, folder, *, dark=False, script="", wait=4000):
    """The page's HTML after its scripts, and this one, have run; fails on any word on the console.

    Args:
        page: its path.
        folder: for the browser's profile.
        dark: what the reader's screen prefers.
        script: runs in the page when all else has, its clicks and all.
        wait: milliseconds of the browser's own clock.
    """
    if script:
        asked = folder / "asked.html"
        html = page.read_text(encoding="utf-8")
        asked.write_text(html.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        page = asked
    flags = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
        *(f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--v=0", "--dump-dom"),
        f"--virtual-time-budget={wait}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
    )
    done = subprocess.run(
        [CHROMIUM, *flags, page.as_uri()], capture_output=True, text=True, timeout=90, check=True
    )
    assert "CONSOLE" not in done.stderr
    return done.stdout


SAVE_ALL = """
const got = {};
HTMLAnchorElement.prototype.click = function () {
  const name = this.download;
  if (this.href.startsWith("data:")) got[name] = this.href;
  else fetch_blob(this.href, (url) => { got[name] = url; });
};
const blobs = {};
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { const url = make(blob); blobs[url] = blob; return url; };
const fetch_blob = (url, done) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result);
  reader.readAsDataURL(blobs[url]);
};
(async () => {
  const buttons = document.querySelectorAll("button[data-download]");
  for (const button of buttons) { button.focus(); document.activeElement.click(); }
  while (Object.keys(got).length < buttons.length) await new Promise((go) => setTimeout(go, 50));
  const told = document.createElement("script");
  told.id = "saved";
  told.type = "application/json";
  told.textContent = JSON.stringify(got);
  document.body.append(told);
})();
"""


def downloads(page, folder, **options):
    """File name to bytes of all that the page's buttons save."""
    done = browse(page, folder, script=SAVE_ALL, wait=20000, **options)
    saved = next(e["text"] for e in Page(done).all("script") if e.get("id") == "saved")
    return {name: _bytes(url) for name, url in json.loads(saved).items()}


def _bytes(url):
    head, _, body = url.partition(",")
    return base64.b64decode(body) if head.endswith("base64") else unquote_to_bytes(body)
