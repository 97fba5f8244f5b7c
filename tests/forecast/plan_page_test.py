#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of a plan in Chromium, drawn from made-up plans: plan_page_test.py PLAN_PAGE_PROGRAM [PICTURE]"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "ranks")]
import busy  # noqa: E402
from browser import Browser  # noqa: E402

HOSTILE = ["<img src=x onerror=\"document.body.dataset.owned='yes'\">", "</script><b>bold</b>", "<!--", "--><i>\"'&amp;",
           "<!-- <script>", "constructor", "__proto__", "\u2028 of </svg> of "]
GiB = 2**30
ALL = os.environ.get("SHERD_TEST_ALL") == "1"


class Step:
    """A made-up step: gathers one unit ahead, reduces behind, and what each takes and holds."""

    def __init__(self, sizes, micro_batches):
        self.sizes, self.spans, self.held, self.sections = sizes, [], [], []
        self.free = [0.0, 0.0, 0.0, 0.0]  # when each stream is done
        for turn in range(micro_batches):
            self.run(f"forward {'changed' if turn == 0 else 'unchanged'} train", range(len(sizes)), False)
            self.run(f"backward{' first' * (turn == 0)}{' last' * (turn == micro_batches - 1)}",
                     range(len(sizes) - 1, -1, -1), True)
        self.free[0] = max(self.free)
        self.sections.append("update")
        self.put(0, "update", None, 0.012, 0)

    def put(self, stream, action, unit, seconds, size):
        begin = self.free[stream]
        self.free[stream] = begin + seconds
        self.spans.append({"stream": stream, "action": action, "unit": unit and unit[0], "section": len(self.sections) - 1,
                           "begin": begin, "end": begin + seconds, "bytes": size})
        return begin, begin + seconds

    def run(self, name, order, backward):
        self.sections.append(name)
        order, gathered = list(order), {}

        def gather(place):
            number = order[place]
            gathered[number] = self.put(1, "gather", self.sizes[number], 2e-3 + self.sizes[number][1] / 150e9,
                                        self.sizes[number][1])

        self.free[1] = max(self.free[1], self.free[0])
        gather(0)
        for place, number in enumerate(order):
            unit = self.sizes[number]
            self.free[0] = max(self.free[0], gathered[number][1])
            self.free[1] = max(self.free[1], self.free[0])
            if place + 1 < len(order):
                gather(place + 1)
            begin, end = self.put(0, "compute", unit, unit[2] * (2 if backward else 1), 0)
            self.held.append({"buffer": number, "begin": gathered[number][0], "end": end})
            if backward:
                self.free[2] = max(self.free[2], end)
                reduced = self.put(2, "reduce", unit, 3e-3 + unit[1] / 120e9, unit[1])
                self.held.append({"buffer": len(self.sizes) + number, "begin": begin, "end": reduced[1]})


def place(buffers, held):
    """Gives each buffer the lowest offset that is free whenever it is held: (the arena's bytes, the most held at once)."""
    times, placed = [[] for _ in buffers], []
    for one in held:
        times[one["buffer"]].append((one["begin"], one["end"]))
    for number in sorted(range(len(buffers)), key=lambda i: -buffers[i]["bytes"]):
        offset = 0
        for other in sorted(placed, key=lambda i: buffers[i]["offset"]):
            meets = any(a < d and c < b for a, b in times[number] for c, d in times[other])
            if meets and buffers[other]["offset"] < offset + buffers[number]["bytes"]:
                offset = max(offset, buffers[other]["offset"] + buffers[other]["bytes"])
        buffers[number]["offset"] = offset
        placed.append(number)
    bound = max(sum(buffers[one["buffer"]]["bytes"] for one in held if one["begin"] <= at["begin"] < one["end"]) for at in held)
    return max(one["offset"] + one["bytes"] for one in buffers), bound


