#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of torch.distributed.checkpoint's as safetensors: import_checkpoint.py IN OUT [--config config.json]

IN is a folder with .metadata and *.distcp, as FSDP2 and torchtitan write it. OUT becomes a folder with
  model-*.safetensors                          the weights, by Hugging Face's names
  first_moment-*, second_moment-*.safetensors  AdamW's exp_avg and exp_avg_sq by the same names, where IN has them
  import.json                                  {"step", "updates" of AdamW, "samples" or null}
  config.json                                  the one given; torchtitan's names need it for the number of heads
Runs in one process with torch alone and holds one tensor at a time. Errors: one line, exit code 2, no OUT.
"""
import argparse
import ctypes
import dataclasses
import json
import math
import os
import pathlib
import pickle
import re
import shutil
import signal
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

FILE_BYTES = 5 << 30  # of tensors; a larger tensor has a file to itself
WRITE_BYTES = 64 << 20  # at a time
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
          torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}  # what src/checkpoint reads
MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}

HUGGINGFACE = re.compile(r"model\.(embed_tokens|layers\.\d+\.(self_attn|mlp|\w+_layernorm))\.")  # these alone
TITAN = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
TITAN_LAYER = {"attention.wq": "self_attn.q_proj", "attention.qkv_linear.wq": "self_attn.q_proj",
               "attention.wk": "self_attn.k_proj", "attention.qkv_linear.wk": "self_attn.k_proj",
               "attention.wv": "self_attn.v_proj", "attention.qkv_linear.wv": "self_attn.v_proj",
               "attention.wo": "self_attn.o_proj",
               "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
               "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
ROTARY_TABLES = {"freqs_cis", "rope_cache"}  # torchtitan's, made from its configuration: no weights
WRAPPER = re.compile(r"model|module|net|state_dict|model_state(_dict)?|app(_state)?|checkpoint")  # before a name
INSERTED = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?=\.)")  # by torch, anywhere
OPTIMIZER = re.compile(r"optim(izers?)?(_states?)?(_dicts?)?")
BESIDE = re.compile(r"((app(_state)?|checkpoint|state_dict)\.)?"  # what is neither the model's nor the optimizer's
                    r"((train_state|trainer|dataloader|(lr_)?schedulers?|rng(_state)?)\..*|step|global_step|epoch)")
STEP = re.compile(r"((app(_state)?|checkpoint|state_dict)\.)?((train_state|trainer)\.)?(step|global_step)")
SAMPLES = re.compile(r"((app(_state)?|checkpoint|state_dict)\.)?(train_state|trainer|dataloader)\."
                     r"(samples|samples_seen|num_samples|consumed_samples)")


class Refused(Exception):
    """Says what is wrong, where, and what to do."""


def require(fine, *words):
    if not fine:
        raise Refused("".join(map(str, words)))


def first_line(error):
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


class MetadataUnpickler(pickle.Unpickler):
    """A pickle may run any code. This one only makes what a .metadata consists of."""
    ALLOWED = {
        "torch": {"Size"}, "torch.serialization": {"_get_layout"}, "collections": {"OrderedDict"},
        "pathlib": {"Path", "PosixPath", "PurePosixPath"}, "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
        "torch.distributed.checkpoint.metadata": {
            "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
            "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING"},
        "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
        "torch.distributed._shard.sharded_tensor.metadata": {"TensorProperties", "MEM_FORMAT_ENCODING"}}

    def find_class(self, module, name):
        if name in self.ALLOWED.get(module, ()) or \
                module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout)):
            return super().find_class(module, name)
        raise Refused(f"it names {module}.{name}, which no torch checkpoint needs; import only checkpoints from sources that you trust")


class Planner(dcp.DefaultLoadPlanner):
    """Keys are as .metadata has them, and what is no tensor must not run code either."""

    def __init__(self):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item, value):
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, map_location="cpu", weights_only=True)


class Checkpoint:
    """The keys of a folder, and what they hold: each is read when it is asked for."""

    def __init__(self, folder):
        self.folder = folder
        path = folder / ".metadata"
        require(folder.is_dir(), folder, " is not a folder: give the folder that torch.distributed.checkpoint wrote")
        require(path.is_file(), path, " is missing: give the folder with .metadata and *.distcp (torchtitan: step-N), ",
                "or save again if the save did not finish")
        try:
            with open(path, "rb") as file:
                self.metadata = MetadataUnpickler(file).load()
            self.entries = dict(self.metadata.state_dict_metadata)
            self.tensors = {key: one for key, one in self.entries.items() if isinstance(one, TensorStorageMetadata)}
            self.check_files()
            for key, entry in self.tensors.items():
                self.check_chunks(key, entry)
        except Refused as error:
            raise Refused(f"{path}: {error}") from None
        except Exception as error:
            raise Refused(f"{path} can't be read ({first_line(error)}): it is damaged; copy it again") from None
        self.reader = dcp.FileSystemReader(folder)
        self.reader.set_up_storage_reader(self.metadata, True)

    def check_files(self):
        sizes = {}
        for index, place in self.metadata.storage_data.items():
            name = place.relative_path
            require(os.path.basename(name) == name, "'", index.fqn, "' is in ", name, ", outside of the folder; ",
                    "save the checkpoint again")
            if name not in sizes:
                file = self.folder / name
                require(file.is_file(), file, " is missing, but '", index.fqn, "' is in it: copy the folder again")
                sizes[name] = file.stat().st_size
            require(place.offset >= 0 and place.length >= 0 and place.offset + place.length <= sizes[name],
                    self.folder / name, " has ", sizes[name], " bytes, but '", index.fqn, "' ends at ",
                    place.offset + place.length, ": it is truncated; copy it again")

    def check_chunks(self, key, entry):
        """What no chunk fills would be whatever was in memory."""
        filled, begins = 0, set()
        for chunk in entry.chunks:
            inside = all(0 <= at and at + size <= whole
                         for at, size, whole in zip(chunk.offsets, chunk.sizes, entry.size, strict=True))
            again = chunk.offsets in begins
            stored = MetadataIndex(key, chunk.offsets) in self.metadata.storage_data
            if math.prod(chunk.sizes) == 0:
                continue
            require(inside and not again and stored, "the piece of '", key, "' at ", list(chunk.offsets),
                    " is out of range, duplicated or missing: the checkpoint is damaged; save it again")
            filled += math.prod(chunk.sizes)
            begins.add(chunk.offsets)
        require(filled == math.prod(entry.size), "the pieces of '", key, "' have ", filled, " values of ",
                math.prod(entry.size), ": a rank's are missing; save the checkpoint again")

    def shape(self, key):
        return list(self.entries[key].size)

    def dtype(self, key):
        return self.entries[key].properties.dtype

    def bytes(self, key):
        return math.prod(self.shape(key)) * self.dtype(key).itemsize

    def read(self, key):
        """What torch.distributed.checkpoint.load does, without its processes."""
        whole = torch.empty(self.shape(key), dtype=self.dtype(key)) if key in self.tensors else None
        state, planner = {key: whole}, Planner()
        try:
            planner.set_up_planner(state, self.metadata, True)
            self.reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
        except Exception as error:
            raise Refused(f"{self.folder}: '{key}' can't be read ({first_line(error)}): its .distcp is damaged, or not "
                          "in torch.save's format; copy or save it again") from None
        return state[key]

    def number(self, key):
        """A whole number, or None where there is something else."""
        if key in self.tensors and math.prod(self.shape(key)) != 1:
            return None
        try:
            value = self.read(key)
        except Refused:
            if key in self.tensors:
                raise
            return None  # an object, not a number
        value = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and value % 1 == 0
        return int(value) if whole else None


def clean(key):
    return INSERTED.sub("", key).lstrip(".")


def wrappers(name):
    """The prefixes that may be wrappers: "", "app.", "app.model." …"""
    found, parts = [""], name.split(".")[:-1]
    for part in parts[:4]:
        if not WRAPPER.fullmatch(part):
            break
        found.append(found[-1] + part + ".")
    return found


def titan_name(name):
    """Hugging Face's name of one of torchtitan's, or None."""
    module, _, leaf = name.rpartition(".")
    layer = re.fullmatch(r"layers\.(\d+)\.(.+)", module)
    if layer and layer[2] in TITAN_LAYER:
        return f"model.layers.{layer[1]}.{TITAN_LAYER[layer[2]]}.{leaf}"
    return f"{TITAN[module]}.{leaf}" if module in TITAN else None


def of_titan(name):
    """Whether only torchtitan has this name: others have a norm and an output, too."""
    return name.startswith(("layers.", "tok_embeddings.")) and titan_name(name) is not None


def optimizer_part(key):
    """(parameter, what) of an optimizer's state, ("", "") of its other keys; None for what is no optimizer's."""
    parts = clean(key).split(".")
    known = parts[-1] in ("step", *MOMENTS.values())
    at = next((i for i, part in enumerate(parts[:3]) if OPTIMIZER.fullmatch(part)), None)
    if at is None and parts[0] != "param_groups" and not (parts[0] == "state" and known):
        return None
    rest = parts[0 if at is None else at + 1:]
    if len(rest) > 1 and rest[0].isdigit() and rest[1] in ("state", "param_groups"):
        rest = rest[1:]  # of a list of optimizers
    if rest[:1] == ["state"]:
        return (".".join(rest[1:-1]), rest[-1]) if len(rest) > 2 else ("", "")
    return (".".join(rest[:-1]), rest[-1]) if known and len(rest) > 1 and rest[0] != "param_groups" else ("", "")


def find_prefix(names, keys, parameters, paths):
    """The wrapper without which most names are known; or else are the optimizer's; or else the one that was saved."""
    nested = {".".join(map(str, paths[key][:-1])) + "." for key in keys if key in paths}

    def score(prefix):
        inner = [name[len(prefix):] for name in names if name.startswith(prefix)]
        return (sum(bool(HUGGINGFACE.match(name) or of_titan(name)) for name in inner),
                sum(prefix + parameter in names for parameter in parameters), prefix in nested, -len(prefix))
    return max({prefix for name in names for prefix in wrappers(name)}, key=score)


