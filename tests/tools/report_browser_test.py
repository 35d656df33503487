#!/usr/bin/env python3
"""report_browser_test.py RCSOCK PRELOAD

The page of `rcsock perf --report` in a real browser (Debian's chromium, headless):
light and dark, on a screen and 390 pixels wide as on a phone.  Nothing on the
console, nothing wider than the page, marks in each plot, text that can be read
(WCAG's contrast of 4.5).
"""

import html
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

# A page within a page, whose width is what we say: a browser's window may not be
# as narrow as a phone.  What it finds is left in its title's place.
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="page" style="border:0;width:WIDTHpx;height:900px" srcdoc="PAGE"></iframe>
<pre id="found"></pre>
<script>
function channel(c) { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; }
function light(c) { return .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]); }
function parts(text) { return text.match(/[\\d.]+/g).map(Number); }
function contrast(a, b) {
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + .05) / (y + .05);
}
const frame = document.getElementById('page');
frame.onload = () => {
  const inner = frame.contentDocument, view = frame.contentWindow;
  for (const d of inner.querySelectorAll('details')) d.open = true;
  const root = inner.documentElement;
  function behind(element) {
    for (let e = element; e; e = e.parentElement) {
      const c = parts(view.getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  }
  const found = {width: root.clientWidth, scroll: root.scrollWidth, sticks_out: [],
                 plots: [], faint: [], texts: 0,
                 back: behind(inner.body).slice(0, 3)};
  for (const e of inner.body.querySelectorAll('*')) {
    const style = view.getComputedStyle(e), box = e.getBoundingClientRect();
    if (!e.closest('.scroll') && box.right > root.clientWidth + 1) {
      found.sticks_out.push(e.tagName + ' ' + box.right);
    }
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim() !== '');
    if (!own || box.width === 0) continue;
    const ink = e instanceof view.SVGElement ? style.fill : style.color;
    const ratio = contrast(parts(ink), behind(e));
    ++found.texts;
    if (ratio < 4.5) found.faint.push([e.textContent.slice(0, 30), ratio]);
  }
  for (const svg of inner.querySelectorAll('svg:not(.key)')) {
    const box = svg.getBoundingClientRect();
    const lines = [...svg.querySelectorAll('.line')].filter(l => l.getTotalLength() > 10);
    found.plots.push({width: box.width, height: box.height, lines: lines.length,
      weakest: Math.min(...lines.map(
        l => contrast(parts(view.getComputedStyle(l).stroke), behind(svg)))),
      dots: svg.querySelectorAll('.dot').length,
      ticks: svg.querySelectorAll('.tick').length});
  }
  document.getElementById('found').textContent = JSON.stringify(found);
};
</script>
"""


def check(good, *what):
    if not good:
        raise AssertionError(what)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


def make_page(tool, directory):
    path = directory / "out.html"
    port = free_port()
    with subprocess.Popen([tool, "perf", "-s", "-p", port], text=True,
                          stdout=subprocess.PIPE) as server:
        try:
            server.stdout.readline()  # it listens
            subprocess.run(
                [tool, "perf", "-c", "127.0.0.1", "-p", port, "--report", path,
                 "-t", "0.05", "--settle", "10", "--transport", "tcp,auto"],
                stdout=subprocess.DEVNULL, check=True, timeout=200)
        finally:
            server.terminate()
    return path.read_text()


def look(chromium, directory, page, dark, width):
    harness = directory / "harness.html"
    harness.write_text(HARNESS.replace("WIDTH", str(width))
                       .replace("PAGE", html.escape(page)))
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu",
         "--disable-dev-shm-usage", "--hide-scrollbars",
         f"--user-data-dir={directory / 'profile'}",
         "--enable-logging=stderr", "--virtual-time-budget=5000",
         "--window-size=1400,1000",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}",
         "--dump-dom", harness.as_uri()],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "HOME": str(directory)})
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    check(not console, console)
    text = re.search(r'<pre id="found">(.+?)</pre>', done.stdout, re.S)
    check(text, "nothing found", done.returncode, done.stderr[-2000:])
    return json.loads(html.unescape(text[1]))


def main():
    chromium = shutil.which("chromium")
    if chromium is None:
        return "chromium is missing: apt install chromium"
    tool = os.path.realpath(sys.argv[1])
    os.environ["RCSOCK_PRELOAD"] = os.path.realpath(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        page = make_page(tool, directory)
        for dark in False, True:
            for width in 1200, 390:
                found = look(chromium, directory, page, dark, width)
                check(found["width"] == width, found)
                check(found["scroll"] <= width, "wider than the page", found)
                check(not found["sticks_out"], found)
                check((sum(found["back"]) < 200) == dark, "background", found)
                check(not found["faint"], found["faint"])
                check(found["texts"] > 50, found)
                check(len(found["plots"]) == 5, found["plots"])
                for plot in found["plots"]:
                    check(plot["lines"] == 2 and plot["ticks"] > 3, plot)
                    check(plot["weakest"] >= 3, plot)
                    check(plot["width"] > 200 and plot["height"] > 100, plot)
                check(sum(p["dots"] for p in found["plots"]) > 0, found["plots"])
                print("dark" if dark else "light", width, "right:",
                      found["texts"], "texts", flush=True)
    return None


if __name__ == "__main__":
    sys.exit(main())
