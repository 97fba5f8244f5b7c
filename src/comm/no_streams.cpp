// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "comm/streams.h"

namespace sherd {
namespace {

[[noreturn]] void refuse_streams() {
  TORCH_CHECK(false, "[comm] this build of Sherd has no CUDA: put nvcc on PATH and build again");
}

}  // namespace

c10::Stream communication_stream(c10::Device, bool) {
  refuse_streams();
}

c10::Stream control_stream(c10::Device) {
  refuse_streams();
}

c10::Stream current_stream(c10::Device) {
  refuse_streams();
}

std::shared_ptr<Work::State> stream_work(
    c10::Stream, std::string, std::shared_ptr<StreamWatch>, std::chrono::milliseconds, uint64_t) {
  refuse_streams();
}

// None is ever made here, but a shared pointer to one needs its destructor.
StreamWatch::~StreamWatch() = default;

StreamScope::StreamScope(Communicator::OnStream, c10::Stream own) : stream_(own), previous_(own) {
  refuse_streams();
}
StreamScope::~StreamScope() = default;

}  // namespace sherd
