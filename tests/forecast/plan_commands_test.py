#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd plan` says what a run will take and do, without a device and without data: plan_commands_test.py SHERD FORK_SERVER"""
import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import traceback

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from browser import Browser  # noqa: E402
from fork_server import ForkServer  # noqa: E402

NETWORKS = pathlib.Path(__file__).parents[2] / "networks"
H200 = NETWORKS / "h200_nvlink_infiniband.toml"
GiB = 2**30
# The test runs without a GPU, also on a machine that has one.
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
ALL = os.environ.get("SHERD_TEST_ALL") == "1"
STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
KINDS = ["llama", "moe", "hybrid", "vlm"]
COUNTED = ["model weights", "main weights", "main gradients", "optimizer state", "arena", "control", "activations"]
ASSUMED = ["kernel workspaces", "communicators", "CUDA context", "kernels and libraries"]
# There are no tokens.bin and no images.bin.
LLAMA_8B = """[model]
dim = 4096
layers = 32
heads = 32
kv_heads = 8
ffn = 14336
vocab = 128256
[data]
tokens = "tokens.bin"
dtype = "uint32"
seq = 8192
[precision]
recipe = "bf16_o2"
"""
LLAMA_405B = LLAMA_8B.replace("4096", "16384").replace("layers = 32", "layers = 126").replace(
    "heads = 32", "heads = 128").replace("14336", "53248") + '[train]\nrecompute = "full"\n'
SMALL = """[model]
kind = "KIND"
dim = 256
layers = 16
heads = 8
vocab = 1000
[data]
tokens = "tokens.bin"
seq = 128
batch = 2
"""


def small(kind="llama", device="cpu"):
    """As many layers as an arena needs to be small beside them."""
    images = 'images = "images.bin"\n' if kind == "vlm" else ""
    return SMALL.replace("KIND", kind) + images + f'[device]\nkind = "{device}"\n'


