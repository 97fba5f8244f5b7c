// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <utility>

#include "comm/engine/transport.h"

namespace sherd {
namespace {

class LoneTransport final : public Transport {
 public:
  explicit LoneTransport(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::unique_ptr<Request> send(int64_t, int, const void*, int64_t) override { return refuse(); }
  std::unique_ptr<Request> receive(int64_t, int, void*, int64_t) override { return refuse(); }
  std::unique_ptr<Request> receive_any(int, void*, int64_t) override { return refuse(); }
  void finish() override {}

 private:
  std::unique_ptr<Request> refuse() const {
    TORCH_INTERNAL_ASSERT(false, "[comm.", name_, "] a process alone has no peer to talk to");
  }

  std::string name_;
};

}  // namespace

std::unique_ptr<Transport> lone_transport(std::string name) {
  return std::make_unique<LoneTransport>(std::move(name));
}

}  // namespace sherd
