# SPDX-License-Identifier: Apache-2.0
"""Small models of other families than Llama with random weights as Hugging Face folders. Needs torch alone."""
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
    "mixtral": {**DENSE, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": 64,
                "num_local_experts": 5, "num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.02},
    # Weights of experts that don't sum to 1.
    "qwen3_moe": {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 20,
                  "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": False,
                  "tie_word_embeddings": True},
    "olmoe": {**DENSE, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 6,
              "num_experts_per_tok": 2, "norm_topk_prob": False, "clip_qkv": None, "pad_token_id": None},
    # Three layers, of which the second has attention; 6 of the 12 dims of its heads have rotary embeddings.
    "bamba": {**DENSE, "architectures": ["BambaForCausalLM"], "model_type": "bamba", "num_hidden_layers": 3,
              "attn_layer_indices": [1], "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16,
              "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 8, "pad_token_id": None},
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
    if about["model_type"] == "olmoe":
        shapes |= {f"{layer}self_attn.{name}_norm.weight": (rows[name],) for name in "qk"}
    return shapes


def feed_forward_shapes(about, stem, ffn):
    dim = about["hidden_size"]
    return {stem + "gate_proj.weight": (ffn, dim), stem + "up_proj.weight": (ffn, dim), stem + "down_proj.weight": (dim, ffn)}


def experts_shapes(about, layer):
    dim = about["hidden_size"]
    if about["model_type"] != "mixtral":
        ffn = about.get("moe_intermediate_size", about["intermediate_size"])
        shapes = {layer + "mlp.gate.weight": (about["num_experts"], dim)}
        for i in range(about["num_experts"]):
            shapes |= feed_forward_shapes(about, f"{layer}mlp.experts.{i}.", ffn)
        return shapes
    ffn, stem = about["intermediate_size"], layer + "block_sparse_moe."
    shapes = {stem + "gate.weight": (about["num_local_experts"], dim)}
    for i in range(about["num_local_experts"]):
        expert = f"{stem}experts.{i}."
        shapes |= {expert + "w1.weight": (ffn, dim), expert + "w2.weight": (dim, ffn), expert + "w3.weight": (ffn, dim)}
    return shapes


def mamba_shapes(about, stem):
    dim, heads, width = about["hidden_size"], about["mamba_n_heads"], about["mamba_d_conv"]
    inner = about["mamba_expand"] * dim
    channels = inner + 2 * about["mamba_n_groups"] * about["mamba_d_state"]
    return {stem + "in_proj.weight": (inner + channels + heads, dim), stem + "conv1d.weight": (channels, 1, width),
            stem + "conv1d.bias": (channels,), stem + "dt_bias": (heads,), stem + "A_log": (heads,), stem + "D": (heads,),
            stem + "norm.weight": (inner,), stem + "out_proj.weight": (dim, inner)}


def bamba_layer_shapes(about, layer, number):
    norms = {f"{layer}{name}_layernorm.weight": (about["hidden_size"],) for name in ("input", "pre_ff")}
    attends = number in about["attn_layer_indices"]
    mixer = attention_shapes(about, layer) if attends else mamba_shapes(about, layer + "mamba.")
    return {**norms, **mixer, **feed_forward_shapes(about, layer + "feed_forward.", about["intermediate_size"])}


def layer_shapes(about, number):
    layer, kind = f"model.layers.{number}.", about["model_type"]
    if kind == "bamba":
        return bamba_layer_shapes(about, layer, number)
    norms = {f"{layer}{name}_layernorm.weight": (about["hidden_size"],) for name in ("input", "post_attention")}
    if kind in ("mixtral", "qwen3_moe", "olmoe"):
        return {**norms, **attention_shapes(about, layer), **experts_shapes(about, layer)}
    return {**norms, **attention_shapes(about, layer), **feed_forward_shapes(about, layer + "mlp.", about["intermediate_size"])}


def weights(kind):
    """By name: the same for the same torch."""
    about = CONFIGS[kind]
    ends = (about["vocab_size"], about["hidden_size"])
    last_norm = "final_layernorm" if kind == "bamba" else "norm"
    shapes = {"model.embed_tokens.weight": ends, f"model.{last_norm}.weight": ends[1:]}
    if not about["tie_word_embeddings"]:
        shapes["lm_head.weight"] = ends
    for i in range(about["num_hidden_layers"]):
        shapes |= layer_shapes(about, i)
    random = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=random) * 0.1 + name.endswith("norm.weight") for name, shape in shapes.items()}


def write(kind, folder):
    llama_folder.write_model(folder, CONFIGS[kind], weights(kind))