def example(layers=32, micro_batches=1, worlds=8, names=()):
    sizes = [("embedding", 1002 * 2**20, 0.004), *((f"layers.{i}", 416 * 2**20, 0.011) for i in range(layers)),
             ("head", 1002 * 2**20, 0.016)]
    for i, name in enumerate(names):
        sizes[i] = (name, *sizes[i][1:])
    step = Step(sizes, micro_batches)
    buffers = [{"name": f"{role} of {name}", "bytes": size} for role in ("parameters", "gradients") for name, size, _ in sizes]
    arena, bound = place(buffers, step.held)
    ledger = [("model weights", 2008 * 2**20), ("main weights", 4016 * 2**20), ("main gradients", 4016 * 2**20),
              ("optimizer state", 8032 * 2**20), ("arena", arena), ("activations", 21 * GiB + 12345), ("staging", 77)]
    seconds = max(step.free)
    return {
        "source": "run.toml", "title": f"llama, 8.03 B parameters, {8} ranks", "world": 8, "device": "cuda",
        "facts": [["strategy", "optim_grads_params"], ["precision", "bf16_o1"], ["sequence", "8,192 tokens"],
                  ["micro-batches", str(micro_batches)], ["prefetch", "1 unit ahead"], ["network", "450 GB/s, 8 µs"],
                  ["fingerprint", "9f3c2a77e0b1d645"]],
        "ledger": [{"name": name, "planned": size, "measured": None} for name, size in ledger],
        "total": {"planned": sum(size for _, size in ledger), "measured": None},
        "arena": {"bytes": arena, "bound": bound, "buffers": buffers},
        "timeline": {"seconds": seconds, "sections": step.sections, "streams": ["compute", "gather", "reduce", "outer"],
                     "spans": step.spans, "held": step.held},
        "units": [{"name": name, "forward": take, "backward": 2 * take, "activations": int(take * 5e10),
                   "exposed": 0.004 if i % 7 == 0 else i * 1e-5} for i, (name, _, take) in enumerate(sizes)],
        "traffic": [
            {"axis": "dp", "collective": "all_gather", "calls": 68, "bytes": 30 * GiB, "wire": 26 * GiB, "seconds": 0.31},
            {"axis": "dp", "collective": "reduce_scatter", "calls": 34, "bytes": 15 * GiB, "wire": 13 * GiB, "seconds": 0.21},
            {"axis": "dp_outer", "collective": "all_reduce", "calls": 0, "bytes": 0, "wire": 0, "seconds": 0}],
        "worlds": [{"world": 8 * 2**i, "bytes": int(24 * GiB + 16 * GiB / 2**i), "seconds": 1.2 + 0.04 * i * i,
                    "exposed": 0.05 + 0.03 * i * i, "tokens_per_second": 8 * 2**i * 8192 / (1.2 + 0.04 * i * i)}
                   for i in range(worlds)],
        "program": "forward changed train\n" + "".join(f"  {span['action']} {span['unit']}\n" for span in step.spans),
    }


LOOK = """(() => {
  const box = one => { const r = one.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const frame = plot => {  // of a plot; the box of a nested svg is that of its contents
    const [left, top] = box(plot.ownerSVGElement);
    const [x, y, width, height] = ['x', 'y', 'width', 'height'].map(key => plot[key].baseVal.value);
    return [left + x, top + y, left + x + width, top + y + height];
  };
  const all = (selector, of) => [...document.querySelectorAll(selector)].map(of);
  const rows = id => all(`#${id} tbody tr`, row => [...row.children].map(cell => cell.dataset.value ?? cell.textContent));
  return {
    drawn: {...document.body.dataset}, title: document.title, heading: document.querySelector('h1').textContent,
    text: document.body.innerText, facts: all('#facts div', one => [...one.children].map(part => part.textContent)),
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    plots: all('.plot', frame), held: all('#arena .plot .held', box),
    spans: all('#streams .plot .span', box), gaps: all('#streams .plot .gap', box),
    fills: all('#arena .plot .held', one => getComputedStyle(one).fill),
    bound: all('#arena .bound[pointer-events]', one => [...box(one), getComputedStyle(one).strokeDasharray]),
    labels: all('figure > svg', svg => [box(svg), ...[...svg.querySelectorAll('text')].map(box)]),
    words: all('.word', one => one.textContent), pieces: all('.bar', bar => bar.querySelectorAll('i').length),
    ledger: rows('memory'), units: rows('units'), traffic: rows('traffic'), worlds: rows('worlds'),
    totals: all('#memory tfoot [data-value]', one => Number(one.dataset.value)),
    aligned: all('td.number', one => getComputedStyle(one).textAlign),
    charts: all('svg[role=img]', svg => svg.getAttribute('aria-label')),
    bars: all('.bars', one => one.getAttribute('aria-label')),
    says: all('figure .summary', one => one.textContent),
    values: Object.fromEntries(all('#multiples figure', one => [one.dataset.measure, one.querySelector('b').textContent])),
    marks: all('.mark', one => Number(one.getAttribute('cx'))), dots: all('#multiples .dot', one => 1).length,
    program: document.querySelector('pre')?.textContent,
    foreign: all('img, b, i', one => one).filter(one => one.tagName == 'IMG' || one.textContent == 'bold').length,
    background: getComputedStyle(document.body).backgroundColor,
  };
})()"""


