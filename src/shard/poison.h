// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Storage.h>

#include <string>

namespace sherd {

/// A storage of fixed size whose address comes and goes. While it has none, reading or writing it
/// is an exception with the given words; tensors, views and saved tensors over it stay valid.
class FlatStorage {
 public:
  FlatStorage(int64_t bytes, c10::Device device);
  const c10::Storage& storage() const { return storage_; }

  void set(void* data);
  void poison();
  /// What a touch says from the next poison() on.
  void set_message(std::string message);
  bool is_set() const { return set_; }

 private:
  c10::Storage storage_;
  c10::Device device_;
  bool set_ = false;
};

}  // namespace sherd
