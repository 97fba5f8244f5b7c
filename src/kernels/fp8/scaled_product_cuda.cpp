// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <cublasLt.h>

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "kernels/fp8/scaled_product.h"

namespace sherd {
namespace {

/// All that a choice of algorithm depends on.
struct Shape {
  int64_t m = 0, n = 0, k = 0;  ///< as cuBLASLt sees it, by columns: d[m, n] = a[k, m]ᵀ · b[k, n]
  Scaling a{}, b{};
  c10::ScalarType out{};
  bool adds = false;
  bool in_place = false;
  bool fast = false;
  auto key() const { return std::tuple(m, n, k, a, b, out, adds, in_place, fast); }
  friend bool operator<(const Shape& one, const Shape& other) { return one.key() < other.key(); }
};

cudaDataType_t type_of(c10::ScalarType dtype) {
  return dtype == c10::kFloat ? CUDA_R_32F : dtype == c10::kHalf ? CUDA_R_16F : CUDA_R_16BF;
}

const char* text_of(Scaling scaling) {
  switch (scaling) {
    case Scaling::tensor: return "tensor";
    case Scaling::row: return "row";
    case Scaling::tile: return "tile";
    case Scaling::block: return "block";
    default: return "mx";
  }
}

/// Numbers that cuBLASLt reads from the device.
struct Constants {
  at::Tensor ones;  // scales of rows that have none of their own
  at::Tensor zero;  // [1]
};

/// A product's descriptors and algorithm. They own nothing on the device.
class Plan {
 public:
  Plan(const Shape& shape, const Constants& constants, cublasLtHandle_t handle) {
    check(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(shape.fast));
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(shape.b, shape.a));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(shape.a, shape.b));
    set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
    // Without addresses there is no algorithm for vectors of scales.
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, constants.ones.const_data_ptr<float>());
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, constants.ones.const_data_ptr<float>());
    const auto matrix = [](cublasLtMatrixLayoutOpaque_t& to, cudaDataType_t type, int64_t rows,
                           int64_t columns) {
      check(cublasLtMatrixLayoutInit(
          &to, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows));
    };
    matrix(a_, CUDA_R_8F_E4M3, shape.k, shape.m);
    matrix(b_, CUDA_R_8F_E4M3, shape.k, shape.n);
    matrix(d_, type_of(shape.out), shape.m, shape.n);
    cublasLtMatmulPreferenceOpaque_t preference;
    check(cublasLtMatmulPreferenceInit(&preference));
    const size_t workspace = at::cuda::getCUDABlasLtWorkspaceSize();
    check(cublasLtMatmulPreferenceSetAttribute(
        &preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    // Weights and summands begin where their buffers have place for them.
    const uint32_t alignment = 16;
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      check(
          cublasLtMatmulPreferenceSetAttribute(&preference, which, &alignment, sizeof(alignment)));
    }
    int found = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(
        handle, &operation_, &a_, &b_, &d_, &d_, &preference, 1, &choice_, &found);
    TORCH_CHECK(
        status == CUBLAS_STATUS_SUCCESS && found > 0,
        "[kernels.fp8] cuBLASLt has no product of fp8 matrices [", shape.n, ", ", shape.k,
        "] with scales by ", text_of(shape.a), " and [", shape.m, ", ", shape.k, "] by ",
        text_of(shape.b), " to ", shape.out, shape.adds ? ", added" : "",
        " on this device: ", cublasLtGetStatusString(status),
        "; fp8 needs a GPU of Hopper or newer, and weights whose dims are multiples of 16");
  }

  void run(
      const ScaledProduct& product, const Constants& constants, cublasLtHandle_t handle) const {
    auto operation = operation_;
    const auto* one = constants.ones.const_data_ptr<float>();
    const auto* alpha = one;
    const auto pointer = [&](const Fp8Matrix& matrix, const Fp8Matrix& other) {
      // If one side has scales by row and the other a single scale, that is the product's factor.
      if (matrix.scaling == Scaling::tensor && other.scaling == Scaling::row) {
        if (matrix.scales.defined()) alpha = matrix.scales.const_data_ptr<float>();
        return one;
      }
      return matrix.scales.defined() ? matrix.scales.const_data_ptr<float>() : one;
    };
    const auto* b_scale = pointer(product.a, product.b);
    const auto* a_scale = pointer(product.b, product.a);
    set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a_scale);
    set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b_scale);
    auto* out = product.out.mutable_data_ptr();
    const bool adds = product.summand.defined();
    check(cublasLtMatmul(
        handle, &operation, alpha, product.b.values.const_data_ptr(), &a_,
        product.a.values.const_data_ptr(), &b_, adds ? one : constants.zero.const_data_ptr<float>(),
        adds ? product.summand.const_data_ptr() : out, &d_, out, &d_, &choice_.algo,
        at::cuda::getCUDABlasLtWorkspace(), at::cuda::getCUDABlasLtWorkspaceSize(),
        at::cuda::getCurrentCUDAStream()));
  }

 private:
  static void check(cublasStatus_t status) {
    TORCH_CHECK(
        status == CUBLAS_STATUS_SUCCESS,
        "[kernels.fp8] cuBLASLt: ", cublasLtGetStatusString(status));
  }
  template <class T>
  static void set(
      cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t which, const T& value) {
    check(cublasLtMatmulDescSetAttribute(&operation, which, &value, sizeof(value)));
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t which, const T& value) {
    set(operation_, which, value);
  }
  static cublasLtMatmulMatrixScale_t mode_of(Scaling scaling, Scaling other) {
    switch (scaling) {
      case Scaling::tensor:
        return other == Scaling::row ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                     : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
      case Scaling::row: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
      case Scaling::tile: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
      case Scaling::block: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
      default: TORCH_INTERNAL_ASSERT(false, "[kernels.fp8] a scaling without a product");
    }
  }

  cublasLtMatmulDescOpaque_t operation_;
  // cuBLASLt takes them as pointers to what may change, and changes nothing.
  mutable cublasLtMatrixLayoutOpaque_t a_;
  mutable cublasLtMatrixLayoutOpaque_t b_;
  mutable cublasLtMatrixLayoutOpaque_t d_;
  cublasLtMatmulHeuristicResult_t choice_{};
};