def gaps_of(plan):
    """When compute waits, found by cutting its spans out of the step."""
    left = [(0.0, plan["timeline"]["seconds"])]
    for span in plan["timeline"]["spans"]:
        if span["stream"] == 0:
            left = [part for begin, end in left for part in ((begin, min(end, span["begin"])), (max(begin, span["end"]), end))
                    if part[1] - part[0] > 1e-6 * plan["timeline"]["seconds"]]
    return sorted(left)


def near(a, b, slack=0.6):
    return len(a) == len(b) and all(abs(x - y) <= slack for x, y in zip(a, b))


def check_charts(page, plan, begin=0.0, end=None):
    """Every rectangle is where its times and bytes say, in the shown part of the step."""
    timeline, arena = plan["timeline"], plan["arena"]
    end = end or timeline["seconds"]
    (left, top, right, bottom), lanes = page["plots"]
    across = lambda one: [left + (one[key] - begin) / (end - begin) * (right - left) for key in ("begin", "end")]
    assert abs(left - lanes[0]) < 0.1 and abs(right - lanes[2]) < 0.1, page["plots"]  # one axis for both
    full = (bottom - page["bound"][0][1]) / arena["bound"]  # pixels of a byte, by the bound's line
    assert len(page["held"]) == len(timeline["held"]) == int(page["drawn"]["held"]), page["drawn"]
    for box, one in zip(page["held"], timeline["held"]):
        buffer = arena["buffers"][one["buffer"]]
        low, high = bottom - buffer["offset"] * full, bottom - (buffer["offset"] + buffer["bytes"]) * full
        x = across(one)
        assert near(box, [x[0], high, x[1], low]), (box, one, buffer)
    assert page["bound"][0][4] != "none" and page["bound"][0][1] > top, page["bound"]
    height = (lanes[3] - lanes[1]) / len(timeline["streams"])
    for boxes, known in ((page["spans"], timeline["spans"]),
                         (page["gaps"], [{"stream": 0, "begin": a, "end": b} for a, b in gaps_of(plan)])):
        assert len(boxes) == len(known), (len(boxes), len(known))
        for box, one in zip(boxes, known):
            assert near([box[0], box[2]], across(one)), (box, one)
            above = lanes[1] + one["stream"] * height
            assert above < box[1] < box[3] <= above + height + 0.1, (box, one)
    assert (int(page["drawn"]["spans"]), int(page["drawn"]["gaps"])) == (len(page["spans"]), len(page["gaps"])), page["drawn"]


