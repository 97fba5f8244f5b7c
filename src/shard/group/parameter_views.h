// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "shard/group/flat_storage.h"
#include "shard/group/group_layout.h"

namespace sherd {

/// The module's parameters of one group while they are sharded: views of one storage of the full
/// size that has an address only while it is shown. At other times every access throws. Parameters
/// in fp8 have the compute dtype here and a storage each: passes never show them, because Sherd's
/// products read the bytes (fp8_weight.h), and any other access throws with their name.
class ParameterViews {
 public:
  /// Makes the parameters views. Their old data are dropped, and their gradients. `address` is one
  /// for the moment.
  ParameterViews(
      const GroupLayout& layout,
      const std::vector<UnshardedParameter>& parameters,
      const at::Tensor& address);

  /// Lets the parameters read and write a buffer of the full size, in the compute dtype.
  void show(void* full);
  void hide();
  bool shown() const { return storages_.front().is_mapped(); }
  /// Sets what an access to hidden parameters throws. `unit` is the unit's name.
  void set_unit_name(const std::string& unit);
  /// Returns the view that is a parameter's data.
  const at::Tensor& view(size_t member) const { return views_[member]; }

 private:
  const GroupLayout& layout_;
  std::vector<FlatStorage> storages_;  // one for all; with fp8 one for each
  std::vector<at::Tensor> views_;
};

}  // namespace sherd
