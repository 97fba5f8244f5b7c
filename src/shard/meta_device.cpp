// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "sherd/shard/initialise.h"

namespace sherd {
namespace {

// torch's modules take no device, so the scope reaches them through the dispatcher: a key that
// nothing else uses, under which memory is not allocated.
constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

at::Tensor empty_on_meta(
    c10::SymIntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device>,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  const c10::impl::ExcludeDispatchKeyGuard guard(kKey);
  return at::empty_symint(size, dtype, layout, c10::Device(c10::kMeta), std::nullopt, format);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("empty.memory_format", TORCH_FN(empty_on_meta));
}

}  // namespace

struct MetaDevice::Scope {
  c10::impl::IncludeDispatchKeyGuard guard{kKey};
};

MetaDevice::MetaDevice() : scope_(std::make_unique<Scope>()) {}
MetaDevice::~MetaDevice() = default;

}  // namespace sherd