def check_tables(page, plan):
    assert [row[0] for row in page["ledger"]] == [row["name"] for row in plan["ledger"]], page["ledger"]
    assert [int(row[1]) for row in page["ledger"]] == [row["planned"] for row in plan["ledger"]], page["ledger"]
    assert page["totals"][0] == plan["total"]["planned"] == sum(int(row[1]) for row in page["ledger"]), page["totals"]
    assert "add up to" not in page["text"]
    for row, unit in zip(page["units"], plan["units"], strict=True):
        numbers = [unit[key] for key in ("forward", "backward", "activations", "exposed")]
        assert row[0] == unit["name"] and [float(one) for one in row[1:]] == numbers, (row, unit)
    for row, one in zip(page["traffic"], plan["traffic"], strict=True):
        assert row[:2] == [one["axis"], one["collective"]] and float(row[4]) == one["wire"], (row, one)
    first = plan["worlds"][0]
    for row, one in zip(page["worlds"], plan["worlds"], strict=True):
        assert [int(row[0]), float(row[1])] == [one["world"], one["bytes"]], (row, one)
        kept = one["tokens_per_second"] / one["world"] / (first["tokens_per_second"] / first["world"])
        assert math.isclose(float(row[4]) * one["world"], one["tokens_per_second"]), (row, one)
        assert math.isclose(float(row[6]), kept), (row, one)
    assert set(page["aligned"]) == {"right"}, page["aligned"]


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def check(browser, path, plan, width, scheme):
    said, asked = browser.open(path, width, scheme)
    assert not said, said
    assert asked == [path.as_uri()], asked
    page = browser.evaluate(LOOK)
    drawn = page["drawn"]
    assert drawn["drawn"] == "yes" and "error" not in drawn and "owned" not in drawn, drawn
    assert page["title"] == f"Sherd: {plan['title']}" and page["heading"] == plan["title"], page["title"]
    assert page["facts"] == plan["facts"] and page["program"] == plan["program"], page["facts"]
    assert not page["wide"], "the page is wider than the window"
    check_charts(page, plan)
    check_tables(page, plan)
    for svg, *labels in page["labels"]:
        assert len(labels) > 3 and not any(overlap(a, b) for a in labels for b in labels if a is not b), labels
        assert all(svg[0] <= a[0] and a[2] <= svg[2] + 1 and svg[1] <= a[1] and a[3] <= svg[3] + 1 for a in labels), labels
    assert {"Arena over time", "Streams over time"} <= set(page["charts"]) and len(page["says"]) == 2, page["charts"]
    assert len(page["charts"]) == 8 and page["bars"][0].startswith("Memory of a rank: "), page["charts"]
    assert page["dots"] == 6 * len(plan["worlds"]) and len(page["marks"]) == 6, page["dots"]
    return page