@dataclasses.dataclass
class Weight:
    name: str  # Hugging Face's
    key: str  # in the checkpoint
    heads: int | None = None  # whose rows change places
    state: dict = dataclasses.field(default_factory=dict)  # keys in the checkpoint, by what they are of AdamW


def head_counts(config, path, key):
    require(config is not None, "'", key, "' has torchtitan's rotary layout, which needs the number ",
            "of heads: give --config config.json with num_attention_heads and num_key_value_heads")
    heads = config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads", heads)
    for name, value in (("num_attention_heads", heads), ("num_key_value_heads", kv_heads)):
        require(type(value) is int and value > 0, path, ": ", name, " = ", json.dumps(value), ": '", key,
                "' needs it; it must be a whole number above 0")
    return {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}


def find_weights(checkpoint, states, config, config_path):
    """By the names that the optimizer has for them, and what was left out."""
    names = {}
    for key in checkpoint.tensors:
        if optimizer_part(key) is None and not BESIDE.fullmatch(clean(key)):
            require(clean(key) not in names, checkpoint.folder, ": '", key, "' and '", names.get(clean(key)),
                    "' are the same name twice; save the model with get_model_state_dict")
            names[clean(key)] = key
    require(names, checkpoint.folder, " has no tensor of a model: give a checkpoint with the model's weights")
    paths = checkpoint.metadata.planner_data or {}
    prefix = find_prefix(names, names.values(), states, paths)
    inner = {name[len(prefix):]: key for name, key in names.items() if name.startswith(prefix)}
    left_out = [key for name, key in names.items() if not name.startswith(prefix)]
    for key in left_out:  # such as an average of the weights
        twice = any(clean(key).endswith("." + name) for name in inner)
        require(twice, checkpoint.folder, ": '", key, "' does not begin as the weights do, with '", prefix,
                "': only one model is imported; save it alone")
    titan = any(map(of_titan, inner))
    weights = {}
    for name, key in inner.items():
        if titan and name.rpartition(".")[2] in ROTARY_TABLES:
            left_out.append(key)
            continue
        new = titan_name(name) if titan else None
        require(new or not (titan and re.match(r"layers\.\d+\.attention\.", name)), checkpoint.folder, ": '", key,
                "' is not of torchtitan's Llama, so that its rotary layout is not known; export it with torchtitan's ",
                "scripts/checkpoint_conversion/convert_to_hf.py")
        weights[name] = Weight(new or name, key)
        if new and (part := re.search(r"self_attn\.[qk]_proj", new)):
            weights[name].heads = head_counts(config, config_path, key)[part[0]]
    check_weights(checkpoint, weights, config)
    return weights, prefix, left_out


