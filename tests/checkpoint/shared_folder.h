// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>

#include "files/temporary_folder.h"
#include "ranks/rank_world.h"

namespace sherd::testing {

/// Rank 0's, under the same name on all ranks.
class SharedFolder {
 public:
  SharedFolder() {
    const auto& world = test_world();
    if (world.rank() == 0) own_.emplace();
    auto name = torch::zeros({512}, torch::kByte);
    if (own_) std::copy(own_->path().begin(), own_->path().end(), name.data_ptr<uint8_t>());
    auto shared = name.to(world.device());
    world.communicator().broadcast(shared, 0).synchronize();
    path_ = reinterpret_cast<const char*>(shared.cpu().data_ptr<uint8_t>());
  }
  ~SharedFolder() { test_world().communicator().barrier().synchronize(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::optional<TemporaryFolder> own_;
  std::string path_;
};

}  // namespace sherd::testing
