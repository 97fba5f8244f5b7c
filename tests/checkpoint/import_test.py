#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.checkpoint saves, app/import_checkpoint.py gives back bit by bit: import_test.py"""
import contextlib
import io
import json
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "app" / "import_checkpoint.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
import import_checkpoint  # noqa: E402

ALL = os.environ.get("SHERD_TEST_ALL") == "1"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
HEADS, KV_HEADS, HEAD_DIM, DIM = 4, 2, 6, 10
CONFIG = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
TITAN = {"tok_embeddings.weight": (13, DIM), "norm.weight": (DIM,), "output.weight": (13, DIM)}
HUGGINGFACE = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight",
               "output.weight": "lm_head.weight"}
for layer in (0, 1):
    for ours, theirs, shape in (("attention.wq", "self_attn.q_proj", (HEADS * HEAD_DIM, DIM)),
                                ("attention.wk", "self_attn.k_proj", (KV_HEADS * HEAD_DIM, DIM)),
                                ("attention.wv", "self_attn.v_proj", (KV_HEADS * HEAD_DIM, DIM)),
                                ("attention.wo", "self_attn.o_proj", (DIM, HEADS * HEAD_DIM)),
                                ("feed_forward.w1", "mlp.gate_proj", (7, DIM)),
                                ("feed_forward.w2", "mlp.down_proj", (DIM, 7)),
                                ("feed_forward.w3", "mlp.up_proj", (7, DIM)),
                                ("attention_norm", "input_layernorm", (DIM,)),
                                ("ffn_norm", "post_attention_layernorm", (DIM,))):
        TITAN[f"layers.{layer}.{ours}.weight"] = shape
        HUGGINGFACE[f"layers.{layer}.{ours}.weight"] = f"model.layers.{layer}.{theirs}.weight"


class Tree(torch.nn.Module):
    """Parameters of the names and shapes given, and a loss of all of them."""

    def __init__(self, shapes):
        super().__init__()
        inner = {}
        for name, shape in shapes.items():
            head, dot, tail = name.partition(".")
            if dot:
                inner.setdefault(head, {})[tail] = shape
            else:
                self.register_parameter(name, torch.nn.Parameter(torch.randn(shape)))
        for head, tails in inner.items():
            self.add_module(head, Tree(tails))

    def forward(self, x):
        return sum((p.sin() * x * (i + 1)).sum() for i, p in enumerate(self.parameters(recurse=False))) + \
            sum(child(x) for child in self.children())


def trained(shapes, steps=2, shard=None):
    torch.manual_seed(5)
    model = Tree(shapes)
    if shard:
        shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.tensor(1.5 + step)).backward()
        optimizer.step()
    return model, optimizer


def state_of(model, optimizer):
    """Whole tensors by name: weights, first and second moments."""
    def whole(value):
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
    result = {"model": {}, "first_moment": {}, "second_moment": {}}
    for name, parameter in model.named_parameters():
        result["model"][name] = whole(parameter)
        result["first_moment"][name] = whole(optimizer.state[parameter]["exp_avg"])
        result["second_moment"][name] = whole(optimizer.state[parameter]["exp_avg_sq"])
    return result


def save(place, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=place, no_dist=True)
    return place


def call(*arguments, process=False):
    """(exit code, stderr): of the script, or, as torch takes seconds to start, of its main(). What the script itself does with
    a checkpoint that is whole, commands_test.py sees, too."""
    arguments = [str(one) for one in arguments]
    if process:
        done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=100,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        return done.returncode, done.stderr
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = import_checkpoint.main(arguments)
    return code, said.getvalue()


def read(folder, stem):
    """Tensors by name, from files whose every byte is accounted for."""
    files = sorted(folder.glob(f"{stem}-*.safetensors"))
    assert [path.name for path in files] == \
        [f"{stem}-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)], files
    tensors = {}
    for path in files:
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header, data = json.loads(data[8:8 + size]), data[8 + size:]
        assert size % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
        end = 0
        for name, about in header.items():
            assert about["data_offsets"][0] == end and name not in tensors, (name, about, end)
            begin, end = about["data_offsets"]
            values = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[about["dtype"]]) if end > begin else \
                torch.empty(0, dtype=DTYPES[about["dtype"]])
            tensors[name] = values.reshape(about["shape"])
        assert end == len(data), (path, end, len(data))
    return tensors