def check_weights(checkpoint, weights, config):
    seen, head_dims = {}, {(config or {}).get("head_dim")} - {None}
    for weight in weights.values():
        require(weight.name not in seen, checkpoint.folder, ": '", weight.key, "' and '", seen.get(weight.name),
                "' would both be '", weight.name, "'; save one model alone")
        seen[weight.name] = weight.key
        require(checkpoint.dtype(weight.key) in DTYPES, checkpoint.folder, ": '", weight.key, "' has the dtype ",
                checkpoint.dtype(weight.key), ": convert it to one of ", ", ".join(DTYPES.values()), " before saving")
        if weight.heads:
            rows = (checkpoint.shape(weight.key) or [1])[0]
            head_dims.add(rows / weight.heads)
            require(rows % (2 * weight.heads) == 0 and len(head_dims) == 1, checkpoint.folder, ": '", weight.key,
                    "' has ", rows, " rows, which are not ", weight.heads, " heads of the same even size everywhere: ",
                    "give this model's config.json (num_attention_heads, num_key_value_heads, head_dim)")


def find_states(checkpoint):
    """Keys by parameter and what they are of AdamW."""
    states = {}
    for key in checkpoint.entries:
        parameter, what = optimizer_part(key) or ("", "")
        if not parameter:
            continue
        require(what in ("step", *MOMENTS.values()), checkpoint.folder, ": '", key, "' is not of AdamW (exp_avg, ",
                "exp_avg_sq, step): save the model without this optimizer")
        require(not parameter.isdigit(), checkpoint.folder, ": '", key, "' has a number for its parameter: save ",
                "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict, which has the name")
        require(what not in states.setdefault(parameter, {}), checkpoint.folder, ": '", key, "' and '",
                states[parameter].get(what), "' are the same state twice; save one optimizer alone")
        states[parameter][what] = key
    return states


