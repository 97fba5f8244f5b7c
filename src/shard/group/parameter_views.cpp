// SPDX-License-Identifier: Apache-2.0
#include "shard/group/parameter_views.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "shard/outside_inference.h"
#include "shard/replace_data.h"

namespace sherd {

ParameterViews::ParameterViews(
    const GroupLayout& layout,
    const std::vector<UnshardedParameter>& parameters,
    const at::Tensor& address)
    : layout_(layout) {
  const OutsideInference normal;
  const auto& flat = layout.flat();
  const auto options = address.options().dtype(layout.traits().compute);
  const auto size = static_cast<int64_t>(options.dtype().itemsize());
  if (!layout.is_fp8()) storages_.emplace_back(flat.full_size() * size, layout.device());
  for (size_t member = 0; member < parameters.size(); ++member) {
    const auto number = static_cast<int64_t>(member);
    if (layout.is_fp8()) storages_.emplace_back(flat.numel(number) * size, layout.device());
    auto& storage = storages_.back();
    storage.map(address.mutable_data_ptr());  // views are made of a storage that has data
    const auto& parameter = parameters[member].parameter;
    const auto sizes = parameter.sizes().vec();
    auto view = at::empty({0}, options);
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t dim = sizes.size(); dim-- > 1;) {
      strides[dim - 1] = strides[dim] * std::max<int64_t>(sizes[dim], 1);
    }
    const int64_t offset = layout.is_fp8() ? 0 : flat.offset(number);
    if (layout.device().is_meta()) {
      // There set_ insists on a storage that it could resize.
      view.unsafeGetTensorImpl()->set_storage_keep_dtype(storage.storage());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    } else {
      view.set_(storage.storage(), offset, sizes, strides);
    }
    parameter.mutable_grad() = at::Tensor();
    replace_data(parameter, view);
    views_.push_back(std::move(view));
  }
  hide();
}

void ParameterViews::show(void* full) {
  if (!layout_.is_fp8()) return storages_.front().map(full);
  for (size_t member = 0; member < views_.size(); ++member) {
    const int64_t offset = layout_.flat().offset(static_cast<int64_t>(member));
    storages_[member].map(static_cast<char*>(full) + offset * views_[member].element_size());
  }
}

void ParameterViews::hide() {
  for (auto& storage : storages_) storage.unmap();
}

void ParameterViews::set_unit_name(const std::string& unit) {
  if (!layout_.is_fp8()) {
    return storages_.front().set_message(c10::str(
        "[shard] the parameters of unit '", unit,
        "' are released: call the module through its holder (SHERD_MODULE) or sherd::call, and let "
        "values leave the unit as outputs; to read them, use sherd::full_parameters"));
  }
  for (size_t member = 0; member < views_.size(); ++member) {
    storages_[member].set_message(c10::str(
        "[shard] the weight '", layout_.name(member), "' of unit '", unit,
        "' is in fp8, and an operation that knows no fp8 reads it: use sherd::linear, norm_linear, "
        "feed_forward or norm_feed_forward, or keep the weight in the compute dtype (a "
        "ParameterRule; precision.keep in a training file); to read it, use "
        "sherd::full_parameters"));
  }
}

}  // namespace sherd
