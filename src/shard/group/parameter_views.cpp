// SPDX-License-Identifier: Apache-2.0
#include "shard/group/parameter_views.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "shard/outside_inference.h"
#include "shard/replace_data.h"

namespace sherd {

ParameterViews::ParameterViews(
    const GroupLayout& layout,
    const std::vector<UnshardedParameter>& parameters,
    const at::Tensor& model_weight)
    : storage_(layout.flat().full_size() * model_weight.element_size(), layout.device()) {
  const OutsideInference normal;
  storage_.map(model_weight.mutable_data_ptr());  // views are made of a storage that has data
  for (size_t member = 0; member < parameters.size(); ++member) {
    const auto& parameter = parameters[member].parameter;
    const auto sizes = parameter.sizes().vec();
    auto view = at::empty({0}, model_weight.options());
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t dim = sizes.size(); dim-- > 1;) {
      strides[dim - 1] = strides[dim] * std::max<int64_t>(sizes[dim], 1);
    }
    const int64_t offset = layout.flat().offset(static_cast<int64_t>(member));
    if (layout.device().is_meta()) {
      // There set_ insists on a storage that it could resize.
      view.unsafeGetTensorImpl()->set_storage_keep_dtype(storage_.storage());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    } else {
      view.set_(storage_.storage(), offset, sizes, strides);
    }
    parameter.mutable_grad() = at::Tensor();
    replace_data(parameter, view);
    views_.push_back(std::move(view));
  }
  hide();
}

}  // namespace sherd