def attach(checkpoint, weights, prefix, states):
    """Gives each weight its state. Returns how many updates AdamW has made."""
    updates = {}
    for parameter, state in states.items():
        any_key = next(iter(state.values()))
        name = parameter if parameter in weights else parameter.removeprefix(prefix)
        require(name in weights, checkpoint.folder, ": '", any_key, "' is of a parameter '", parameter,
                "' that the checkpoint has no weight of: save model and optimizer of the same training")
        for what in ("step", *MOMENTS.values()):
            require(what in state, checkpoint.folder, ": '", any_key, "' is there, but no ", what, " of '", parameter,
                    "': save the whole state of AdamW")
        require(not weights[name].state, checkpoint.folder, ": '", any_key, "' is a second state of '", name,
                "'; save one optimizer alone")
        for what in MOMENTS.values():
            key = state[what]
            require(key in checkpoint.tensors and checkpoint.shape(key) == checkpoint.shape(weights[name].key),
                    checkpoint.folder, ": '", key, "' does not have the shape of its weight, ",
                    checkpoint.shape(weights[name].key), ": save model and optimizer of the same training")
            require(checkpoint.dtype(key) in DTYPES, checkpoint.folder, ": '", key, "' has the dtype ",
                    checkpoint.dtype(key), ": convert it to one of ", ", ".join(DTYPES.values()), " before saving")
        weights[name].state = state
        count = checkpoint.number(state["step"])
        require(count is not None, checkpoint.folder, ": '", state["step"], "' is not a whole number, but AdamW's step ",
                "counts updates; save the checkpoint again")
        updates.setdefault(count, state["step"])
        require(len(updates) == 1, checkpoint.folder, ": AdamW's steps differ (",
                ", ".join(f"'{key}' = {value}" for value, key in updates.items()),
                "): all parameters must have had the same updates; save the model without the optimizer")
    return next(iter(updates), 0)


def find_number(checkpoint, pattern, otherwise):
    found = {key: checkpoint.number(key) for key in checkpoint.entries if pattern.fullmatch(key)}
    found = {key: value for key, value in found.items() if value is not None}
    require(len(set(found.values())) < 2, checkpoint.folder, ": these should be equal: ",
            ", ".join(f"'{key}' = {value}" for key, value in found.items()), "; save the checkpoint with one of them")
    return next(iter(found.values()), otherwise)


