// SPDX-License-Identifier: Apache-2.0
#include "comm/session.h"

#include <numeric>
#include <utility>
#include <vector>

namespace sherd {

Session::Session(Location location, std::shared_ptr<Communicator> communicator)
    : location_(location), communicator_(std::move(communicator)) {}

Session::~Session() {
  close_communicators();
}

Communicator& Session::communicator(const std::string& purpose) {
  auto& known = for_purpose_[purpose];
  if (!known) {
    std::vector<int64_t> all(static_cast<size_t>(communicator_->size()));
    std::iota(all.begin(), all.end(), int64_t{0});
    known = communicator_->split(std::move(all), purpose);
  }
  return *known;
}

void Session::close_communicators() {
  for_purpose_.clear();
  communicator_.reset();
}

}  // namespace sherd