/// The plans and constants of a device. Lives as long as the process: at its end the device may be
/// gone.
class Library {
 public:
  static Library& of(c10::Device device) {
    static std::mutex mutex;
    static auto& all = *new std::map<c10::DeviceIndex, Library>;
    const std::lock_guard lock(mutex);
    return all[device.index()];
  }

  void run(const ScaledProduct& product) {
    const auto handle = at::cuda::getCurrentCUDABlasLtHandle();
    const Shape shape{
        .m = product.b.values.size(0),
        .n = product.a.values.size(0),
        .k = product.a.values.size(1),
        .a = product.a.scaling,
        .b = product.b.scaling,
        .out = product.out.scalar_type(),
        .adds = product.summand.defined(),
        .in_place = product.summand.is_same(product.out),
        .fast = product.fast};
    const std::lock_guard lock(mutex_);
    reserve(product.out, std::max(shape.m, shape.n));
    auto plan = plans_.find(shape);
    if (plan == plans_.end()) plan = plans_.emplace(shape, Plan(shape, constants_, handle)).first;
    plan->second.run(product, constants_, handle);
  }

 private:
  /// A captured graph keeps the addresses of constants, so those that are too few are kept, too.
  void reserve(const at::Tensor& like, int64_t rows) {
    constexpr int64_t kLeast = int64_t{1} << 15;
    const auto numbers = like.options().dtype(at::kFloat);
    if (!constants_.zero.defined()) constants_.zero = at::zeros({1}, numbers);
    if (constants_.ones.defined() && constants_.ones.numel() >= rows) return;
    if (constants_.ones.defined()) outgrown_.push_back(constants_.ones);
    constants_.ones = at::ones({padded(rows, kLeast)}, numbers);
  }

  std::mutex mutex_;
  std::map<Shape, Plan> plans_;
  Constants constants_;
  std::vector<at::Tensor> outgrown_;
};

}  // namespace

namespace {

/// cuBLASLt reads the scales of 128 × 128 blocks in rows of a multiple of 4, which begin at a
/// multiple of 16 bytes.
Fp8Matrix with_readable_scales(Fp8Matrix matrix) {
  if (matrix.scaling != Scaling::block) return matrix;
  const int64_t missing = padded(matrix.scales.size(1), 4) - matrix.scales.size(1);
  const auto address = reinterpret_cast<uintptr_t>(matrix.scales.const_data_ptr());
  if (missing > 0) {
    matrix.scales = at::constant_pad_nd(matrix.scales, {0, missing});
  } else if (address % 16 != 0) {
    matrix.scales = matrix.scales.clone();
  }
  return matrix;
}

}  // namespace

void scaled_product_on_cuda(const ScaledProduct& given) {
  const auto& out = given.out;
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(out.device());
  if (given.a.values.size(1) == 0) {  // a weight's gradient without tokens
    if (!given.summand.defined()) out.zero_();
    if (given.summand.defined() && !given.summand.is_same(out)) out.copy_(given.summand);
    return;
  }
  auto product = given;
  product.a = with_readable_scales(product.a);
  product.b = with_readable_scales(product.b);
  Library::of(out.device()).run(product);
}

void check_fp8_device(c10::Device device, const std::string& parameter) {
  if (!device.is_cuda()) return;
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  TORCH_CHECK_VALUE(
      properties->major >= 9, "[kernels.fp8] the products of '", parameter,
      "' are to be in fp8, but ", properties->name, " has compute capability ", properties->major,
      ".", properties->minor,
      " and multiplies no fp8: use a GPU of Hopper or newer (9.0), or keep the weight in bf16");
}

}  // namespace sherd
