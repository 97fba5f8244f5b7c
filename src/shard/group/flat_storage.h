// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Storage.h>

#include <string>

namespace sherd {

/// A storage of fixed size that is mapped to memory of others only at times. While it is not,
/// reading or writing it throws an error with a given message; tensors, views and saved tensors
/// over it stay valid.
class FlatStorage {
 public:
  /// Makes a storage that is not mapped.
  FlatStorage(int64_t bytes, c10::Device device);
  const c10::Storage& storage() const { return storage_; }

  void map(void* data);
  void unmap();
  bool is_mapped() const { return mapped_; }
  /// Sets the message for accesses after the next unmap().
  void set_message(std::string message);

 private:
  c10::Storage storage_;
  c10::Device device_;
  bool mapped_ = false;
};

}  // namespace sherd
