// SPDX-License-Identifier: Apache-2.0
#include "shard/group/flat_storage.h"

namespace sherd {
namespace {

// c10 can make a storage refuse all access but offers no way back, so its private flag is reached
// by an explicit instantiation, which may name private members. If a later version renames it, this
// does not compile.
bool& refuses_access(c10::StorageImpl& storage);

template <auto Member>
struct Reach {
  friend bool& refuses_access(c10::StorageImpl& storage) { return storage.*Member; }
};
template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

FlatStorage::FlatStorage(int64_t bytes, c10::Device device)
    : storage_(c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(),
          bytes,
          c10::DataPtr(nullptr, device),
          /*allocator=*/nullptr,
          /*resizable=*/false)),
      device_(device) {
  set_message("[shard] the parameters are released");
  unmap();
}

void FlatStorage::map(void* data) {
  auto& impl = *storage_.unsafeGetStorageImpl();
  refuses_access(impl) = false;
  impl.set_data_ptr_noswap(c10::DataPtr(data, device_));  // also renews what it cached of the flag
  mapped_ = true;
}

void FlatStorage::unmap() {
  auto& impl = *storage_.unsafeGetStorageImpl();
  refuses_access(impl) = true;
  impl.set_data_ptr_noswap(c10::DataPtr(nullptr, device_));
  mapped_ = false;
}

void FlatStorage::set_message(std::string message) {
  auto& impl = *storage_.unsafeGetStorageImpl();
  impl.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  refuses_access(impl) = !mapped_;
  impl.set_data_ptr_noswap(c10::DataPtr(mapped_ ? impl.mutable_data() : nullptr, device_));
}

}  // namespace sherd
