// SPDX-License-Identifier: Apache-2.0
// Whether algorithms of cuBLASLt, chosen for each product of Llama-3-8B by their speed on a hot
// chip at its power limit, beat the heuristic's first choice: products [SECONDS OF WARM-UP=10]
// [MILLISECONDS PER TRIAL=150] [ALGORITHMS=12] [ROWS OF THE HEAD=8192: 2048 with full recompute]
// Time is bounded by trials: 19 products x 14 entrants (12, the first again, torch) x 3 rounds x
// 150 ms = 120 s, 10 s of warm-up, and about 0.4 s for each product to begin: less than 150 s.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <cublasLt.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int64_t kTokens = 8192, kLayers = 32;
constexpr size_t kSets = 2;  // of tensors that take turns, so that none waits in the L2 cache
constexpr size_t kWorkspace = size_t{32} << 20;   // what torch gives cuBLAS on Hopper
constexpr size_t kTrials = 42, kLeastRounds = 3;  // of a product: fewer entrants, more rounds

/// As cuBLAS sees it, by columns: d[m, n] = op(a)[m, k] · op(b)[k, n] + beta · d. Torch's tensors
/// lie by rows: each is its own transpose here.
struct Product {
  std::string name;
  int64_t m, n, k;
  bool turns_a, turns_b;
  at::ScalarType dtype;  ///< of d
  float beta;
  double a_std;   ///< power depends on the data; b has 1
  int64_t count;  ///< in a step of one micro-batch without recompute
};

/// Those of y[rows, out] = x[rows, in] · wᵀ. The weight's gradient is written `count` times in a
/// step, and added to `adds` times.
void add_products(
    std::vector<Product>& to,
    const std::string& name,
    int64_t rows,
    int64_t in,
    int64_t out,
    int64_t count,
    int64_t adds) {
  constexpr auto kNarrow = at::kBFloat16, kWide = at::kFloat;
  const int64_t all = count + adds;
  to.push_back({name + ", forward", out, rows, in, true, false, kNarrow, 0, 0.02, all});
  to.push_back({name + ", input gradient", in, rows, out, false, false, kNarrow, 0, 0.02, all});
  to.push_back({name + ", weight gradient", in, out, rows, false, true, kWide, 0, 1, count});
  to.push_back({name + ", the same, added", in, out, rows, false, true, kWide, 1, 1, adds});
}

