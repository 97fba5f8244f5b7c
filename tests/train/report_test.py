#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.html in Chromium: it says what the run did, lays out and asks for nothing else: report_test.py SHERD [PICTURE]"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from browser import Browser  # noqa: E402

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
FIGURES = ["Loss", "Gradient norm", "Learning rate", "Tokens per second"]
OF_SEVERAL_RANKS = ["Computing time of a rank, ms"]


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
    values: Object.fromEntries([...document.querySelectorAll('#figures div, #facts div')].map(
      entry => [entry.querySelector('dt').textContent, entry.querySelector('dd').textContent])),
    memory: [...document.querySelectorAll('#ledger tr')].map(row => [...row.cells].map(cell => cell.textContent)),
    refresh: document.querySelector('meta[http-equiv=refresh]')?.content ?? null,
    scripts: document.scripts.length,
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    figures: [...document.querySelectorAll('figure')].filter(figure => figure.offsetParent).map(figure => ({
      resumed: figure.querySelectorAll('.edge').length,
      box: box(figure),
      svg: box(figure.querySelector('svg')),
      caption: figure.querySelector('figcaption').firstChild.textContent.trim(),
      legend: [...figure.querySelectorAll('figcaption span')].map(
        span => [span.textContent, getComputedStyle(span).color]),
      lines: [...figure.querySelectorAll('polyline')].map(line => ({
        points: [...line.points].map(point => [point.x, point.y]),
        colour: getComputedStyle(line).stroke,
        faint: getComputedStyle(line).opacity < 1,
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


def names_of_lines(steps):
    """For each figure: of several lines the names."""
    smooth = ["smoothed"] if len(steps) >= 10 else []
    validation = ["validation"] if any("val_loss" in step for step in steps) else []
    loss, norm = ["training", *smooth, *validation], ["norm", *smooth]
    of_ranks = [["slowest", "fastest"]] if "slowest_rank" in steps[0] else []
    return [names if len(names) > 1 else [] for names in (loss, norm)] + [[], [], *of_ranks]


def check_lines(figure, names, steps):
    assert [name for name, _ in figure["legend"]] == names and len(figure["lines"]) == max(1, len(names)), figure
    for line, name in zip(figure["lines"], names or [None]):
        count = sum("val_loss" in step for step in steps) if name == "validation" else len(steps)
        assert len(line["points"]) == count, (figure["caption"], name, line)
        # What is measured must not hide what it means.
        assert line["faint"] == ("smoothed" in names and name in ("training", "norm")), (figure["caption"], name, line)
        # A line of one point is nothing on the screen: a dot must be where it would be.
        shown = [dot for dot in figure["dots"] if dot["colour"] == line["colour"]]
        if len(line["points"]) > 1:
            assert line["box"][2] - line["box"][0] > 100 and within(line["box"], figure["svg"], 1), line
        else:
            assert any(dot["at"] == line["points"][0] and within(dot["box"], figure["svg"]) for dot in shown), figure
    if names:
        assert [colour for _, colour in figure["legend"]] == [line["colour"] for line in figure["lines"]], figure


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
    # Every key but those of other kinds of models.
    lines, whole = page["configuration"].splitlines(), (out / "configuration.toml").read_text().splitlines()
    left_out = [line.split(" = ")[0] for line in whole if line not in lines]
    assert [line for line in whole if line in lines] == lines, lines
    assert {"experts", "pattern", "image_size", "ssm_state"} <= set(left_out) and not set(left_out) & {"dim", "seq", "lr"}, left_out
    assert page["scripts"] == 0 and not page["wide"] and page["refresh"] is None, page
    check_values(page, steps, ranks)
    for log in (False, True):
        if log:
            browser.evaluate("document.querySelector('#log').click()")
        figures = browser.evaluate(LOOK)["figures"]
        check_figures(figures, steps, ranks, width)
    assert (f"of {len(steps)} steps; between the slowest and the fastest rank were" in page["summary"]) == (ranks > 1), page
    return len(figures)


def check_values(page, steps, ranks):
    values, last = page["values"], steps[-1]
    assert values["tokens seen"] == f"{last['tokens']:,}" and last["tokens"] == 32 * ranks * last["step"], values
    assert values["parameters"] == "32,864" and values["ranks"] == str(ranks) and " of " in values["device"], values
    assert values[f"step of {last['step']}"] == str(last["step"]) and values["machine"] == os.uname().nodename, values
    assert float(values["epoch"]) > 0 and values["newest checkpoint"].endswith(f"step-{last['step']}"), values
    assert values["torch"] and values["sherd"] and values["precision"] == "fp32", values
    resumed = ", ".join(str(step["step"]) for step in steps if "resumed" in step)
    assert values.get("continued at step", "") == resumed, values
    best = min((step for step in steps if "val_loss" in step), key=lambda step: step["val_loss"])
    assert values[f"best validation loss, step {best['step']}"] == f"{best['val_loss']:.4g}", values
    names = [row[0] for row in page["memory"]]
    assert names[0] == "bytes" and {"model weights", "optimizer state", "activations"} <= set(names) and names[-1] == "total", names
    measured = {row[0]: row[2] == row[1] for row in page["memory"] if row[2]}
    assert measured["optimizer state"] and measured["arena"], page["memory"]


def check_figures(figures, steps, ranks, width):
    assert [figure["caption"] for figure in figures] == FIGURES + OF_SEVERAL_RANKS * (ranks > 1), figures
    for figure, names in zip(figures, names_of_lines(steps), strict=True):
        assert 300 < figure["box"][2] - figure["box"][0] <= width and figure["svg"][3] - figure["svg"][1] > 100, figure
        assert not any(overlap(figure["box"], other["box"]) for other in figures if other is not figure), figures
        assert figure["resumed"] == sum("resumed" in step for step in steps), figure
        check_lines(figure, names, steps)
        check_labels(figure)
    losses = figures[0]["lines"][0]["points"]
    for (_, high), (_, low), before, after in zip(losses, losses[1:], steps, steps[1:]):
        assert (low > high) == (after["loss"] < before["loss"]), (losses, steps)  # y grows downwards


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


def check_running(sherd, place):
    """A run whose page is looked at meanwhile: whole at any time, and asking for itself again."""
    (place / "run.toml").write_text(f'[model]\ndim = 32\nlayers = 1\nheads = 2\n[data]\ntext = "{STORY}"\nseq = 32\n'
                                    f"[train]\nsteps = 1000000\nout = '{place}/running'\n[device]\nkind = \"cpu\"\n")
    with subprocess.Popen([sherd, "train", str(place / "run.toml")], stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1")) as process:
        assert any(line.startswith("step ") for line in process.stdout)
        page = place / "running/report.html"
        limit = time.monotonic() + 20
        while not page.exists():
            assert time.monotonic() < limit
        text = page.read_text()
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 0 and text.endswith("</html>\n"), text[-100:]
    assert "while the run was going on" in text and '<meta http-equiv="refresh" content="10">' in text, text[:3000]
    after = page.read_text()
    assert "while the run was going on" not in after and "refresh" not in after, after[:3000]


def check_samples(browser, sherd, place):
    """What a model writes is text, whatever it is."""
    out = place / "samples"
    (place / "run.toml").write_text(
        f'[model]\ndim = 32\nlayers = 1\nheads = 2\n[data]\ntext = "{STORY}"\nseq = 32\n[train]\nsteps = 4\nout = "{out}"\n'
        'sample_every = 2\nsample_prompts = ["<script>missing()</script>"]\nsample_tokens = 8\n[device]\nkind = "cpu"\n')
    subprocess.run([sherd, "train", str(place / "run.toml")], check=True, timeout=120, stdout=subprocess.DEVNULL)
    said, _ = browser.open(out / "report.html")
    sample = json.loads((out / "samples.jsonl").read_text().splitlines()[-1])
    heading, text = browser.evaluate("['h2', 'p'].map(name => document.querySelector('#samples ' + name).textContent)")
    assert not said and heading == "What the model writes after step 4" and sample["step"] == 4, (said, heading)
    assert text.startswith(sample["prompt"]) and sample["prompt"] == "<script>missing()</script>", (text, sample)


def main():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        place = pathlib.Path(place)
        pages = 0
        with Browser(place / "profile") as browser:
            check_running(sys.argv[1], place)
            for name, steps, ranks in (("long", 12, 2), ("two", 2, 1), ("one", 1, 1)):
                if steps == 12:
                    run(sys.argv[1], place, name, 7, ranks)  # which then goes on
                out, metrics = run(sys.argv[1], place, name, steps, ranks)
                assert len(metrics) == steps, metrics
                for width in (1280, 400):
                    assert check(browser, out, metrics, ranks, width) == len(FIGURES) + (ranks > 1)
                    pages += 1
                    if len(sys.argv) > 2:
                        browser.picture(f"{sys.argv[2]}-{name}-{width}.png")
            check_samples(browser, sys.argv[1], place)
            notices_faults(browser, out / "report.html", place)
    print(f"{pages} pages as they should be, {len(FAULTS)} faults noticed")


main()
