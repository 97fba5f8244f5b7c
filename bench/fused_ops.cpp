// SPDX-License-Identifier: Apache-2.0
// What share of a copy's bandwidth the fused kernels reach at the shapes of an 8 B model:
// fused_ops [SECONDS OF WARM-UP] [DEVICE] [fp8|dense|experts|mamba]. Counts the bytes that must
// move, each once.
#include <ATen/ATen.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/fp8/encode_weights.h"
#include "kernels/fp8/fused.h"
#include "kernels/fp8/scaled_product.h"
#include "kernels/nn/causal_conv.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/gated_norm.h"
#include "kernels/nn/grouped_product.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/rope.h"
#include "kernels/nn/routing.h"
#include "kernels/nn/state_space.h"
#include "kernels/nn/sum_rows.h"
#include "kernels/nn/swiglu.h"
#include "kernels/nn/weighted_swiglu.h"

namespace {

c10::Device device("cuda");
int64_t tokens = 8192;
int64_t dim = 4096;
int64_t ffn = 14336;
int64_t vocab = 128256;
int64_t chunk = 2048;
constexpr int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int kSets = 4;  // of tensors that take turns, so that none waits in the L2 cache
double warm_up = 5;
double copy_rate = 0;

double seconds() {
  if (device.is_cuda()) torch::cuda::synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Of one run.
double time_of(const std::function<void(size_t)>& run) {
  for (const double begin = seconds(); seconds() - begin < warm_up / 10;) {
    for (int i = 0; i < 20; ++i) run(static_cast<size_t>(i % kSets));
  }
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    const double begin = seconds();
    for (int i = 0; i < 20; ++i) run(static_cast<size_t>(i % kSets));
    rounds.push_back((seconds() - begin) / 20);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

void report(const std::string& name, int64_t bytes, const std::function<void(size_t)>& run) {
  const double taken = time_of(run);
  const double rate = static_cast<double>(bytes) / taken;
  std::printf(
      "%-44s %8.1f us %7.1f GB/s %4.0f %% of the copy\n", name.c_str(), taken * 1e6, rate / 1e9,
      100 * rate / copy_rate);
  std::fflush(stdout);
}

void report_product(
    const std::string& name,
    double operations,
    const std::function<void(size_t)>& run,
    const char* remark = "") {
  const double taken = time_of(run);
  std::printf(
      "%-44s %8.1f us %7.1f TFLOP/s %s\n", name.c_str(), taken * 1e6, operations / taken / 1e12,
      remark);
  std::fflush(stdout);
}

at::Tensor narrow_random(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions(at::kBFloat16).device(device));
}
at::Tensor wide_empty(at::IntArrayRef shape) {
  return at::empty(shape, at::TensorOptions(at::kFloat).device(device));
}
std::vector<at::Tensor> sets(at::IntArrayRef shape) {
  std::vector<at::Tensor> result;
  for (int i = 0; i < kSets; ++i) result.push_back(narrow_random(shape));
  return result;
}

void measure_copy() {
  const int64_t bytes = int64_t{1} << (device.is_cuda() ? 30 : 20);
  const auto from = at::zeros({bytes}, at::TensorOptions(at::kByte).device(device));
  const auto to = at::empty_like(from);
  for (const double begin = seconds(); seconds() - begin < warm_up;) to.copy_(from);
  copy_rate = 2 * static_cast<double>(bytes) / time_of([&](size_t) { to.copy_(from); });
  std::printf("copy: %.1f GB/s\n", copy_rate / 1e9);
}

void measure_rms_norm() {
  const auto x = sets({tokens, dim}), residual = sets({tokens, dim}), y = sets({tokens, dim}),
             sum = sets({tokens, dim});
  const auto weight = narrow_random({dim});
  const auto scale = wide_empty({tokens}), weight_gradient = wide_empty({dim});
  const int64_t one = 2 * tokens * dim;
  report("rms_norm", 2 * one, [&](size_t i) {
    sherd::rms_norm_forward({x[i], {}, weight, 1e-5, {}, y[i], scale});
  });
  report("add_rms_norm", 4 * one, [&](size_t i) {
    sherd::rms_norm_forward({x[i], residual[i], weight, 1e-5, sum[i], y[i], scale});
  });
  report("rms_norm, backward", 3 * one, [&](size_t i) {
    sherd::rms_norm_backward({y[i], {}, x[i], weight, scale, sum[i], weight_gradient, true});
  });
  report("add_rms_norm, backward", 4 * one, [&](size_t i) {
    sherd::rms_norm_backward(
        {y[i], residual[i], x[i], weight, scale, sum[i], weight_gradient, true});
  });
}

void measure_rope() {
  const auto packed = sets({1, tokens, kHeads + 2 * kKvHeads, kHeadDim});
  const auto angle = wide_empty({tokens, kHeadDim / 2}).uniform_(0, 6);
  const auto cosine = angle.cos(), sine = angle.sin();
  const int64_t bytes = 2 * 2 * tokens * (kHeads + kKvHeads) * kHeadDim;
  report("rope_, queries and keys in place", bytes, [&](size_t i) {
    const auto turning = packed[i].narrow(2, 0, kHeads + kKvHeads);
    sherd::rope({turning, turning, cosine, sine, false});
  });
}

void measure_swiglu() {
  const auto gate_up = sets({tokens, 2 * ffn}), activation = sets({tokens, ffn}),
             gradient = sets({tokens, ffn});
  const auto d_gate_up = sets({tokens, 2 * ffn});
  const int64_t one = 2 * tokens * ffn;
  report("swiglu", 3 * one, [&](size_t i) { sherd::swiglu_forward(gate_up[i], activation[i]); });
  report("swiglu, backward", 5 * one, [&](size_t i) {
    sherd::swiglu_backward(gradient[i], gate_up[i], d_gate_up[i]);
  });
  report("swiglu, backward and the activation again", 6 * one, [&](size_t i) {
    sherd::swiglu_backward(gradient[i], gate_up[i], d_gate_up[i], activation[i]);
  });
}

void measure_cross_entropy() {
  const auto logits = sets({chunk, vocab});
  const auto longs = at::TensorOptions(at::kLong).device(device);
  const auto targets = at::randint(0, vocab, {chunk}, longs);
  const auto losses = wide_empty({chunk}), log_sums = wide_empty({chunk});
  const auto factor = at::ones({}, losses.options());
  const int64_t one = 2 * chunk * vocab;
  report("cross entropy of a chunk of logits", one, [&](size_t i) {
    sherd::cross_entropy_forward(logits[i], targets, losses, log_sums, false);
  });
  report("cross entropy, gradients at once", 2 * one, [&](size_t i) {
    sherd::cross_entropy_forward(logits[i], targets, losses, log_sums, true);
  });
  report("cross entropy, gradients later", 2 * one, [&](size_t i) {
    sherd::cross_entropy_backward(logits[i], targets, log_sums, factor);
  });
}

void measure_embedding() {
  const auto gradient = sets({tokens, dim});
  const auto target = at::zeros({vocab, dim}, at::TensorOptions(at::kFloat).device(device));
  const auto longs = at::TensorOptions(at::kLong).device(device);
  const auto spread = at::randint(0, vocab, {tokens}, longs);
  const auto equal = at::zeros({tokens}, longs);
  const int64_t read = 2 * tokens * dim;
  report("embedding's gradient, added, with the sort", read + 8 * tokens * dim, [&](size_t i) {
    sherd::embedding_gradient({gradient[i], spread, target, true});
  });
  report("the same, all tokens equal (the worst case)", read, [&](size_t i) {
    sherd::embedding_gradient({gradient[i], equal, target, true});
  });
}

/// Of a layer of Nemotron-H-8B: its inner width is twice the model's.
void measure_mamba() {
  const int64_t inner = 2 * dim, heads = inner / 64, groups = 8, state = 128, keys = groups * state,
                channels = inner + 2 * keys, packed_width = inner + channels + heads;
  const auto packed = sets({1, tokens, packed_width}), conv = sets({1, tokens, channels}),
             y = sets({1, tokens, heads, 64}), d_packed = sets({1, tokens, packed_width}),
             d_conv = sets({1, tokens, channels});
  const auto wide_random = [](at::IntArrayRef shape) { return wide_empty(shape).normal_(); };
  const int64_t wide = 2 * tokens * inner, all = 2 * tokens * channels;

  const auto filter = wide_random({channels, 4}), filter_bias = wide_random({channels});
  const auto d_filter = wide_empty({channels, 4}), d_filter_bias = wide_empty({channels});
  const auto conv_of = [&](size_t i) {
    return sherd::CausalConv{packed[i].narrow(-1, inner, channels), filter, filter_bias};
  };
  report(
      "convolution", 2 * all, [&](size_t i) { sherd::causal_conv_forward(conv_of(i), conv[i]); });
  report("convolution, backward", 3 * all, [&](size_t i) {
    sherd::causal_conv_backward(
        conv_of(i), d_conv[i], {d_packed[i].narrow(-1, inner, channels), d_filter, d_filter_bias});
  });

  const auto weight = wide_random({inner}), d_weight = wide_empty({inner});
  const auto norm_of = [&](size_t i) {
    return sherd::GatedNorm{
        y[i].view({tokens, inner}), packed[i][0].narrow(-1, 0, inner), weight, 1e-5, 1};
  };
  const auto normed = sets({tokens, inner}), dy = sets({tokens, inner});
  report(
      "gated norm", 3 * wide, [&](size_t i) { sherd::gated_norm_forward(norm_of(i), normed[i]); });
  report("gated norm, backward", 6 * wide, [&](size_t i) {
    sherd::gated_norm_backward(
        norm_of(i), dy[i], {dy[i], d_packed[i][0].narrow(-1, 0, inner), d_weight, normed[i]});
  });

  const auto step_bias = wide_random({heads}), decay_log = wide_random({heads}),
             through = wide_random({heads});
  const auto part = [&](const at::Tensor& of, int64_t first, int64_t count, int64_t each) {
    return of.narrow(-1, first, count * each).unflatten(-1, {count, each});
  };
  const auto space_of = [&](size_t i) {
    return sherd::StateSpace{
        part(conv[i], 0, heads, 64),
        packed[i].narrow(-1, inner + channels, heads),
        part(conv[i], inner, groups, state),
        part(conv[i], inner + keys, groups, state),
        step_bias,
        decay_log,
        through};
  };
  std::vector<at::Tensor> states;
  for (int i = 0; i < kSets; ++i) {
    states.push_back(narrow_random({1, space_of(0).chunks(), heads, 64, state}));
  }
  const int64_t kept = states[0].numel() * 2;
  report("scan of states", all + wide + 2 * kept, [&](size_t i) {
    sherd::state_space_forward(space_of(i), y[i], states[i]);
  });
  const auto d_step_bias = wide_empty({heads}), d_decay_log = wide_empty({heads}),
             d_through = wide_empty({heads});
  report("scan of states, backward", wide + 2 * all + 3 * kept, [&](size_t i) {
    sherd::state_space_backward(
        space_of(i), states[i], dy[i].view(y[i].sizes()),
        {part(d_conv[i], 0, heads, 64), d_packed[i].narrow(-1, inner + channels, heads),
         part(d_conv[i], inner, groups, state), part(d_conv[i], inner + keys, groups, state),
         d_step_bias, d_decay_log, d_through});
  });
}

/// Measures a layer of OLMoE-1B-7B with half the tokens, whose experts are chosen at random.
void measure_experts() {
  const int64_t narrow = dim / 2, width = ffn / 14, experts = 64, chosen = 8;
  const int64_t rows = tokens * chosen, row = 2 * rows * width;
  const auto logits = wide_empty({tokens, experts}).normal_();
  const auto routing = sherd::route(logits, chosen);
  const auto d_weight = wide_empty({rows}).normal_(), weight_gradient = wide_empty({rows});
  const auto balance = at::ones({}, logits.options());
  const auto loads = sherd::expert_loads(routing, 1);
  const int64_t scores = 4 * tokens * experts, places = tokens * chosen * 5 * 4;
  report("routing", scores + scores + places, [&](size_t) { sherd::route(logits, chosen); });
  report("balance of experts", scores + places, [&](size_t) {
    sherd::balance_loss(routing, sherd::expert_loads(routing, 1));
  });
  report("routing, backward", 2 * scores + places, [&](size_t) {
    sherd::routing_gradient(routing, d_weight, balance, loads);
  });

  const auto x = sets({rows, narrow}), gate_up = sets({rows, 2 * width}),
             activation = sets({rows, width}), d_gate_up = sets({rows, 2 * width}),
             y = sets({tokens, narrow});
  const auto up = narrow_random({experts, 2 * width, narrow}),
             down = narrow_random({experts, narrow, width});
  const auto d_up = wide_empty({experts, 2 * width, narrow}).zero_();
  const auto operations = 2.0 * static_cast<double>(rows) * static_cast<double>(narrow * width);
  report_product("gate and up of all experts", 2 * operations, [&](size_t i) {
    sherd::grouped_product(x[i], up, routing.end_E);
  });
  report_product("down of all experts", operations, [&](size_t i) {
    sherd::grouped_product(activation[i], down, routing.end_E);
  });
  report_product("gate and up, input gradient", 2 * operations, [&](size_t i) {
    sherd::grouped_input_gradient(gate_up[i], up, routing.end_E);
  });
  for (const bool add : {false, true}) {
    const char* name =
        add ? "gate and up, weight gradient, added" : "gate and up, weight gradient, set";
    report_product(name, 2 * operations, [&](size_t i) {
      sherd::grouped_weight_gradient({gate_up[i], x[i], routing.end_E, d_up, add});
    });
  }

  const auto& weight = routing.weight_R;
  report("weighted swiglu", 3 * row, [&](size_t i) {
    sherd::weighted_swiglu_forward(gate_up[i], weight, activation[i]);
  });
  report("weighted swiglu, backward", 6 * row, [&](size_t i) {
    sherd::weighted_swiglu_backward(
        {gate_up[i], weight, activation[i], d_gate_up[i], weight_gradient});
  });
  report("sum of each token's rows", 2 * (rows + 2 * tokens) * narrow, [&](size_t i) {
    sherd::sum_rows({x[i], routing.row_TK, y[i], y[i]});
  });
}

// ---- fp8 ----------------------------------------------------------------------------------------

void measure_fp8_encoders() {
  using namespace sherd;
  const auto x = sets({tokens, dim}), gate_up = sets({tokens, 2 * ffn}),
             activation = sets({tokens, ffn});
  const auto weight = narrow_random({dim});
  const int64_t one = tokens * dim, wide = tokens * ffn;  // elements
  const auto normed = encode_normed(x[0], {}, weight, 1e-5);
  const auto gradient = encode_gradient(x[1], normed.rows.scales);
  report("rows of an input", 3 * one, [&](size_t i) { encode_rows(x[i], Scaling::row); });
  report("rows and columns of a gradient", 4 * one, [&](size_t i) {
    encode_gradient(x[i], normed.rows.scales);
  });
  report("columns of an input", 3 * one, [&](size_t i) { encode_input_again(x[i], gradient); });
  report("rms_norm to rows", 3 * one, [&](size_t i) { encode_normed(x[i], {}, weight, 1e-5); });
  report("add_rms_norm to rows", 7 * one, [&](size_t i) {
    encode_normed(x[i], x[(i + 1) % kSets], weight, 1e-5);
  });
  report("rms_norm to columns", 3 * one, [&](size_t i) {
    encode_normed_again(x[i], weight, normed.scale, gradient);
  });
  report("swiglu to rows", 5 * wide, [&](size_t i) { encode_swiglu(gate_up[i]); });
  const auto down = encode_gradient(x[2], encode_swiglu(gate_up[0]).scales);
  report("swiglu, backward to rows and columns", 11 * wide, [&](size_t i) {
    encode_swiglu_gradients(activation[i], gate_up[i], down, normed.rows.scales);
  });
  report("tiles of 128 of an input", 3 * one, [&](size_t i) { encode_rows(x[i], Scaling::tile); });
  report("the same along columns", 3 * one, [&](size_t i) { encode_columns(x[i], Scaling::tile); });
}

void measure_fp8_weights() {
  using namespace sherd;
  const auto numbers = at::TensorOptions(at::kFloat).device(device);
  std::vector<at::Tensor> main, bytes, transposed;
  for (int i = 0; i < kSets; ++i) {
    main.push_back(at::randn({2 * ffn, dim}, numbers));
    bytes.push_back(at::zeros({2 * ffn, dim}, numbers.dtype(at::kByte)));
    transposed.push_back(at::zeros({dim, 2 * ffn}, numbers.dtype(at::kByte)));
  }
  const auto amax = at::zeros({1}, numbers.dtype(at::kInt)), scale = at::zeros({1}, numbers);
  const int64_t count = main[0].numel();
  const auto piece = [&](size_t i) {
    return WeightPiece{bytes[i].mutable_data_ptr(), main[i].const_data_ptr(), count, 0};
  };
  report("amax of a weight", 4 * count, [&](size_t i) {
    const auto one = piece(i);
    measure_weights({&one, 1}, at::kFloat, amax);
  });
  report("encode a weight", 5 * count, [&](size_t i) {
    const auto one = piece(i);
    encode_weights({&one, 1}, at::kFloat, amax, scale);
  });
  report("transpose its bytes", 2 * count, [&](size_t i) {
    const Transposition one{
        transposed[i].mutable_data_ptr(), bytes[i].const_data_ptr(), 2 * ffn, dim};
    transpose({&one, 1}, 1, device);
  });
}

void measure_fp8_product(
    const char* name, const sherd::ScaledProduct& product, const char* remark = "") {
  const auto [rows, inner] = std::pair(product.a.values.size(0), product.a.values.size(1));
  const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(inner) *
                            static_cast<double>(product.b.values.size(0));
  report_product(
      name, operations, [&](size_t) { sherd::scaled_product(product); }, remark);
}

void measure_fp8_products() {
  using namespace sherd;
  const auto weight_of = [](int64_t rows, int64_t columns) {
    const auto row = encode_rows(narrow_random({1, rows * columns}), Scaling::row);
    return Fp8Matrix{row.values.view({rows, columns}), row.scales, Scaling::tensor};
  };
  const auto x = encode_rows(narrow_random({tokens, dim}), Scaling::row);
  const auto gate_up = weight_of(2 * ffn, dim);
  const auto out = narrow_random({tokens, 2 * ffn});
  measure_fp8_product("gate and up, fast", {x, gate_up, out, {}, true});
  measure_fp8_product("gate and up, precise", {x, gate_up, out});
  const auto a = encode_rows(narrow_random({tokens, ffn}), Scaling::row);
  const auto down = weight_of(dim, ffn);
  const auto sum = narrow_random({tokens, dim});
  const auto residual = narrow_random({tokens, dim});
  measure_fp8_product("down, fast", {a, down, sum, {}, true});
  measure_fp8_product("down with the residual, fast", {a, down, sum, residual, true});
  const auto gradient = encode_gradient(narrow_random({tokens, 2 * ffn}), x.scales);
  const auto again = encode_input_again(narrow_random({tokens, dim}), gradient);
  const auto buffer = wide_empty({2 * ffn, dim});
  measure_fp8_product("gate and up, weight gradient, set", {gradient.columns, again, buffer});
  buffer.zero_();
  measure_fp8_product(
      "gate and up, weight gradient, added", {gradient.columns, again, buffer, buffer});
  const auto transposed = weight_of(dim, 2 * ffn);
  measure_fp8_product("gate and up, input gradient", {gradient.rows, transposed, sum});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) warm_up = std::atof(argv[1]);
  if (argc > 2) device = c10::Device(argv[2]);
  if (device.is_cpu()) {  // to see that it runs
    tokens = 16;
    dim = 128;
    ffn = 448;
    vocab = 1000;
    chunk = 8;
  }
  const std::string only = argc > 3 ? argv[3] : "";
  const auto measures = [&](const char* what) { return only.empty() || only == what; };
  measure_copy();
  if (measures("fp8")) {
    measure_fp8_encoders();
    measure_fp8_weights();
    measure_fp8_products();
  }
  if (measures("dense")) {
    measure_rms_norm();
    measure_rope();
    measure_swiglu();
    measure_cross_entropy();
    measure_embedding();
  }
  if (measures("experts")) measure_experts();
  if (measures("mamba")) measure_mamba();
}