def zooms(browser, path, plan):
    """Dragging over one chart moves both; a double click shows the whole step again; hovering names the piece."""
    browser.open(path)
    seconds = plan["timeline"]["seconds"]
    browser.evaluate("document.querySelector('#streams').scrollIntoView({block: 'end'})")
    left, top, right, bottom = browser.evaluate(LOOK)["plots"][1]
    at, y = lambda share: left + share * (right - left), top + 12
    browser.mouse("Moved", at(0.25), y)
    browser.mouse("Pressed", at(0.25), y, button="left", clickCount=1)
    browser.mouse("Moved", at(0.4), y, button="left")
    browser.mouse("Released", at(0.5), y, button="left", clickCount=1)
    browser.wait_for_layout()
    page = browser.evaluate(LOOK)
    begin, end = float(page["drawn"]["from"]), float(page["drawn"]["to"])
    assert abs(begin / seconds - 0.25) < 0.01 and abs(end / seconds - 0.5) < 0.01, page["drawn"]
    check_charts(page, plan, begin, end)
    assert len(page["words"]) > 5, page["words"]  # pieces are now wide enough for names
    number = next(i for i, one in enumerate(plan["timeline"]["spans"]) if one["stream"] == 0 and one["begin"] > begin)
    box, span = page["spans"][number], plan["timeline"]["spans"][number]
    browser.mouse("Moved", (box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    tip = browser.evaluate("document.querySelector('#tip').innerText")
    assert tip.startswith(f"{span['action']}: {span['unit']}\n") and plan["timeline"]["sections"][span["section"]] in tip, tip
    gap = next(box for box, (a, b) in zip(page["gaps"], gaps_of(plan)) if begin < a and b < end)
    browser.mouse("Moved", (gap[0] + gap[2]) / 2, (gap[1] + gap[3]) / 2)
    tip = browser.evaluate("document.querySelector('#tip').innerText")
    assert tip.startswith("compute waits\nuntil gather of "), tip
    for clicks in (1, 2):
        browser.mouse("Pressed", at(0.5), y, button="left", clickCount=clicks)
        browser.mouse("Released", at(0.5), y, button="left", clickCount=clicks)
    browser.wait_for_layout()
    check_charts(browser.evaluate(LOOK), plan)
    browser.evaluate("document.querySelectorAll('#overview button')[1].click()")  # the first backward
    browser.wait_for_layout()
    page = browser.evaluate(LOOK)
    check_charts(page, plan, float(page["drawn"]["from"]), float(page["drawn"]["to"]))
    first = min(one["begin"] for one in plan["timeline"]["spans"] if one["section"] == 1 and one["stream"] == 0)
    assert abs(float(page["drawn"]["from"]) - first) < 1e-6 * seconds, (page["drawn"], first)
    assert not browser.said(), browser.said()


def reacts(browser, path, plan):
    """The world is chosen by the address, by its change, and by the slider; tables are sorted by a click."""
    seen = []
    for world in (8, 64):
        said, _ = browser.open(path, end=f"#world={world}")
        assert not said, said
        seen.append(browser.evaluate(LOOK))
        assert int(seen[-1]["drawn"]["world"]) == world, seen[-1]["drawn"]
    assert all(a != b for a, b in zip(seen[0]["marks"], seen[1]["marks"])), seen[0]["marks"]
    assert seen[0]["values"]["efficiency"] == "100 %" != seen[1]["values"]["efficiency"], seen[1]["values"]
    chosen = next(one for one in plan["worlds"] if one["world"] == 64)
    assert seen[1]["values"]["bytes"] == f"{chosen['bytes'] / GiB:.1f} GiB", seen[1]["values"]
    browser.evaluate("location.hash = '#world=130'")  # there is none: the nearest
    browser.wait_for_layout()
    page = browser.evaluate(LOOK)
    assert page["drawn"]["world"] == "128" and "this plan has no 130 ranks" in page["text"], page["drawn"]
    browser.evaluate("(() => { const one = document.querySelector('#world'); one.value = 0; one.oninput(); })()")
    assert browser.evaluate("document.body.dataset.world + location.hash") == "8#world=8"
    browser.evaluate("document.querySelectorAll('#units thead button')[4].click()")
    exposed = [float(row[4]) for row in browser.evaluate(LOOK)["units"]]
    assert exposed == sorted((one["exposed"] for one in plan["units"]), reverse=True), exposed
    assert not browser.said(), browser.said()


def measured(plan):
    for i, row in enumerate(plan["ledger"]):
        row["measured"] = row["planned"] + (i - 1) * 3 * 2**20
    plan["ledger"][-1]["measured"] = None
    plan["total"]["measured"] = sum(row["measured"] or 0 for row in plan["ledger"])
    return plan


def check_measured(browser, path, plan):
    page = check(browser, path, plan, 1280, "light")
    assert page["totals"][:2] == [plan["total"]["planned"], plan["total"]["measured"]], page["totals"]
    assert page["totals"][2] == plan["total"]["measured"] - plan["total"]["planned"], page["totals"]
    assert page["pieces"] == [len(plan["ledger"]), len(plan["ledger"]) - 1], page["pieces"]
    assert [row[3] for row in page["ledger"]][:3] == [str(-3 * 2**20), "0", str(3 * 2**20)], page["ledger"]


def hostile(browser, draw):
    """Names are text, whatever they look like."""
    plan = example(layers=8, names=HOSTILE)
    plan.update(title=HOSTILE[1], source=HOSTILE[0], program="".join(HOSTILE), facts=[[one, one] for one in HOSTILE])
    plan["ledger"][0]["name"] = plan["traffic"][0]["axis"] = plan["timeline"]["sections"][0] = HOSTILE[0]
    plan["timeline"]["spans"][1]["action"] = "constructor"
    page = check(browser, draw("hostile", plan), plan, 1280, "light")
    assert all(one in page["text"] for one in HOSTILE[:5]) and page["foreign"] == 0, page["text"]
    browser.evaluate("for (const one of document.querySelectorAll('.plot rect')) point(one.piece, {clientX: 9, clientY: 9})")
    assert browser.evaluate("document.querySelectorAll('#tip img, #tip i').length") == 0
    assert browser.evaluate("document.body.dataset.owned") is None and not browser.said(), browser.said()


def lacking(browser, draw):
    """What is not there is said in a line; nothing else suffers."""
    lines = {"timeline": "This plan has no timeline.", "worlds": "This plan looks at no other world sizes.",
             "units": "This plan has no times of single units.", "traffic": "This plan has no traffic.",
             "program": "This plan comes without its program.", "ledger": "This plan has no memory by name.",
             "arena": "This plan has no arena: nothing is held in one."}
    for number, (key, words) in enumerate(lines.items()):
        ways = ["absent", None, {} if key in ("timeline", "arena") else []]
        for value in ways if ALL else [ways[number % 3]]:
            plan = example(layers=2, worlds=2)
            plan[key] = value
            if value == "absent":
                del plan[key]
            said, _ = browser.open(draw("lacking", plan))
            page = browser.evaluate(LOOK)
            assert not said and "error" not in page["drawn"] and words in page["text"], (key, value, said, page["drawn"])
            assert sum(other in page["text"] for other in lines.values()) == 1, (key, page["text"])
    said, _ = browser.open(draw("nothing", {}))
    page = browser.evaluate(LOOK)
    assert not said and "error" not in page["drawn"] and lines["timeline"] in page["text"], (said, page["drawn"])
    plan = example(layers=2, worlds=1)
    plan["total"]["planned"] += 1
    browser.open(draw("wrong", plan))
    assert "The rows add up to" in browser.evaluate(LOOK)["text"]
    browser.open(draw("broken", '{"title": "</script>'))
    page = browser.evaluate(LOOK)
    assert "There is no plan in this page that can be read" in page["text"] and "SyntaxError" in page["drawn"]["error"], page


def main():
    program, picture = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        place = pathlib.Path(place)

        def draw(name, plan):
            """The page of a plan, or of a text that is none."""
            text = plan if isinstance(plan, str) else json.dumps(plan, ensure_ascii=False)
            path = place / f"{name}.html"
            path.write_bytes(subprocess.run([program], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout)
            return path

        with Browser(place / "profile") as browser:
            plan, seen = example(), {}
            path = draw("plan", plan)
            for width, scheme in ((1280, "light"), (1280, "dark"), (400, "light")):
                seen[width, scheme] = check(browser, path, plan, width, scheme)
                if picture:
                    browser.picture(f"{picture}-{width}-{scheme}.png")
            assert seen[1280, "light"]["background"] != seen[1280, "dark"]["background"]
            assert len(set(seen[1280, "light"]["fills"])) == 8, "the colours of units"
            assert "Nothing was measured" in seen[1280, "light"]["text"]
            zooms(browser, path, plan)
            reacts(browser, path, plan)
            plan = measured(example(layers=6, micro_batches=2))
            check_measured(browser, draw("measured", plan), plan)
            hostile(browser, draw)
            plan = example(layers=128, micro_batches=6, worlds=16)
            path = draw("large", plan)
            for _ in range(3):
                fastest = check(browser, path, plan, 1280, "light")["drawn"]
                limit = 1000 / busy.least_share()  # the machine may be busy with other things
                if int(fastest["milliseconds"]) < limit:
                    break
            assert int(fastest["milliseconds"]) < limit, (fastest, limit)
            assert int(fastest["spans"]) > 3500 and int(fastest["held"]) > 2000, fastest
            lacking(browser, draw)
    print(f"pages as they should be; {fastest['spans']} spans and {fastest['held']} ranges drawn in "
          f"{fastest['milliseconds']} ms")


main()