def halves(value, heads):
    """Rows of a head in pairs (rotary: 0 with 1) become rows in halves (0 with head_dim / 2)."""
    pairs = value.view(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
    return pairs.transpose(1, 2).reshape(value.shape)


def write_tensor(file, value):
    value = value.contiguous()
    size = value.numel() * value.element_size()
    if size:
        data = memoryview((ctypes.c_char * size).from_address(value.data_ptr())).cast("B")
        for begin in range(0, size, WRITE_BYTES):
            file.write(data[begin:begin + WRITE_BYTES])


def write_synced(path, write):
    with open(path, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def write_tensors(checkpoint, folder, stem, parts):
    """`parts`: (name, key, heads) of each tensor. In files of at most FILE_BYTES of tensors, in the order given."""
    files, size = [[]], 0
    for part in parts:
        if files[-1] and size + checkpoint.bytes(part[1]) > FILE_BYTES:
            files.append([])
            size = 0
        files[-1].append(part)
        size += checkpoint.bytes(part[1])
    for number, inside in enumerate(files, 1):
        header, end = {"__metadata__": {"format": "pt"}}, 0
        for name, key, _ in inside:
            begin, end = end, end + checkpoint.bytes(key)
            header[name] = {"dtype": DTYPES[checkpoint.dtype(key)], "shape": checkpoint.shape(key),
                            "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)

        def write(file):
            file.write(len(text).to_bytes(8, "little") + text)
            for _, key, heads in inside:
                value = checkpoint.read(key)
                write_tensor(file, halves(value, heads) if heads else value)
        write_synced(folder / f"{stem}-{number:05}-of-{len(files):05}.safetensors", write)


def read_config(path):
    try:
        text = path.read_bytes()
        config = json.loads(text)
    except (OSError, ValueError) as error:
        raise Refused(f"--config {path} can't be read ({first_line(error)}): give the model's config.json") from None
    require(isinstance(config, dict), "--config ", path, " is not a JSON object: give the model's config.json")
    return config, text


def convert(source, part, config_path):
    """Into the folder `part`. Returns what there is to say."""
    config, config_text = read_config(config_path) if config_path else (None, None)
    checkpoint = Checkpoint(source)
    states = find_states(checkpoint)
    weights, prefix, left_out = find_weights(checkpoint, states, config, config_path)
    updates = attach(checkpoint, weights, prefix, states)
    about = {"step": find_number(checkpoint, STEP, updates), "updates": updates,
             "samples": find_number(checkpoint, SAMPLES, None)}
    write_tensors(checkpoint, part, "model", [(one.name, one.key, one.heads) for one in weights.values()])
    trained = [one for one in weights.values() if one.state]
    for stem, what in MOMENTS.items():
        if trained:
            write_tensors(checkpoint, part, stem, [(one.name, one.state[what], one.heads) for one in trained])
    write_synced(part / "import.json", lambda file: file.write(json.dumps(about).encode() + b"\n"))
    if config_text is not None:
        write_synced(part / "config.json", lambda file: file.write(config_text))
    said = [f"{len(weights)} weights, moments of {len(trained)}, step {about['step']}, {updates} updates"]
    return said + [f"left out: {key}" for key in left_out]


def sync_folder(path):
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def import_checkpoint(source, out, config_path):
    part = out.with_name(out.name + ".part")
    require(not os.path.lexists(out), out, " exists: give a folder that does not, or remove it")
    require(not os.path.lexists(part), part, " exists: another import writes it, or was killed; then remove it")
    require(out.parent.is_dir(), out.parent, " is not a folder: make it first")
    part.mkdir()
    try:
        said = convert(source, part, config_path)
        sync_folder(part)
        require(not os.path.lexists(out), out, " exists now: something else has made it; give another folder")
        os.rename(part, out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print("\n".join(said))


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(f"{message}: import_checkpoint.py IN OUT [--config config.json]")


def main(arguments):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("source", metavar="IN", type=pathlib.Path)
    parser.add_argument("out", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--config", type=pathlib.Path)
    try:
        given = parser.parse_args(arguments)
        import_checkpoint(given.source, pathlib.Path(os.path.abspath(given.out)), given.config)
    except Refused as error:
        print("[import]", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except OSError as error:
        print(f"[import] {error.filename or given.out}: {error.strerror}: check space and permissions", file=sys.stderr)
        return 2
    except Exception as error:
        print(f"[import] {given.source}: {first_line(error)}: please report it", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that OUT.part goes, too
    sys.exit(main(sys.argv[1:]))