/// A product's tensors and descriptors; those own nothing. Runs are enqueued on the current stream.
class Matmul {
 public:
  explicit Matmul(const Product& of) : product_(of) {
    const auto narrow = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    workspace_ = at::empty({static_cast<int64_t>(kWorkspace)}, narrow.dtype(at::kByte));
    for (size_t i = 0; i < kSets; ++i) {
      a_.push_back(at::randn({of.turns_a ? of.m : of.k, of.turns_a ? of.k : of.m}, narrow));
      a_[i].mul_(of.a_std);
      b_.push_back(at::randn({of.turns_b ? of.k : of.n, of.turns_b ? of.n : of.k}, narrow));
      d_.push_back(at::zeros({of.n, of.m}, narrow.dtype(of.dtype)));
    }
    const auto describe = [](cublasLtMatrixLayoutOpaque_t& to, const at::Tensor& x) {
      const auto type = x.scalar_type() == at::kFloat ? CUDA_R_32F : CUDA_R_16BF;
      TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutInit(&to, type, x.size(1), x.size(0), x.size(1)));
    };
    describe(a_layout_, a_[0]);
    describe(b_layout_, b_[0]);
    describe(d_layout_, d_[0]);
    TORCH_CUDABLAS_CHECK(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const auto turn = [&](cublasLtMatmulDescAttributes_t which, bool turns) {
      const auto op = turns ? CUBLAS_OP_T : CUBLAS_OP_N;
      TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(&operation_, which, &op, sizeof(op)));
    };
    turn(CUBLASLT_MATMUL_DESC_TRANSA, of.turns_a);
    turn(CUBLASLT_MATMUL_DESC_TRANSB, of.turns_b);
  }

  /// The heuristic's choices, its first one first.
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms(int most) {
    cublasLtMatmulPreferenceOpaque_t preference{};
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(
        &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof(kWorkspace)));
    std::vector<cublasLtMatmulHeuristicResult_t> result(static_cast<size_t>(most));
    int count = 0;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(
        at::cuda::getCurrentCUDABlasLtHandle(), &operation_, &a_layout_, &b_layout_, &d_layout_,
        &d_layout_, &preference, most, result.data(), &count));
    result.resize(static_cast<size_t>(count));
    std::erase_if(result, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
    TORCH_CHECK(!result.empty(), "[products] no algorithm for ", product_.name);
    return result;
  }

  void run(const cublasLtMatmulAlgo_t& algorithm, size_t set) {
    const float alpha = 1;
    void* d = d_[set].data_ptr();
    TORCH_CUDABLAS_CHECK(cublasLtMatmul(
        at::cuda::getCurrentCUDABlasLtHandle(), &operation_, &alpha, a_[set].data_ptr(), &a_layout_,
        b_[set].data_ptr(), &b_layout_, &product_.beta, d, &d_layout_, d, &d_layout_, &algorithm,
        workspace_.data_ptr(), kWorkspace, at::cuda::getCurrentCUDAStream()));
  }

  /// The call that Sherd makes: through cuBLAS, which may choose otherwise.
  void run_torch(size_t set) {
    const auto left = product_.turns_b ? b_[set].t() : b_[set];
    const auto right = product_.turns_a ? a_[set].t() : a_[set];
    if (product_.dtype == at::kBFloat16) {
      at::mm_out(d_[set], left, right);
    } else {
      at::addmm_out(d_[set], d_[set], left, right, product_.dtype, product_.beta, 1);
    }
  }

 private:
  const Product& product_;
  at::Tensor workspace_;
  std::vector<at::Tensor> a_, b_, d_;
  cublasLtMatrixLayoutOpaque_t a_layout_{}, b_layout_{}, d_layout_{};
  cublasLtMatmulDescOpaque_t operation_{};
};

