// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "shard/group/flat_storage.h"
#include "shard/group/group_layout.h"

namespace sherd {

/// The module's parameters of one group while they are sharded: views of one storage of the full
/// size that has an address only while it is shown. At other times every access throws.
class ParameterViews {
 public:
  /// Makes the parameters views. Their old data are dropped, and their gradients. `model_weight`
  /// gives the dtype and an address for the moment.
  ParameterViews(
      const GroupLayout& layout,
      const std::vector<UnshardedParameter>& parameters,
      const at::Tensor& model_weight);

  /// Lets the parameters read and write a buffer of the full size.
  void show(void* full) { storage_.map(full); }
  void hide() { storage_.unmap(); }
  bool shown() const { return storage_.is_mapped(); }
  /// Sets what an access to hidden parameters throws.
  void set_message(std::string message) { storage_.set_message(std::move(message)); }
  /// Returns the view that is a parameter's data.
  const at::Tensor& view(size_t member) const { return views_[member]; }

 private:
  FlatStorage storage_;
  std::vector<at::Tensor> views_;
};

}  // namespace sherd
