# SPDX-License-Identifier: Apache-2.0
"""Small models of Llama's relatives with random weights as Hugging Face folders. Needs torch alone."""
import torch

import llama_folder

COLUMNS = slice(0, 256, 8)  # of the logits that families.json has, at llama_folder.LOGITS_AT
DENSE = {"vocab_size": 256, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
         "hidden_act": "silu", "initializer_range": 0.02, "tie_word_embeddings": False, "attention_dropout": 0.0}
SCALING = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 16}

CONFIGS = {
    # A window that no sequence of the tests exceeds; heads wider than hidden_size / num_attention_heads.
    "mistral": {**DENSE, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64,
                "head_dim": 16},
    "qwen2": {**DENSE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True,
              "use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0},
    "qwen3": {**DENSE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 20, "attention_bias": False,
              "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "rope_scaling": SCALING},
}


def attention_shapes(about, layer):
    dim, heads, kv_heads = (about[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    width = about.get("head_dim", dim // heads)
    rows = {"q": heads * width, "k": kv_heads * width, "v": kv_heads * width}
    shapes = {f"{layer}self_attn.{name}_proj.weight": (count, dim) for name, count in rows.items()}
    shapes[f"{layer}self_attn.o_proj.weight"] = (dim, heads * width)
    if about["model_type"] == "qwen2":
        shapes |= {f"{layer}self_attn.{name}_proj.bias": (count,) for name, count in rows.items()}
    if about["model_type"].startswith("qwen3"):
        shapes |= {f"{layer}self_attn.{name}_norm.weight": (width,) for name in "qk"}
    return shapes


def feed_forward_shapes(about, stem, ffn):
    dim = about["hidden_size"]
    return {stem + "gate_proj.weight": (ffn, dim), stem + "up_proj.weight": (ffn, dim), stem + "down_proj.weight": (dim, ffn)}


def layer_shapes(about, layer):
    norms = {f"{layer}{name}_layernorm.weight": (about["hidden_size"],) for name in ("input", "post_attention")}
    return {**norms, **attention_shapes(about, layer), **feed_forward_shapes(about, layer + "mlp.", about["intermediate_size"])}


def weights(kind):
    """By name: the same for the same torch."""
    about = CONFIGS[kind]
    ends = (about["vocab_size"], about["hidden_size"])
    shapes = {"model.embed_tokens.weight": ends, "model.norm.weight": ends[1:]}
    if not about["tie_word_embeddings"]:
        shapes["lm_head.weight"] = ends
    for i in range(about["num_hidden_layers"]):
        shapes |= layer_shapes(about, f"model.layers.{i}.")
    random = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=random) * 0.1 + name.endswith("norm.weight") for name, shape in shapes.items()}


def write(kind, folder):
    llama_folder.write_model(folder, CONFIGS[kind], weights(kind))