struct Entrant {
  std::function<void(size_t)> run;
  int calls = 0;  ///< of a trial
  std::vector<double> times{};
  double median() const {
    auto sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// Seconds of a call. The first calls are not timed: the clock is still that of the one before.
double trial(const Entrant& entrant, int untimed, int timed) {
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  for (int i = 0; i < untimed; ++i) entrant.run(static_cast<size_t>(i) % kSets);
  begin.record();
  for (int i = 0; i < timed; ++i) entrant.run(static_cast<size_t>(i) % kSets);
  end.record();
  end.synchronize();
  return 1e-3 * begin.elapsed_time(end) / timed;
}

/// Each round has a trial of everyone, in another order: a cool one is a rest for the next.
void race(std::vector<Entrant>& entrants, double seconds) {
  const auto calls = [](double many) { return std::max(3, static_cast<int>(many)); };
  std::vector<Entrant*> order;
  for (auto& one : entrants) {
    one.calls = calls(0.8 * seconds / trial(one, 1, 2));  // will be slower when hot
    order.push_back(&one);
  }
  trial(entrants[0], 0, entrants[0].calls);  // the chip rested while tensors were made
  std::mt19937 random(0);
  for (size_t i = std::max(kLeastRounds, kTrials / entrants.size()); i > 0; --i) {
    std::shuffle(order.begin(), order.end(), random);
    for (auto* one : order) {
      one->times.push_back(trial(*one, one->calls / 3, one->calls - one->calls / 3));
      one->calls = calls(seconds / one->times.back());
    }
  }
}

/// Milliseconds of a call, and the share by which two entries of the first choice differ.
struct Outcome {
  double first, best, torch, noise;
};

Outcome measure(const Product& product, int most, double seconds) {
  const auto shape = c10::str(product.m, " x ", product.n, " x ", product.k);
  std::printf("%-28s %-21s", product.name.c_str(), shape.c_str());
  std::fflush(stdout);  // an error's message does not say of which product it is
  Matmul matmul(product);
  const auto found = matmul.algorithms(most);
  std::vector<Entrant> entrants;
  for (const auto& one : found) entrants.push_back({[&](size_t i) { matmul.run(one.algo, i); }});
  entrants.push_back(entrants[0]);
  entrants.push_back({[&](size_t i) { matmul.run_torch(i); }});
  race(entrants, seconds);
  const double once = 1e3 * entrants[0].median(), again = 1e3 * entrants[found.size()].median();
  const double first = (once + again) / 2, torch = 1e3 * entrants.back().median();
  double best = first;
  size_t index = 0;
  for (size_t i = 1; i < found.size(); ++i) {
    if (1e3 * entrants[i].median() < best) best = 1e3 * entrants[index = i].median();
  }
  const double work = 2e-9 * static_cast<double>(product.m * product.n * product.k);
  std::printf(
      " %7.1f %7.1f %3zu of %2zu %+6.2f %% %7.1f\n", work / first, work / best, index, found.size(),
      100 * (first / best - 1), work / torch);
  std::fflush(stdout);
  return {first, best, torch, std::abs(once - again) / first};
}

void report(const std::vector<Product>& products, const std::vector<Outcome>& outcomes) {
  double noise = 0, first = 0, best = 0, sure = 0, torch = 0;
  for (const auto& one : outcomes) noise = std::max(noise, one.noise);
  for (size_t i = 0; i < products.size(); ++i) {
    const auto& one = outcomes[i];
    const auto count = static_cast<double>(products[i].count);
    first += count * one.first;
    best += count * one.best;
    sure += count * (one.first / one.best - 1 > noise ? one.best : one.first);
    torch += count * one.torch;
  }
  std::printf("noise, the largest: %.2f %%\nproducts of a step without recompute:\n", 100 * noise);
  std::printf("  first choices %.1f ms, torch's %.1f ms\n", first, torch);
  std::printf("  best choices %.1f ms: %+.2f %%\n", best, 100 * (first / best - 1));
  std::printf("  only those above the noise %.1f ms: %+.2f %%\n", sure, 100 * (first / sure - 1));
}

double now() {
  torch::cuda::synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int argc, char** argv) {
  const double warm_up = argc > 1 ? std::atof(argv[1]) : 10;
  const double seconds = argc > 2 ? 1e-3 * std::atof(argv[2]) : 0.15;
  const int most = argc > 3 ? std::atoi(argv[3]) : 12;
  const int64_t head_rows = argc > 4 ? std::atoll(argv[4]) : kTokens;
  TORCH_CHECK_VALUE(
      seconds > 0 && most > 0 && head_rows > 0 && kTokens % head_rows == 0,
      "[products] wrong arguments: the first lines of bench/products.cpp say which there are");
  std::vector<Product> products;
  add_products(products, "qkv", kTokens, 4096, 6144, kLayers, 0);
  add_products(products, "attention", kTokens, 4096, 4096, kLayers, 0);
  add_products(products, "gate_up", kTokens, 4096, 28672, kLayers, 0);
  add_products(products, "down", kTokens, 14336, 4096, kLayers, 0);
  add_products(products, "head", head_rows, 4096, 128256, 1, kTokens / head_rows - 1);
  if (head_rows == kTokens) products.pop_back();  // one chunk: nothing is added

  const double begin = now();
  {
    Matmul matmul(products[0]);
    const auto first = matmul.algorithms(1)[0];
    while (now() - begin < warm_up) {
      for (size_t i = 0; i < 100; ++i) matmul.run(first.algo, i % kSets);
    }
  }
  std::printf("cuBLASLt %zu, TFLOP/s\n%-28s %-21s", cublasLtGetVersion(), "product", "m x n x k");
  std::printf(" %7s %7s %9s %8s %7s\n", "first", "best", "index", "gain", "torch");
  std::vector<Outcome> outcomes;
  for (const auto& one : products) outcomes.push_back(measure(one, most, seconds));
  report(products, outcomes);
  std::printf("%.0f s in all\n", now() - begin);
}
