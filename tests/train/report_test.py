#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.html in Chromium: it says what the run did, lays out and asks for nothing else: report_test.py SHERD [PICTURE]"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from browser import Browser  # noqa: E402

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
FIGURES = ["Loss", "Gradient norm", "Tokens per second", "Learning rate", "Memory on the fullest rank, MiB"]


def run(sherd, place, name, steps, ranks):
    """A run into a folder whose name a page must escape and break; its folder and its steps."""
    out = place / f'{name} <b>&amp; "it" {"x" * 60}'
    (place / "run.toml").write_text(
        f'[model]\ndim = 32\nlayers = 1\nheads = 2\n[data]\ntext = "{STORY}"\nvalidation = "{STORY}"\nseq = 32\n'
        f"[train]\nsteps = {steps}\nout = '{out}'\nvalidate_every = {max(1, steps // 2)}\n"
        f'[device]\nkind = "cpu"\nranks = {ranks}\n')
    subprocess.run([sherd, "train", str(place / "run.toml")], check=True, timeout=120, stdout=subprocess.DEVNULL,
                   env=dict(os.environ, OMP_NUM_THREADS="1"))
    return out, [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


LOOK = """(() => {
  const box = element => { const r = element.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  return {
    title: document.title,
    heading: document.querySelector('h1').textContent,
    summary: document.querySelector('#summary').textContent,
    configuration: document.querySelector('pre').textContent,
    scripts: document.scripts.length,
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    figures: [...document.querySelectorAll('figure')].map(figure => ({
      box: box(figure),
      svg: box(figure.querySelector('svg')),
      caption: figure.querySelector('figcaption').firstChild.textContent.trim(),
      legend: [...figure.querySelectorAll('figcaption span')].map(
        span => [span.textContent, getComputedStyle(span).color]),
      lines: [...figure.querySelectorAll('polyline')].map(line => ({
        points: [...line.points].map(point => [point.x, point.y]),
        colour: getComputedStyle(line).stroke,
        dashed: getComputedStyle(line).strokeDasharray != 'none',
        box: box(line)})),
      dots: [...figure.querySelectorAll('circle')].map(
        dot => ({at: [dot.cx.baseVal.value, dot.cy.baseVal.value], colour: getComputedStyle(dot).fill, box: box(dot)})),
      labels: [...figure.querySelectorAll('text')].map(text => ({text: text.textContent, box: box(text)})),
    }))};
})()"""


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def within(inner, outer, slack=0.5):
    return (inner[0] >= outer[0] - slack and inner[1] >= outer[1] - slack and inner[2] <= outer[2] + slack
            and inner[3] <= outer[3] + slack)


def number_of_points(steps):
    """For each figure, of each line."""
    losses = [len(steps)] + [sum("val_loss" in step for step in steps)]
    return [losses, [len(steps)], [len(steps)], [len(steps)], [len(steps)] * 2]


def check_lines(figure, counts):
    assert [len(line["points"]) for line in figure["lines"]] == counts, figure
    names = [name for name, _ in figure["legend"]]
    assert names == ([] if len(counts) == 1 else {"Loss": ["training", "validation"]}.get(
        figure["caption"], ["planned", "used"])), figure
    if names:
        assert [colour for _, colour in figure["legend"]] == [line["colour"] for line in figure["lines"]], figure
    # What is planned and what is used are mostly the same: the upper line must not hide the lower one.
    assert [line["dashed"] for line in figure["lines"]] == [False, True][:len(counts)], figure
    for line in figure["lines"]:
        # A line of one point is nothing on the screen: a dot must be where it would be.
        shown = [dot for dot in figure["dots"] if dot["colour"] == line["colour"]]
        if len(line["points"]) > 1:
            assert line["box"][2] - line["box"][0] > 100 and within(line["box"], figure["svg"], 1), line
        else:
            assert any(dot["at"] == line["points"][0] and within(dot["box"], figure["svg"]) for dot in shown), figure


def check_labels(figure):
    labels = figure["labels"]
    for label in labels:
        assert within(label["box"], figure["svg"], 1), (label, figure["svg"])
        assert "e+" not in label["text"], label
        assert not any(overlap(label["box"], other["box"]) for other in labels if other is not label), (label, labels)


def check(browser, out, steps, ranks, width):
    said, asked = browser.open(out / "report.html", width)
    assert not said, said
    assert asked == [(out / "report.html").as_uri()], asked
    page = browser.evaluate(LOOK)
    assert page["title"] == f"Sherd: {out}" and page["heading"] == str(out), page
    many = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
    assert page["summary"].startswith(f"{many} of a llama on {ranks} rank{'s' * (ranks > 1)} in "), page["summary"]
    assert f"loss {steps[0]['loss']:.4g} at the start, {steps[-1]['loss']:.4g} at the end." in page["summary"], page
    assert page["configuration"] == (out / "configuration.toml").read_text(), page["configuration"]
    assert page["scripts"] == 0 and not page["wide"], page
    figures = page["figures"]
    assert [figure["caption"] for figure in figures] == FIGURES, figures
    for figure, counts in zip(figures, number_of_points(steps), strict=True):
        assert 300 < figure["box"][2] - figure["box"][0] <= width and figure["svg"][3] - figure["svg"][1] > 100, figure
        assert not any(overlap(figure["box"], other["box"]) for other in figures if other is not figure), figures
        check_lines(figure, counts)
        check_labels(figure)
    losses = figures[0]["lines"][0]["points"]
    for (_, high), (_, low), before, after in zip(losses, losses[1:], steps, steps[1:]):
        assert (low > high) == (after["loss"] < before["loss"]), (losses, steps)  # y grows downwards
    return len(figures)


FAULTS = {  # what is put into the page, and where it must be noticed
    "<script>console.log('a word')</script>": "said",
    "<script>console.error('a mistake')</script>": "said",
    "<script>missing()</script>": "said",
    "<script>setTimeout(() => missing(), 50)</script>": "said",
    "<script>Promise.reject(new Error('a promise'))</script>": "said",
    "<script>let = = 3</script>": "said",
    "<img src='http://127.0.0.1:9/picture.png'>": "asked",
    "<link rel='stylesheet' href='missing.css'>": "asked",
    "<style>@import url('https://127.0.0.1:9/style.css');</style>": "asked",
}


def notices_faults(browser, report, place):
    for fault, where in FAULTS.items():
        page = place / "faulty.html"
        page.write_text(report.read_text().replace("</body>", fault + "</body>"))
        said, asked = browser.open(page)
        assert (said if where == "said" else asked[1:]), f"{fault} was not noticed"


def main():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        place = pathlib.Path(place)
        pages = 0
        with Browser(place / "profile") as browser:
            for name, steps, ranks in (("long", 8, 2), ("two", 2, 1), ("one", 1, 1)):
                out, metrics = run(sys.argv[1], place, name, steps, ranks)
                assert len(metrics) == steps, metrics
                for width in (1280, 400):
                    assert check(browser, out, metrics, ranks, width) == 5
                    pages += 1
                    if len(sys.argv) > 2:
                        browser.picture(f"{sys.argv[2]}-{name}-{width}.png")
            notices_faults(browser, out / "report.html", place)
    print(f"{pages} pages as they should be, {len(FAULTS)} faults noticed")


main()