def check_equal(got, expected):
    assert set(got) == set(expected), set(got) ^ set(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype and got[name].shape == value.shape, (name, got[name], value)
        if value.numel():  # as bytes, which NaN and -0 are equal as, too
            alike = [one.contiguous().flatten().view(torch.uint8) for one in (got[name], value)]
            assert torch.equal(*alike), (name, got[name], value)


def check_import(source, out, expected, about, *options, process=False):
    code, said = call(source, out, *options, process=process)
    assert code == 0, said
    for stem, tensors in expected.items():
        check_equal(read(out, stem), tensors)
    assert json.loads((out / "import.json").read_text()) == about, (out / "import.json").read_text()
    files = {path.name.split("-")[0] for path in out.iterdir()}
    assert files == {*expected, "import.json", *(["config.json"] if options else [])}, files
    assert not out.with_name(out.name + ".part").exists()


def rank_main(rank, place):
    """One rank of two: FSDP2 with uneven and empty shards, two updates, saved in two forms."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def shard(model):
        for one in model.model.layers.children():
            fully_shard(one, mesh=mesh)
        fully_shard(model, mesh=mesh)
    shapes = {HUGGINGFACE[name]: shape for name, shape in TITAN.items()} | {"model.one.weight": (1, 3)}
    model, optimizer = trained(shapes, shard=shard)
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": states}, checkpoint_id=place / "nested")
    weights, states = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    dcp.save({"app": {"model": weights, "optim": states}}, checkpoint_id=place / "flat")
    whole = state_of(model, optimizer)
    if rank == 0:
        torch.save(whole, place / "whole.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def fsdp_gives_the_whole_tensors(place):
    fork = multiprocessing.get_context("fork")  # torch is loaded, and has computed nothing yet
    ranks = [fork.Process(target=rank_main, args=(rank, place)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(100)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    expected = torch.load(place / "whole.pt")
    assert len(list((place / "nested").glob("*.distcp"))) == 2
    about = {"step": 2, "updates": 2, "samples": None}
    check_import(place / "nested", place / "from_nested", expected, about, process=ALL)
    check_import(place / "flat", place / "from_flat", expected, about)


def rotary(value, interleaved):
    """value: [positions, heads, HEAD_DIM]"""
    angle = torch.arange(value.shape[0])[:, None] * 100.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = (value[..., ::2], value[..., 1::2]) if interleaved else value.split(HEAD_DIM // 2, -1)
    turned = (a * cos - b * sin, a * sin + b * cos)
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def scores(x, query, key, interleaved):
    query = rotary((x @ query.T).view(-1, HEADS, HEAD_DIM), interleaved)
    key = rotary((x @ key.T).view(-1, KV_HEADS, HEAD_DIM), interleaved).repeat_interleave(HEADS // KV_HEADS, 1)
    return torch.einsum("qhd,khd->hqk", query, key)


def place_in_halves(row, heads, rows):
    """Where Hugging Face has this row of torchtitan's."""
    head, at = divmod(row, rows // heads)
    return head * (rows // heads) + at % 2 * (rows // heads // 2) + at // 2


def torchtitan_becomes_hugging_face(place):
    model, optimizer = trained(TITAN, steps=3)
    whole = state_of(model, optimizer)
    states = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    beside = {"optimizer": states, "lr_scheduler": {"last_epoch": 3}, "dataloader": {"dp_rank_0": b"?"},
              "train_state": {"step": torch.tensor(5, dtype=torch.int32), "ntokens_seen": 77, "samples": 40}}
    flat = save(place / "titan", {**whole["model"], "freqs_cis": torch.ones(3, dtype=torch.complex64), **beside})
    newer = {name.replace("attention.w", "attention.qkv_linear.w").replace("qkv_linear.wo", "wo"): value
             for name, value in whole["model"].items()}
    older = save(place / "older", {"model": {"_orig_mod." + name: value for name, value in newer.items()}})
    (place / "config.json").write_text(json.dumps(CONFIG))
    expected = {}
    for stem, tensors in whole.items():
        expected[stem] = {}
        for name, value in tensors.items():
            if "wq" in name or "wk" in name:
                heads = HEADS if "wq" in name else KV_HEADS
                moved = torch.empty_like(value)
                for row in range(len(value)):
                    moved[place_in_halves(row, heads, len(value))] = value[row]
                assert not torch.equal(moved, value)
                value = moved
            expected[stem][HUGGINGFACE[name]] = value
    config = ("--config", place / "config.json")
    check_import(flat, place / "from_titan", expected, {"step": 5, "updates": 3, "samples": 40}, *config, process=ALL)
    check_import(older, place / "from_older", {"model": expected["model"]}, {"step": 0, "updates": 0, "samples": None},
                 *config)
    assert (place / "from_titan" / "config.json").read_text() == json.dumps(CONFIG)
    got, x = read(place / "from_titan", "model"), torch.randn(9, DIM)
    for layer in (0, 1):
        names = [f"layers.{layer}.attention.w{which}.weight" for which in "qk"]
        before = scores(x, *[whole["model"][name] for name in names], interleaved=True)
        after = scores(x, *[got[HUGGINGFACE[name]] for name in names], interleaved=False)
        unmoved = scores(x, *[whole["model"][name] for name in names], interleaved=False)
        apart = (before - after).abs().max() / before.abs().max()
        assert apart < 1e-5 < (before - unmoved).abs().max() / before.abs().max(), apart


def other_models_keep_their_names(place):
    tensors = {"a.0": torch.ones(5, 3), "norm.weight": torch.randn(4), "one": torch.tensor(2), "no": torch.empty(0, 3)}
    tensors |= {f"of.{name}": torch.randn(3, 5).to(dtype) for name, dtype in DTYPES.items()}
    nothing = {"step": 0, "updates": 0, "samples": None}
    forms = [tensors, {"model": tensors}, {"state_dict": tensors}, {"app": {"model": tensors}, "step": 7}]
    for i, state in enumerate(forms):
        check_import(save(place / f"in{i}", state), place / f"out{i}", {"model": tensors},
                     nothing | ({"step": 7} if i == 3 else {}))
    model, optimizer = trained({"model.x.weight": (3, 2), "model.y": (4,)}, steps=1)
    whole, states = state_of(model, optimizer), get_optimizer_state_dict(model, optimizer)["state"]
    forms = [{"model": whole["model"], "optimizer": {"state": states}}, {**whole["model"], "optim": states},
             {"module": whole["model"], "state": states}]
    for i, state in enumerate(forms):
        check_import(save(place / f"form{i}", state), place / f"formed{i}", whole, nothing | {"step": 1, "updates": 1})


def files_are_split(place):
    tensors = {f"t{i}": torch.randn(size) for i, size in enumerate((10, 15, 10, 60, 1))}  # of 4 bytes
    before, import_checkpoint.FILE_BYTES = import_checkpoint.FILE_BYTES, 100
    check_import(save(place / "in", tensors), place / "out", {"model": tensors},
                 {"step": 0, "updates": 0, "samples": None})
    import_checkpoint.FILE_BYTES = before
    assert before == 5 << 30
    assert len(list((place / "out").glob("model-*"))) == 4  # 10 + 15, 10, 60, 1


class Exploit:
    def __reduce__(self):
        return os.mkdir, ("exploited",)


def adam(**changed):
    return {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2), **changed}


def malformed():
    """Name: (what is saved, or makes IN; config.json; words of the message)"""
    weight = {"w": torch.ones(2)}

    def edit(change):
        def make(place):
            change(save(place / "in", {"model": weight, "optim": {"state": {"w": adam()}}}))
        return make

    def truncate(source):
        data = (source / "__0_0.distcp").read_bytes()
        (source / "__0_0.distcp").write_bytes(data[:-100])

    def scramble(source):
        (source / "__0_0.distcp").write_bytes(bytes((source / "__0_0.distcp").stat().st_size))

    def metadata(change):
        def make(source):
            about = pickle.loads((source / ".metadata").read_bytes())
            change(about)
            (source / ".metadata").write_bytes(pickle.dumps(about))
        return edit(make)

    def states(**of):
        return {"model": weight, "optim": {"state": of}}
    titan = {"layers.0.attention.wq.weight": torch.ones(8, 2), "layers.0.attention.wk.weight": torch.ones(4, 2)}
    return {
        "not a folder": (lambda place: (place / "in").write_text("x"), None, ["in is not a folder", "give the folder"]),
        "nothing there": (lambda place: None, None, ["in is not a folder"]),
        "no metadata": (
            edit(lambda source: (source / ".metadata").unlink()), None, [".metadata is missing", "give the folder"]),
        "no pickle": (
            edit(lambda source: (source / ".metadata").write_text("?")), None, [".metadata can't be read", "damaged"]),
        "code": (edit(lambda source: (source / ".metadata").write_bytes(pickle.dumps(Exploit()))), None,
                 [".metadata", "mkdir", "trust"]),
        "truncated": (edit(truncate), None, ["__0_0.distcp has", "truncated", "copy it again"]),
        "scrambled": (edit(scramble), None, ["can't be read", ".distcp is damaged"]),
        "no distcp": (edit(lambda source: (source / "__0_0.distcp").unlink()), None, ["__0_0.distcp is missing"]),
        "a missing piece": (metadata(lambda about: about.state_dict_metadata["model.w"].chunks.clear()), None,
                            ["the pieces of 'model.w' have 0 values of 2"]),
        "a wrong piece": (metadata(lambda about: setattr(about.state_dict_metadata["model.w"].chunks[0], "offsets",
                                                         torch.Size([1]))), None, ["'model.w' at [1] is out of range"]),
        "OUT exists": (
            lambda place: (save(place / "in", weight), (place / "out").mkdir()), None, ["out exists", "remove it"]),
        "OUT.part exists": (lambda place: (save(place / "in", weight), (place / "out.part").mkdir()), None,
                            ["out.part exists", "remove it"]),
        "no config": (titan, None, ["layers.0.attention.wq.weight", "--config", "num_attention_heads"]),
        "a config without heads": (titan, "{}", ["config.json: num_attention_heads = null"]),
        "a config of another model": (
            titan, '{"num_attention_heads": 4}', ["wk.weight' has 4 rows", "num_key_value_heads"]),
        "a config that is a list": (weight, "[1]", ["config.json is not a JSON object"]),
        "a config that is no JSON": (weight, "{", ["config.json can't be read"]),
        "another attention": (
            {**titan, "layers.0.attention.q_norm.weight": torch.ones(2)}, json.dumps(CONFIG),
            ["q_norm.weight' is not of torchtitan's Llama"]),
        "unknown dtype": (
            {"w": torch.ones(2, dtype=torch.complex64)}, None, ["'w' has the dtype torch.complex64", "convert it"]),
        "dtype of a moment": (states(w=adam(exp_avg=torch.ones(2, dtype=torch.complex64))), None,
                              ["optim.state.w.exp_avg' has the dtype"]),
        "state of a missing parameter": (states(w=adam(), v=adam()), None, ["a parameter 'v'", "same training"]),
        "state of another shape": (
            states(w=adam(exp_avg_sq=torch.zeros(3))), None, ["exp_avg_sq' does not have the shape", "[2]"]),
        "differing steps": ({"model": {**weight, "v": torch.ones(2)},
                             "optim": {"state": {"w": adam(), "v": adam(step=torch.tensor(4.0))}}}, None,
                            ["steps differ", "optim.state.w.step' = 3", "optim.state.v.step' = 4"]),
        "half a step": (states(w=adam(step=torch.tensor(3.5))), None, ["optim.state.w.step' is not a whole number"]),
        "half a state": (states(w={"step": 1, "exp_avg": torch.zeros(2)}), None, ["no exp_avg_sq of 'w'"]),
        "another optimizer": (states(w={"momentum_buffer": torch.zeros(2)}), None, ["_buffer' is not of AdamW"]),
        "numbered parameters": (states(**{"0": adam()}), None, ["has a number", "get_optimizer_state_dict"]),
        "two models": (
            {"model": {"model.norm.weight": torch.ones(2), "lm_head.weight": torch.ones(2)}, "other": weight}, None,
            ["'other.w' does not begin as the weights do", "save it alone"]),
        "no model": ({"train_state": {"step": torch.tensor(1)}}, None, ["has no tensor of a model"]),
    }


def malformed_inputs_are_refused(place):
    os.chdir(place)
    for number, (name, (make, config, words)) in enumerate(malformed().items()):
        inside = place / str(number)
        inside.mkdir()
        make(inside) if callable(make) else save(inside / "in", make)
        if config is not None:
            (inside / "config.json").write_text(config)
        before = sorted(inside.iterdir())
        code, said = call(inside / "in", inside / "out", *(["--config", inside / "config.json"] if config else []),
                          process=name == "truncated" or ALL and name == "not a folder")
        assert code == 2 and said.startswith("[import] ") and said.find("\n") == len(said) - 1, (name, code, said)
        assert all(word in said for word in words), (name, said, words)
        assert sorted(inside.iterdir()) == before and not (inside / "out" / "import.json").exists(), (name, said)
    assert not (place / "exploited").exists()
    for arguments in ([], ["in"], ["in", "out", "--what"]):
        code, said = call(*arguments)
        assert code == 2 and said.startswith("[import] ") and said.count("\n") == 1 and "IN OUT" in said, said


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    for test in (fsdp_gives_the_whole_tensors, torchtitan_becomes_hugging_face, other_models_keep_their_names,
                 files_are_split, malformed_inputs_are_refused):
        with tempfile.TemporaryDirectory() as place:
            test(pathlib.Path(place))
        print(test.__name__)


main()