def settings(**values):
    """section__key=value as the command line wants it."""
    return [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={json.dumps(value)}")]


class Sherd:
    def __init__(self, server, place):
        self.server, self.place = server, place

    def start(self, *words):
        return self.server.run(["plan", *words], cwd=self.place)

    def text(self, *words):
        done = self.start(*words)
        assert done.returncode == 0 and not done.stderr, (words, done.returncode, done.stderr)
        return done.stdout

    def plan(self, *words):
        return json.loads(self.text(*words, "--json"))

    def search(self, *words):
        return json.loads(self.text(*words, "--search", "--json"))

    def refused(self, words, *said):
        """One line that says all of it, and nothing is written."""
        before = {path: path.read_bytes() for path in self.place.iterdir() if path.is_file()}
        done = self.start(*words)
        assert done.returncode == 2 and not done.stdout, (words, done.returncode, done.stdout, done.stderr)
        assert len(done.stderr.splitlines()) == 1, (words, done.stderr)
        for one in said:
            assert one in done.stderr, (words, one, done.stderr)
        assert before == {path: path.read_bytes() for path in self.place.iterdir() if path.is_file()}, (words, "wrote")


def section(text, title):
    """The lines under a title."""
    return text.split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()


def memory_of(text):
    """What the text says of each name."""
    rows = (re.fullmatch(r"  (\S.*?) {2,}(\S+ \S+?)(?:  assumed)?", line) for line in section(text, "memory of a rank"))
    return {row[1]: row[2] for row in rows if row}


def collectives_of(text):
    rows = (re.match(r"  (\w+) +(\w+) +(\d+) calls +(.*?), sends", line) for line in section(text, "collectives of a step"))
    return {f"{row[2]} over {row[1]}": f"{row[3]} calls, {row[4]}" for row in rows}


def says_all(sherd):
    """To people: memory by name, collectives, and the step's seconds."""
    words = ["8b.toml", "--world", 8, "--network", H200]
    text, plan = sherd.text(*words), sherd.plan(*words)
    title = "llama, 8.03 B parameters, 8 ranks: "
    first = text.splitlines()[0]
    fits = re.fullmatch(title + r"fits a device of 139 GiB, and leaves ([\d.]+) GiB \(([\d.]+) GiB of the plan are assumed\)", first)
    assert fits, first
    planned, assumed = plan["total"]["planned"], sum(one["planned"] for one in plan["ledger"] if one["name"] in ASSUMED)
    assert plan["device_memory"] == 139 * GiB and plan["counted"] == planned - assumed, plan["device_memory"]
    assert abs(float(fits[1]) - (139 - planned / GiB)) < 0.06 and abs(float(fits[2]) - assumed / GiB) < 0.06, first
    memory = memory_of(text)
    # The model's own unit counts without those inside it: together they are what a pass keeps.
    kept = sum(unit["activations"] for unit in plan["units"])
    activations = next(one["planned"] for one in plan["ledger"] if one["name"] == "activations")
    assert 0.5 * activations < kept <= activations, (kept, activations)
    assert list(memory) == [*COUNTED, *ASSUMED, "total"], text
    for entry in [*plan["ledger"], dict(plan["total"], name="total")]:
        number, unit = memory[entry["name"]].split()
        known = float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
        assert math.isclose(known, entry["planned"], rel_tol=0.03), (entry, text)
        assert (f"{memory[entry['name']]}  assumed" in text) == (entry["name"] in ASSUMED), text
    # 34 of 35 units have parameters: the model itself has none beside theirs.
    assert {name: value.split()[0] for name, value in collectives_of(text).items()} == {
        "all_gather over dp": "68", "reduce_scatter over dp": "34"}, text
    assert f"a step takes {plan['timeline']['seconds'] * 1e3:.2f} ms: " in text, text
    each = 8192 / plan["timeline"]["seconds"]
    assert f"; {each:.0f} tokens/s per rank, {8 * each:.0f} of all ranks\n" in text, text
    assert math.isclose(plan["tokens_per_second"], 8 * each, rel_tol=1e-9), plan["tokens_per_second"]
    share = re.search(r"\n  a rank: (\d+) TFLOP/s of model operations, ([\d.]+) % of the device's 611\n", text)
    assert abs(float(share[2]) - 100 * plan["tflops"] / 611) < 0.06 and 90 < float(share[2]) < 100, text
    assert "\n  times: matrix products at the device's speed, an estimate; network: H200, NVLink 4" in text, text
    assert re.search(r"\n +32 x layer# .* ms .* ms ", text), text

    program = sherd.text(*words, "--program")
    assert program.startswith(text) and "35 units, prefetch depth 1, 1 micro-batches a step" in program, program[len(text):]
    assert "a step: 68 all-gathers" in program and "\nbackward first last\n" in program, program
    assert sherd.plan(*words, "--program")["program"] in program and "program" not in plan

    # Without a network there are no seconds; memory stays.
    text = sherd.text(*words[:3])
    assert "a step takes" not in text and memory_of(text) == memory and " ms" not in text, text
    assert text.splitlines()[0] == title + "whether it fits is not known: give --network with [device] memory", text
    large = sherd.text(*words, *settings(data__batch=8)).splitlines()[0]
    assert re.match(title + r"does not fit a device of 139 GiB, by [\d.]+ GiB \(", large), large
    plan = sherd.plan(*words[:3])
    assert plan["timeline"] is None and all(unit["forward"] == unit["exposed"] == 0 for unit in plan["units"]), plan
    # A world of one, where neither the file nor anybody else says how many.
    assert sherd.plan("small.toml")["world"] == 1 and sherd.plan("small.toml", *settings(device__ranks=3))["world"] == 3


def check_arena(plan):
    arena, held = plan["arena"], plan["timeline"]["held"]
    buffers, seconds = arena["buffers"], plan["timeline"]["seconds"]
    assert arena["bound"] <= arena["bytes"] <= 1.05 * arena["bound"], (arena["bytes"], arena["bound"])
    names = [unit["name"] for unit in plan["units"]]
    assert [one["name"] for one in buffers] == [f"{what} of {name}" for name in names for what in ("parameters", "transposed copies", "gradients")]
    assert all(0 <= one["offset"] <= one["offset"] + one["bytes"] <= arena["bytes"] for one in buffers), buffers
    if arena["bytes"]:
        assert max(one["offset"] + one["bytes"] for one in buffers) == arena["bytes"], arena["bytes"]
    for one in held:
        assert buffers[one["buffer"]]["bytes"] > 0 and 0 <= one["begin"] < one["end"] <= seconds, (one, seconds)
    assert {one["buffer"] for one in held} == {i for i, one in enumerate(buffers) if one["bytes"]}
    for a, b in itertools.combinations(held, 2):
        one, other = buffers[a["buffer"]], buffers[b["buffer"]]
        if one["offset"] < other["offset"] + other["bytes"] and other["offset"] < one["offset"] + one["bytes"]:
            assert a["end"] <= b["begin"] + 1e-12 or b["end"] <= a["begin"] + 1e-12, (a, b, one, other)


def check_timeline(plan, passes):
    timeline, units = plan["timeline"], {unit["name"]: unit for unit in plan["units"]}
    spans = timeline["spans"]
    for stream in range(len(timeline["streams"])):
        mine = [span for span in spans if span["stream"] == stream]
        assert all(a["end"] <= b["begin"] + 1e-12 for a, b in itertools.pairwise(mine)), timeline["streams"][stream]
    for name, unit in units.items():
        for kind in ("forward", "backward"):
            taken = sum(span["end"] - span["begin"] for span in spans if span["unit"] == name and
                        span["action"] == "compute" and timeline["sections"][span["section"]].startswith(kind))
            assert math.isclose(taken, passes * unit[kind], rel_tol=1e-6, abs_tol=1e-9), (name, kind, taken, unit)
    assert all(span["unit"] in units or span["action"] in ("drain", "update") for span in spans)
    # Computing works or waits, and what it waits for has a name.
    busy = sum(span["end"] - span["begin"] for span in spans if span["stream"] == 0 and span["action"] in ("compute", "update"))
    exposed = sum(unit["exposed"] for unit in plan["units"])
    assert math.isclose(busy + exposed, timeline["seconds"], rel_tol=1e-9), (busy, exposed, timeline["seconds"])
    moved = [span for span in spans if span["action"] in ("gather", "refresh", "reduce")]
    for key, of_spans in (("calls", len(moved)), ("bytes", sum(span["bytes"] for span in moved)),
                          ("seconds", sum(span["end"] - span["begin"] for span in moved))):
        assert math.isclose(sum(row[key] for row in plan["traffic"]), of_spans, rel_tol=1e-9), (key, of_spans, plan["traffic"])


def check(plan, passes=1):
    ledger = {entry["name"]: entry["planned"] for entry in plan["ledger"]}
    assert list(ledger) == COUNTED + (ASSUMED if plan["device"] == "cuda" else []), ledger
    assert sum(ledger.values()) == plan["total"]["planned"] and ledger["arena"] == plan["arena"]["bytes"], plan["ledger"]
    assert plan["total"]["measured"] is None and all(entry["measured"] is None for entry in plan["ledger"]), plan["ledger"]
    check_arena(plan)
    check_timeline(plan, passes)


def adds_up(sherd):
    """To programs: the parts of the JSON fit each other."""
    variants = [{}, {"data__micro_batches": 3}, {"shard__strategy": "optim_grads"}, {"shard__strategy": "optim"},
                {"shard__outer": 2}, {"shard__outer": 2, "shard__outer_strategy": "optim"},
                {"shard__prefetch": 3, "shard__keep_gathered": 4, "train__recompute": "full"}]
    for changes in variants:
        plan = sherd.plan("8b.toml", "--world", 16, "--network", H200, *settings(**changes))
        check(plan, changes.get("data__micro_batches", 1))
        calls = {(row["axis"], row["collective"]): row["calls"] for row in plan["traffic"]}
        assert calls["dp", "reduce_scatter"] == 34 * changes.get("data__micro_batches", 1), (changes, calls)
        assert (("dp_outer", "all_reduce") in calls) == (changes == {"shard__outer": 2}), (changes, calls)
    # Where torch places what is gathered, no arena is larger than what is in use.
    plan = sherd.plan("8b.toml", "--world", 16, *settings(memory__kind="eager"))
    assert plan["arena"]["bytes"] == plan["arena"]["bound"] > 0 and dict(plan["facts"])["memory"] == "eager", plan["facts"]


def is_quick(program, place):
    """Llama-3-405B on 16,384 ranks, from the program's start."""
    (place / "405b.toml").write_text(LLAMA_405B)
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([program, "plan", "405b.toml", "--world", "16384", "--network", H200, "--json"], check=True, timeout=60,
                          capture_output=True, cwd=place, env=ENVIRONMENT)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    plan = json.loads(done.stdout)
    # Of the processor: the machine may be busy with other things.
    taken = end.ru_utime - begin.ru_utime + end.ru_stime - begin.ru_stime
    assert taken < 2, taken
    assert "406 B parameters, 16384 ranks" in plan["title"] and len(plan["units"]) == 129, plan["title"]
    check(plan)
    return taken


def searches_quickly(program):
    """The search of the example: thousands of arrangements of 16,384 ranks."""
    example = NETWORKS.parent / "examples" / "llama3_405b.toml"
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([program, "plan", example, "--world", "16384", "--search", "--json", "--network",
                           NETWORKS / "h100_nvlink_infiniband.toml"], check=True, timeout=300, capture_output=True, env=ENVIRONMENT)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = end.ru_utime - begin.ru_utime + end.ru_stime - begin.ru_stime
    found = json.loads(done.stdout)
    assert len(found["rows"]) == 10 and found["slower"]["count"] + found["too_large"]["count"] > 1000, found
    assert found["too_large"]["least"] > found["memory"], found["too_large"]
    assert taken < 60, taken
    print(f"the search of Llama-3-405B on 16,384 ranks took {taken:.1f} s")


def shards(sherd):
    """More sharding takes less, and more ranks take no more."""
    worlds = [1, 2, 3, 5, 8, 9, 64, 1000]
    for kind in KINDS:
        (sherd.place / "kind.toml").write_text(small(kind))
        totals = []
        for strategy in STRATEGIES:
            plan = sherd.plan("kind.toml", "--world", 8, "--worlds", ",".join(map(str, worlds)),
                              *settings(shard__strategy=strategy))
            assert plan["title"].startswith(f"{kind}, ") and [one["world"] for one in plan["worlds"]] == worlds, plan["title"]
            totals.append(plan["total"]["planned"])
            for before, after in itertools.pairwise(plan["worlds"]):
                # Beside padding, what ranks tell each other grows with them.
                padding = 1e-4 * before["bytes"] + 64 * after["world"]
                assert after["bytes"] <= before["bytes"] + padding, (kind, strategy, before, after)
            if strategy == STRATEGIES[-1]:
                assert plan["worlds"][-1]["bytes"] < plan["worlds"][1]["bytes"] / 2, plan["worlds"]
        assert all(a > b for a, b in itertools.pairwise(totals)), (kind, totals)
        if kind not in ("llama", "moe"):
            continue
        # Four groups of four: sharded inside, then more and more between them, to what sixteen take.
        totals = [sherd.plan("kind.toml", "--world", 16, *settings(shard__outer=4, shard__outer_strategy=strategy))
                  ["total"]["planned"] for strategy in STRATEGIES]
        assert all(a > b for a, b in itertools.pairwise(totals)), (kind, totals)
        flat = sherd.plan("kind.toml", "--world", 16)["total"]["planned"]
        assert math.isclose(flat, totals[-1], rel_tol=1e-3), (kind, flat, totals)
    sherd.refused(["kind.toml", "--world", 16, *settings(shard__outer=3)], "shard.outer = 3", "divide", "16")


def compares(sherd):
    """Two runs: a line for each thing that differs, with both values, and none for the rest."""
    (sherd.place / "other.toml").write_text(
        LLAMA_8B.replace("seq = 8192", "seq = 4096") + '[train]\nrecompute = "selective"\n[shard]\nprefetch = 2\n')
    words = ["--world", 8, "--network", H200]
    known = []
    for name in ("8b.toml", "other.toml"):
        text, plan = sherd.text(name, *words), sherd.plan(name, *words)
        known.append({**dict(plan["facts"]), **memory_of(text), **collectives_of(text),
                      "step": re.search(r"a step takes (\S+ \S+):", text)[1],
                      "waiting": re.search(r"waiting for collectives (\S+ \S+);", text)[1]})
    one, two = known
    said = sherd.text("8b.toml", "other.toml", *words)
    assert said.splitlines()[:3] == ["llama, 8.03 B parameters, 8 ranks"] * 2 + [""], said
    lines = {}
    for line in said.splitlines()[3:]:
        name, before, after = re.fullmatch(r"(\S.*?) {2,}(\S.*?) +-> (.*)", line).groups()
        lines[name] = (before, after)
    assert len(lines) == len(said.splitlines()[3:]), said
    assert lines == {name: (one.get(name, "-"), two.get(name, "-")) for name in {**one, **two}
                     if one.get(name) != two.get(name)}, (said, one, two)
    assert lines["sequence"] == ("8192", "4096") and lines["prefetch"] == ("1", "2"), said
    assert "main weights" not in lines and "model" not in lines, said
    assert sherd.text("8b.toml", "8b.toml", *words).strip().splitlines() == ["llama, 8.03 B parameters, 8 ranks"] * 2


LOOK = """(() => {
  const count = selector => document.querySelectorAll(selector).length;
  const rows = id => [...document.querySelectorAll(`#${id} tbody tr`)].map(
    row => [...row.children].map(cell => cell.dataset.value ?? cell.textContent));
  return {drawn: {...document.body.dataset}, heading: document.querySelector('h1').textContent,
          spans: count('#streams .plot .span'), held: count('#arena .plot .held'),
          ledger: rows('memory'), units: rows('units'), traffic: rows('traffic'), worlds: rows('worlds'),
          program: document.querySelector('pre')?.textContent, text: document.body.innerText};
})()"""


def draws(sherd, browser):
    """--html is a page that shows the JSON, --worlds a row for each, --trace a file for Perfetto."""
    page, trace = sherd.place / "plan.html", sherd.place / "plan.trace"
    words = ["8b.toml", "--world", 8, "--network", H200, "--worlds", "8,16,64"]
    plan = sherd.plan(*words, "--program", "--html", page, "--trace", trace)
    assert [row["world"] for row in plan["worlds"]] == [8, 16, 64], plan["worlds"]
    first = plan["worlds"][0]
    assert (first["bytes"], first["seconds"]) == (plan["total"]["planned"], plan["timeline"]["seconds"]), first
    for row in plan["worlds"]:
        assert math.isclose(row["tokens_per_second"], row["world"] * 8192 / row["seconds"], rel_tol=1e-9), row
        assert 0 < row["exposed"] < row["seconds"], row
    alone = sherd.plan("8b.toml", "--world", 64, "--network", H200)
    assert (alone["total"]["planned"], alone["timeline"]["seconds"]) == (
        plan["worlds"][2]["bytes"], plan["worlds"][2]["seconds"]), plan["worlds"]
    rows = sherd.text(*words).split("\nranks        memory        step")[1].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["8", "16", "64"], rows

    said, asked = browser.open(page)
    assert not said and asked == [page.as_uri()], (said, asked)
    shown = browser.evaluate(LOOK)
    assert shown["drawn"]["drawn"] == "yes" and "error" not in shown["drawn"], shown["drawn"]
    assert shown["heading"] == plan["title"] and shown["program"] == plan["program"], shown["heading"]
    for key in ("spans", "held"):
        assert shown[key] == int(shown["drawn"][key]) == len(plan["timeline"][key]) > 90, (key, shown[key])
    assert [[row[0], int(row[1])] for row in shown["ledger"]] == [[row["name"], row["planned"]] for row in plan["ledger"]]
    assert [row[0] for row in shown["units"]] == [unit["name"] for unit in plan["units"]], shown["units"]
    assert len(shown["traffic"]) == 2 and [row[0] for row in shown["worlds"]] == ["8", "16", "64"], shown["worlds"]
    assert "add up to" not in shown["text"]

    events = json.loads(trace.read_text())["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(named.values()) == ["planned"] and {event["pid"] for event in events} == set(named), named
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    timed = [event for event in events if event["ph"] == "X"]
    assert set(lanes.values()) >= {"compute", "gather", "reduce"} and {event["tid"] for event in timed} <= set(lanes), lanes
    spans = [event for event in timed if lanes[event["tid"]] in plan["timeline"]["streams"]]
    last = max(event["ts"] + event["dur"] for event in spans)
    assert len(spans) >= shown["spans"] and math.isclose(last / 1e6, plan["timeline"]["seconds"], rel_tol=1e-5), last
    assert sum(event["name"].startswith("gather ") for event in spans) == 68, spans

    # Nothing is timed: the page says so, and there is no trace.
    sherd.text("8b.toml", "--world", 8, "--html", page)
    said, _ = browser.open(page)
    shown = browser.evaluate(LOOK)
    assert not said and "error" not in shown["drawn"] and "This plan has no timeline." in shown["text"], (said, shown["drawn"])
    page.unlink()
    trace.unlink()
    sherd.refused(["8b.toml", "--world", 8, "--html", page, "--trace", trace], "--trace", "--times", "--network")


def searches(sherd):
    """--search proposes the fastest arrangements; each row is what a plan with its keys says."""
    words = ["8b.toml", "--world", 64, "--network", H200]
    found = sherd.search(*words, "--sequences", 128)
    rows = found["rows"]
    assert found["sequences"] == 128 and found["memory"] == 139 * GiB and len(rows) == 10, found
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows), rows
    assert found["slower"]["count"] > 100 and found["slower"]["to"] > found["slower"]["from"] > 0, found["slower"]
    assert any("8 sequences a step can't be divided among" in one["reason"] for one in
               sherd.search(*words, "--sequences", 8)["refused"])
    for row in rows[:: 1 if ALL else 4]:
        plan = sherd.plan(*words, *(word for key, value in row["settings"].items() for word in ("--set", f"{key}={value}")))
        exposed = sum(unit["exposed"] for unit in plan["units"])
        assert (plan["total"]["planned"], plan["timeline"]["seconds"]) == (row["bytes"], row["seconds"]), (row, plan["facts"])
        assert math.isclose(exposed, row["exposed"], rel_tol=1e-12, abs_tol=1e-15), (row, exposed)
    # In words, with a budget; what a row asks for fits it.
    text = sherd.text(*words, "--search", *settings(memory__budget="24GiB"))
    assert "64 sequences of 8192 tokens a step, at most 24.0 GiB a rank" in text and "full" in text, text
    assert re.search(r"\n +\d+ do not fit, by about .* at least: ", text), text
    sherd.refused([*words[:3], "--search"], "--search", "--network")
    sherd.refused([*words, "--search", *settings(memory__budget="1GiB")], "no arrangement of 64 ranks fits 1.0 GiB", "needs about")
    sherd.refused(["8b.toml", "small.toml", "--network", H200, "--search"], "one configuration")


def keeps_budget(sherd):
    """Chooses what fits; of less, it makes nothing larger and nothing faster."""
    words = ["8b.toml", "--world", 8, "--network", H200]
    before = None
    for budget in (60, 50, 40, 32, 28) if ALL else (60, 40, 28):
        plan = sherd.plan(*words, *settings(memory__budget=f"{budget}GiB"))
        facts = dict(plan["facts"])
        assert plan["total"]["planned"] <= budget * GiB and facts["budget"] == f"{budget}GiB", (budget, plan["total"], facts)
        check(plan)
        now = (plan["total"]["planned"], plan["timeline"]["seconds"])
        assert not before or (now[0] <= before[0] and now[1] >= before[1]), (budget, before, now)
        before = now
    assert facts["recompute"].startswith("full"), facts
    # What was chosen is what these choices take, and the room is as large as it says.
    mode, layers = facts["recompute"].removesuffix(" layers").split(", ")
    chosen = dict(train__recompute=mode, train__recompute_layers=int(layers), shard__prefetch=int(facts["prefetch"]),
                  shard__keep_gathered=int(facts["kept gathered"]))
    assert sherd.plan(*words, *settings(**chosen))["total"] == plan["total"]
    batch, longest = int(facts["largest batch that fits"]), int(facts["longest sequence that fits"])
    assert batch >= 1 and longest >= 8192, facts
    for change, fits in ((dict(data__batch=batch), True), (dict(data__batch=batch + 1), False), (dict(data__seq=longest), True),
                         (dict(data__seq=longest + longest // 32), False)):
        total = sherd.plan(*words, *settings(**chosen, **change))["total"]["planned"]
        assert (total <= 28 * GiB) == fits, (change, total, facts)

    least = sherd.plan(*words, *settings(train__recompute="full", shard__prefetch=0))["total"]["planned"]
    needs = [f"{least / GiB:.1f} GiB", "8 ranks"]
    page = ["--html", "budget.html"]
    sherd.refused([*words, *page, *settings(memory__budget="2GiB")], 'memory.budget = "2GiB"', "too small", *needs, "data.seq")
    sherd.refused([*words, *page, *settings(memory__budget="24GiB")], 'memory.budget = "24GiB"', *needs, "fits on 16 ranks")
    # Smaller inputs, with what they cost; both fit as they are proposed.
    tight = dict(train__recompute="full", shard__prefetch=0)
    for given, proposed in ((dict(data__batch=4), dict(data__batch=1, data__micro_batches=4)), ({}, dict(data__seq=4096))):
        less = sherd.plan(*words, *settings(**tight, **proposed))
        budget = less["total"]["planned"]
        said = (f"{budget / GiB:.1f} GiB and ", " a step (", " tokens/s per rank)",
                " It fits with data.batch = 1, " + ", ".join(f"{key.replace('__', '.')} = {value}" for key, value in proposed.items()
                                                               if key != "data__batch"))
        sherd.refused([*words, *page, *settings(**given, memory__budget=str(budget))], "too small", *said)
    sherd.refused([*words, *page, *settings(memory__budget="28GiB", shard__strategy="optim")], "least", "8 ranks",
                  'shard.strategy = "optim_grads_params"', needs[0], "which fits")

    # All that a device has, if somebody says how much that is.
    plan = sherd.plan(*words, *settings(memory__budget="auto"))
    assert dict(plan["facts"])["budget"] == "139GiB" and plan["total"]["planned"] <= 139 * GiB, plan["facts"]
    for device in ("auto", "cpu"):
        sherd.refused([*words[:3], *page, *settings(memory__budget="auto", device__kind=device)], 'memory.budget = "auto"',
                      '"64GiB"', "device.memory")


def keeps_falling_budgets(sherd):
    """The same where transfers count: what stays gathered or comes early can be worth more than what is not recomputed."""
    (sherd.place / "hybrid.toml").write_text(small("hybrid").replace("256", "512").replace("layers = 16", "layers = 8"))
    words = ["hybrid.toml", "--world", 4, "--network", H200, *settings(data__seq=1024, data__batch=1, data__micro_batches=2)]
    most = sherd.plan(*words, *settings(memory__budget="1TiB"))["total"]["planned"]
    least = sherd.plan(*words, *settings(train__recompute="full", shard__prefetch=0))["total"]["planned"]
    before = None
    for i in range(12, -1, -1 if ALL else -4):
        budget = least + (most - least) * i // 12
        plan = sherd.plan(*words, *settings(memory__budget=str(budget)))
        now = (plan["total"]["planned"], plan["timeline"]["seconds"])
        assert now[0] <= budget, (budget, now)
        # Steps that differ by less than a nanosecond are equally long.
        assert not before or (now[0] <= before[0] and now[1] >= before[1] - 1e-9), (budget, before, now, plan["facts"])
        before = now
    # What was chosen fits in just what it takes; in less than the least nothing does, but on more ranks.
    again = sherd.plan(*words, *settings(memory__budget=str(before[0])))
    assert (again["total"]["planned"], again["timeline"]["seconds"]) == before, (again["total"], before)
    less = settings(memory__budget=str(before[0] - 1))
    sherd.refused([*words, *less], "too small", f"{least / 2**20:.0f} MiB", "4 ranks", "fits on 8 ranks")
    assert sherd.plan("hybrid.toml", "--world", 8, *words[3:], *less)["total"]["planned"] < before[0]


def recomputes_no_more_than_it_must(sherd):
    """Also where the units' times were measured, and not with what is recomputed now."""
    names = [unit["name"] for unit in sherd.plan("small.toml")["units"]]
    times = {"update": 0.01, "units": [{"name": name, "forward": 0.01, "backward": 0.02} for name in names]}
    (sherd.place / "times.json").write_text(json.dumps(times))
    plan = sherd.plan("small.toml", "--world", 4, "--network", H200, "--times", "times.json", *settings(memory__budget="1TiB"))
    assert dict(plan["facts"])["recompute"] == "none", plan["facts"]


def refuses(sherd):
    """What is wrong is said in a line, and nothing is written."""
    write = lambda name, text: (sherd.place / name).write_text(text)
    outputs = ["--html", "refused.html", "--trace", "refused.trace"]
    run = ["8b.toml", "--world", 8, *outputs]
    sherd.refused(["nowhere.toml", *outputs], "nowhere.toml", "can't be read")
    sherd.refused([*run, "--network", "nowhere.toml"], "nowhere.toml", "can't be read")
    sherd.refused([*run, "--times", "nowhere.json"], "nowhere.json", "can't be read")
    sherd.refused(["8b.toml", "--html", "nowhere/refused.html"], "nowhere/refused.html", "can't be written")
    units = [{"name": name, "forward": 0.1, "backward": 0.2} for name in ("embedding", "layer0", "head")]
    write("times.json", json.dumps({"update": 0.1, "units": units}))
    sherd.refused([*run, "--times", "times.json"], "'layer1'", "another model", "rehearse")
    for broken, said in (("{", ["not a file of unit times"]), ("[]", ["not a file of unit times"]),
                         ('{"update": -1, "units": []}', ["update"]),
                         ('{"update": 1, "units": [{"name": "embedding", "forward": "1", "backward": 1}]}', ["forward"])):
        write("times.json", broken)
        sherd.refused([*run, "--times", "times.json"], "times.json", *said)
    write("network.toml", H200.read_text().replace("overlaps", "overlap"))
    sherd.refused([*run, "--network", "network.toml"], "network.toml:", "overlap = true", "did you mean overlaps?")
    write("network.toml", H200.read_text().replace('"139GiB"', '"139 bananas"'))
    sherd.refused([*run, "--network", "network.toml"], "device.memory", "139 bananas")
    sherd.refused([*run, *settings(memory__symmetric=True, memory__kind="eager")], "memory.symmetric = true",
                  'memory.kind = "planned"')
    sherd.refused([*run, *settings(memory__budget="64 bananas")], 'memory.budget = "64 bananas"', "64GiB")
    sherd.refused([*run, *settings(memory__bugdet="64GiB")], "memory.bugdet", "did you mean memory.budget?")


def main():
    program, server = (pathlib.Path(path).resolve() for path in sys.argv[1:])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        place = pathlib.Path(place)

        def checked(check):
            """In a folder of its own, since it looks at what is written there."""
            folder = place / check.__name__
            folder.mkdir()
            for name, text in (("8b.toml", LLAMA_8B), ("small.toml", small())):
                (folder / name).write_text(text)
            return check(Sherd(server, folder))

        quickest = is_quick(program, place)  # with nothing beside it
        if ALL:
            searches_quickly(program)
        with (Browser(place / "profile") as browser, ForkServer(server, ENVIRONMENT) as server,
              concurrent.futures.ThreadPoolExecutor(2) as two):
            def draws_in_browser(sherd):
                draws(sherd, browser)

            checks = [keeps_budget, searches, shards, draws_in_browser, keeps_falling_budgets, recomputes_no_more_than_it_must,
                      says_all, adds_up, compares, refuses]
            failed = [one.exception() for one in [two.submit(checked, check) for check in checks] if one.exception()]
        for one in failed:
            traceback.print_exception(one)
        if failed:
            sys.exit(f"{len(failed)} of {len(checks)} checks failed")
    print(f"plans are as they should be; Llama-3-405B on 16,384 ranks in {quickest:.2f} s")


main()
