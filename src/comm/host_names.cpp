// SPDX-License-Identifier: Apache-2.0
#include "comm/host_names.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <cstring>

namespace sherd {

std::vector<std::string> host_names(const World& world) {
  constexpr int64_t kLongest = 64;  // Linux allows no longer ones
  auto mine = at::zeros({kLongest}, at::kByte);
  gethostname(static_cast<char*>(mine.mutable_data_ptr()), kLongest - 1);
  mine = mine.to(world.device());
  auto all = at::empty({world.size() * kLongest}, mine.options());
  world.communicator().all_gather(all, mine).synchronize();
  all = all.cpu();
  const auto* first = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const char* name = first + rank * kLongest;
    names.emplace_back(name, strnlen(name, kLongest));
  }
  return names;
}

}  // namespace sherd
