#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Malformed inputs end in an error that names what is wrong, quickly, and leave files alone: malformed_test.py FORK_SERVER"""
import json
import os
import pathlib
import struct
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from fork_server import ForkServer  # noqa: E402

FINE = '[model]\ndim = 16\nlayers = 1\nheads = 2\n[data]\ntext = "story.txt"\nseq = 8\n[train]\nsteps = 1\nout = "out"\n'
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "vocab_size": 256, "hidden_size": 8,
          "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 2}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2, "head_dim": 4}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 2}
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "num_key_value_heads": 2, "head_dim": 4}
OLMOE = {"architectures": ["OlmoeForCausalLM"]}
BAMBA = {"architectures": ["BambaForCausalLM"], "num_key_value_heads": 2, "mamba_n_heads": 4}


def safetensors(tensors, header=None):
    """fp32 zeros of the given shapes."""
    entries, end = {}, 0
    for name, shape in tensors.items():
        size = 4
        for one in shape:
            size *= one
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header if header is not None else entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


WEIGHTS = {"model.embed_tokens.weight": [256, 8], "model.norm.weight": [8], "lm_head.weight": [256, 8],
           "model.layers.0.input_layernorm.weight": [8], "model.layers.0.post_attention_layernorm.weight": [8],
           **{f"model.layers.0.self_attn.{name}_proj.weight": [8, 8] for name in "qkvo"},
           "model.layers.0.mlp.gate_proj.weight": [16, 8], "model.layers.0.mlp.up_proj.weight": [16, 8],
           "model.layers.0.mlp.down_proj.weight": [8, 16]}


