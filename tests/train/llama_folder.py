# SPDX-License-Identifier: Apache-2.0
"""A Llama with random weights as a Hugging Face folder, and what it is trained with. Needs torch alone."""
import json
import pathlib
import struct

import torch

STORY = pathlib.Path(__file__).parents[2] / "examples" / "tiny.txt"
SEQ, SAMPLES, STEPS = 24, 8, 20  # samples of a step, on all ranks together
RATE, BETAS, EPS, DECAY, CLIP = 2e-3, (0.9, 0.95), 1e-8, 0.1, 1.0

LOGITS_OF, LOGITS_AT = [(7 * i * i + 3 * i) % 256 for i in range(40)], (0, 1, 17, 39)  # tokens, and places among them

CONFIGS = {
    "untied": {"tie_word_embeddings": False},
    "tied": {
        "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 16},
    },
}


def config(kind):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
            "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "attention_bias": False, "mlp_bias": False, "initializer_range": 0.02, **CONFIGS[kind]}


def weights(kind):
    """By name: the same for the same torch."""
    about = config(kind)
    dim, ffn, vocab = about["hidden_size"], about["intermediate_size"], about["vocab_size"]
    narrow = dim // about["num_attention_heads"] * about["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (vocab, dim)}
    for i in range(about["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {layer + "input_layernorm.weight": (dim,), layer + "post_attention_layernorm.weight": (dim,)}
        for name, out in (("q", dim), ("k", narrow), ("v", narrow), ("o", dim)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (out, dim)
        shapes |= {layer + "mlp.gate_proj.weight": (ffn, dim), layer + "mlp.up_proj.weight": (ffn, dim),
                   layer + "mlp.down_proj.weight": (dim, ffn)}
    shapes["model.norm.weight"] = (dim,)
    if not about["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, dim)
    random = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=random) * 0.05 + (len(shape) == 1) for name, shape in shapes.items()}


def write(kind, folder):
    write_model(folder, config(kind), weights(kind))


def write_words(folder):
    """With a vocabulary for a tokenizer."""
    about, tensors = {**config("untied"), "vocab_size": 512}, weights("untied")
    random = torch.Generator().manual_seed(4)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.randn(512, about["hidden_size"], generator=random) * 0.1
    write_model(folder, about, tensors)


def write_model(folder, about, tensors):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about))
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        values = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
