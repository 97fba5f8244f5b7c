// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "comm/mpi/transport.h"

namespace sherd {
namespace {

class LoneTransport final : public Transport {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  std::unique_ptr<Request> send(int64_t, int, const void*, int64_t) override { return refuse(); }
  std::unique_ptr<Request> receive(int64_t, int, void*, int64_t) override { return refuse(); }
  std::unique_ptr<Request> receive_any(int, void*, int64_t) override { return refuse(); }
  void finish() override {}

 private:
  static std::unique_ptr<Request> refuse() {
    TORCH_INTERNAL_ASSERT(false, "[comm.mpi] a process alone has no peer to talk to");
  }
};

}  // namespace

std::unique_ptr<Transport> lone_transport() {
  return std::make_unique<LoneTransport>();
}

}  // namespace sherd