def folder(place, config=CONFIG, weights=None):
    model = place / "model"
    model.mkdir()
    if config is not None:
        (model / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (model / "model.safetensors").write_bytes(safetensors(WEIGHTS) if weights is None else weights)


def configuration(text):
    return lambda place: (place / "run.toml").write_text(text)


def tokens(data, dtype="uint16"):
    def make(place):
        (place / "tokens.bin").write_bytes(data)
        (place / "run.toml").write_text(FINE.replace('text = "story.txt"', f'tokens = "tokens.bin"\ndtype = "{dtype}"'))
    return make


def validation(data):
    def make(place):
        tokens(bytes(400))(place)
        (place / "validation.bin").write_bytes(data)
        text = (place / "run.toml").read_text()
        (place / "run.toml").write_text(text.replace("seq", 'validation = "validation.bin"\nseq'))
    return make


def model(**arguments):
    def make(place):
        folder(place, **arguments)
        (place / "run.toml").write_text(FINE.replace("[model]", '[model]\nfrom = "model"'))
    return make


def changed(**values):
    return {**CONFIG, **values}


def without(name):
    return safetensors({key: shape for key, shape in WEIGHTS.items() if key != name})


def kind(name, keys):
    return configuration(FINE.replace("[model]", f'[model]\nkind = "{name}"\n{keys}'))


def images(data):
    def make(place):
        (place / "images.bin").write_bytes(data)
        (place / "run.toml").write_text(FINE.replace("[model]", '[model]\nkind = "vlm"').replace("seq", 'images = "images.bin"\nseq'))
    return make


def indexed(text):
    def make(place):
        model()(place)
        (place / "model/model.safetensors.index.json").write_text(text)
    return make


def pipe(place):
    os.mkfifo(place / "pipe")
    (place / "run.toml").write_text(FINE.replace("story.txt", "pipe"))


def file_in_the_way(place):
    (place / "out").write_text("not a folder")
    (place / "run.toml").write_text(FINE)


# What is made, and words of the error.
CASES = {
    "no TOML": (configuration("[model\ndim = 3"), ["run.toml:1"]),
    "not even text": (configuration("\x00\x01\x02"), ["run.toml:1"]),
    "a key twice": (configuration(FINE + "steps = 2\n"), ["run.toml"]),
    "a misspelt section": (configuration(FINE.replace("[train]", "[trian]")), ["trian", "did you mean train?"]),
    "a misspelt key": (configuration(FINE.replace("layers", "layer")), ["run.toml:3", "did you mean model.layers?"]),
    "a string for a number": (configuration(FINE.replace("16", '"16"')), ["model.dim", "whole number"]),
    "a number too large": (configuration(FINE.replace("16", "99999999999999999999")), ["run.toml:2"]),
    "heads that do not divide": (configuration(FINE.replace("heads = 2", "heads = 3")), ["model.heads = 3", "divide"]),
    "a head of odd width": (configuration(FINE.replace("heads = 2", "heads = 16")), ["must be even"]),
    "a model that is not known": (configuration(FINE.replace("[model]", '[model]\nkind = "gpt"')), ["model.kind", "llama"]),
    "more experts of a token than there are": (kind("moe", "top_k = 9"), ["model.top_k = 9", "at most model.experts = 8"]),
    "a pattern with another letter": (kind("hybrid", 'pattern = "MX"'), ['model.pattern = "MX"', "M (Mamba-2)"]),
    "state heads that do not divide": (kind("hybrid", "ssm_head_dim = 7"), ["model.ssm_head_dim = 7", "divide"]),
    "a patch that does not divide": (kind("vlm", "patch = 5"), ["model.patch = 5", "divide model.image_size"]),
    "a model that sees, without images": (kind("vlm", ""), ["data.images", "needs it"]),
    "images for one that does not": (configuration(FINE.replace("seq", 'images = "a"\nseq')), ["data.images", "vlm"]),
    "images that are cut": (images(bytes(100)), ["100 bytes", "model.image_size"]),
    "images that the text does not have": (images(bytes(3 * 32 * 32)), ["must occur 16 times", "0 times there"]),
    "no data": (configuration(FINE.replace('text = "story.txt"\n', "")), ["data.tokens"]),
    "two data": (configuration(FINE.replace("seq", 'tokens = "a"\nseq')), ["not both"]),
    "a text that is not there": (configuration(FINE.replace("story", "history")), ["data.text = history.txt", "there is no such file"]),
    "a folder for a text": (configuration(FINE.replace("story.txt", ".")), ["data.text", "is a folder"]),
    "a text too short": (configuration(FINE.replace("seq = 8", "seq = 80000")), ["80000", "needs 80001"]),
    "an outer axis that does not divide": (configuration(FINE + "[shard]\nouter = 2\n"), ["shard.outer = 2"]),
    "an empty token file": (tokens(b""), ["has 0 tokens"]),
    "half a token": (tokens(bytes(101)), ["101 bytes", "data.dtype"]),
    "tokens beyond the vocabulary": (tokens(b"\xff" * 200), ["is 65535", "model.vocab"]),
    "tokens of another dtype": (tokens(b"\x01\x00" * 200, "uint32"), ["is 65537", "data.dtype"]),
    # Neither of the next two would be drawn in the run's one step.
    "a last token beyond the vocabulary": (tokens(bytes(4000) + b"\x2c\x01"), ["token 2000 is 300", "model.vocab to 301"]),
    "validation beyond the vocabulary": (validation(bytes(40) + b"\x2c\x01"), ["validation.bin", "token 20 is 300"]),
    "a tokenizer that is not there": (configuration(FINE.replace("seq", 'tokenizer = "nowhere"\nseq')), ["data.tokenizer", "nowhere"]),
    "a watch of ranks without addresses": (
        configuration(FINE + 'watch = "ranks"\n[memory]\nkind = "eager"\n'), ["train.watch", "memory.kind"]),
    "no time for the ranks": (configuration(FINE + "[device]\noperation_limit = 0\n"), ["device.operation_limit", "above 0"]),
    "a model without config.json": (model(config=None), ["config.json"]),
    "a config.json that is no JSON": (model(config="{"), ["config.json", "not JSON"]),
    "a config.json that is a list": (model(config="[]"), ["not a JSON object"]),
    "a config.json of another model": (model(config=changed(architectures=["GPT2LMHeadModel"])), ["GPT2LMHeadModel"]),
    "a config.json without a size": (model(config={k: v for k, v in CONFIG.items() if k != "hidden_size"}), ["hidden_size"]),
    "a negative size": (model(config=changed(num_hidden_layers=-1)), ["num_hidden_layers = -1"]),
    "rotary scaling of another kind": (model(config=changed(rope_scaling={"rope_type": "yarn"})), ["yarn"]),
    "no weights": (model(weights=b""), ["model.safetensors", "0 bytes"]),
    "weights cut short": (model(weights=safetensors(WEIGHTS)[:-1]), ["model.safetensors"]),
    "a weight that is missing": (model(weights=without("model.norm.weight")), ["no tensor 'model.norm.weight'"]),
    "a weight of another shape": (model(config=changed(vocab_size=255)), ["lm_head.weight", "shape"]),
    "a header that is too long": (model(weights=b"\xff" * 64), ["its header should have"]),
    "weights that the model lacks": (model(weights=safetensors({**WEIGHTS, "model.layers.1.x": [2]})), ["model.layers.1.x", "does not have"]),
    "an index without files": (indexed('{"weight_map": {}}'), ["weight_map is empty"]),
    "an index that leaves the folder": (indexed('{"weight_map": {"a": "../a"}}'), ["in the same folder"]),
    "a value as deep as it is long": (model(config=json.dumps(changed(hidden_act="x")).replace('"x"', "[" * 99999 + "]" * 99999)),
                                      ["config.json", "nested more than 32 levels deep"]),
    "the folder of a relative": (model(config=changed(model_type="mistral")), ["mistral"]),
    "rotary parameters of another kind": (model(config=changed(rope_parameters={"rope_type": "yarn"})), ["yarn"]),
    "a window shorter than the sequences": (
        model(config=changed(**MISTRAL, sliding_window=7)), ["sliding_window = 7", "set data.seq to at most 7"]),
    "a window in the last layer": (
        model(config=changed(**QWEN3, use_sliding_window=True, max_window_layers=0, sliding_window=6)), ["sliding_window = 6"]),
    "a layer of another type": (model(config=changed(**QWEN3, layer_types=["linear_attention"])), ["layer_types", "linear_attention"]),
    "a layer whose window is off": (model(config=changed(**QWEN3, layer_types=["sliding_attention"])), ["layer_types", "sliding_attention"]),
    "layer types that are none": (model(config=changed(**QWEN3, layer_types=[1])), ["layer_types = [1]", "list of strings"]),
    "biases of a family without": (model(config=changed(**QWEN3, attention_bias=True)), ["attention_bias = true", "only false"]),
    "a router with noise": (model(config=changed(**MIXTRAL, router_jitter_noise=0.1)), ["router_jitter_noise = 0.1", "only 0.0"]),
    "more experts than a folder's": (model(config=changed(**MIXTRAL, num_experts_per_tok=9)),
                                     ["num_experts_per_tok = 9", "at most num_local_experts = 8"]),
    "a folder's experts of an odd width": (model(config=changed(**QWEN3_MOE, moe_intermediate_size=12)),
                                           ["moe_intermediate_size = 12", "multiple of 8"]),
    "a balance below 0": (model(config=changed(**MIXTRAL, router_aux_loss_coef=-1)), ["router_aux_loss_coef = -1", "at least 0"]),
    "layers without experts": (model(config=changed(**QWEN3_MOE, mlp_only_layers=[0])), ["mlp_only_layers = [0]", "only []"]),
    "every second layer with experts": (model(config=changed(**QWEN3_MOE, decoder_sparse_step=2)), ["decoder_sparse_step = 2", "only 1"]),
    "a window of experts": (model(config=changed(**QWEN3_MOE, use_sliding_window=True, sliding_window=5)), ["sliding_window = 5"]),
    "clipped queries": (model(config=changed(**OLMOE, clip_qkv=8.0)), ["clip_qkv = 8.0", "only null"]),
    "heads of another width": (model(config=changed(**OLMOE, head_dim=8)), ["head_dim = 8", "hidden_size / num_attention_heads"]),
    "norms across heads that have none": (configuration(FINE.replace("heads", "qk_norm_across = true\nheads")),
                                          ["model.qk_norm_across = true", "set model.qk_norm"]),
    "experts that are not there": (model(config=changed(**MIXTRAL)), ["no tensor 'model.layers.0.block_sparse_moe."]),
    "heads of Mamba that do not fit": (model(config=changed(**BAMBA, mamba_d_head=5)), ["mamba_d_head = 5", "hidden_size = 16"]),
    "groups of Mamba that do not divide": (model(config=changed(**BAMBA, mamba_n_groups=3)), ["mamba_n_groups = 3", "mamba_n_heads = 4"]),
    "a wide convolution": (model(config=changed(**BAMBA, mamba_d_conv=9)), ["mamba_d_conv = 9", "at most 8"]),
    "a projection with biases": (model(config=changed(**BAMBA, mamba_proj_bias=True)), ["mamba_proj_bias = true", "only false"]),
    "an odd number of rotated dims": (model(config=changed(**BAMBA, partial_rotary_factor=0.25)),
                                      ["partial_rotary_factor = 0.25", "the 4 dims of a head"]),
    "rotated parts of a Llama's heads": (model(config=changed(partial_rotary_factor=0.5)), ["partial_rotary_factor = 0.5", "only 1.0"]),
    "attention in a layer that is not there": (model(config=changed(**BAMBA, attn_layer_indices=[1])), ["attn_layer_indices = [1]", "from 0 to 0"]),
    "a loss of Bamba's own": (model(config=changed(**BAMBA, z_loss_coefficient=0.1)), ["z_loss_coefficient = 0.1", "only 0.0"]),
    "a dropout": (model(config=changed(attention_dropout=0.1)), ["attention_dropout = 0.1", "only 0.0"]),
    "norms that are not there": (model(config=changed(**QWEN3)), ["no tensor 'model.layers.0.self_attn.", "_norm.weight'"]),
    "a folder of another kind": (lambda place: (folder(place), kind("moe", 'from = "model"')(place)),
                                 ['model.kind = "moe"', 'of kind "llama"']),
    "a folder for a model that sees": (kind("vlm", 'from = "model"'), ['model.kind = "vlm"', "remove model.kind"]),
    "biases and norms": (configuration(FINE.replace("heads", "qk_norm = true\nqkv_bias = true\nheads")), ["model.qk_norm", "set one of"]),
    "heads of an odd width": (configuration(FINE.replace("heads", "head_dim = 7\nheads")), ["model.head_dim = 7", "even"]),
    "no rotated dims": (kind("hybrid", "rope_fraction = 0.1"), ["model.rope_fraction = 0.1", "of which there are 8"]),
    "rotated parts of heads elsewhere": (kind("moe", "rope_fraction = 0.5"), ["model.rope_fraction = 0.5", "hybrid"]),
    "a pipe for a text": (pipe, ["not a regular file"]),
    "a file where the results go": (file_in_the_way, ["train.out = out"]),
    "a batch beyond all bounds": (configuration(FINE.replace("seq", "batch = 4611686018427387904\nseq")), ["data.batch", "at most"]),
    "experts of an odd width": (kind("moe", "ffn = 30"), ["model.ffn = 30", "multiple of 8"]),
    "strategies that do not go together": (
        configuration(FINE + '[shard]\nouter = 2\nstrategy = "no_shard"\nouter_strategy = "optim"\n'), ["shard.outer_strategy"]),
    "a checkpoint that is not there": (configuration(FINE + 'resume = "nowhere"\n'), ["nowhere", "there is no such folder"]),
    "a header that is a list": (model(weights=safetensors({}, header=[])), ["not a JSON object"]),
}


def refused(sherd, name, make, words):
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        (place / "story.txt").write_text("Once there was a pot. " * 20)
        make(place)
        before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        begin = time.monotonic()
        done = sherd.run(["train", "run.toml", "--set", "device.kind=cpu"], cwd=place, timeout=30)
        taken = time.monotonic() - begin
        assert done.returncode == 2, (name, done.returncode, done.stderr)
        for word in words:
            assert word in done.stderr, (name, word, done.stderr)
        assert "terminate called" not in done.stderr and "frame #" not in done.stderr, (name, done.stderr)
        assert taken < 10, (name, taken)
        for path, data in before.items():
            assert path.read_bytes() == data, (name, path)


def main():
    with ForkServer(sys.argv[1], dict(os.environ, OMP_NUM_THREADS="1")) as sherd:
        for name, (make, words) in CASES.items():
            refused(sherd, name, make, words)
    assert len(CASES) >= 30
    print(f"{len(CASES)} malformed inputs refused")


main()
