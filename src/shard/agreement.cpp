// SPDX-License-Identifier: Apache-2.0
#include "shard/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <sstream>
#include <thread>
#include <tuple>

namespace sherd {
namespace {

constexpr int64_t kFields = 5;
static_assert(sizeof(Agreement::Record) == kFields * sizeof(int64_t));

/// The copy of the records to the host, on the side stream.
class HostCopy final : public Work::State {
 public:
  HostCopy(c10::Stream stream, Work work) : end_(stream.device_type()), work_(std::move(work)) {
    end_.record(stream);
  }
  void wait() override { synchronize(); }
  void synchronize() override {
    while (!done()) std::this_thread::yield();
  }
  bool done() override {
    work_.done();  // throws what went wrong
    return end_.query();
  }

 private:
  c10::Event end_;
  Work work_;
};

std::string line(const std::string& text, size_t number) {
  std::istringstream in(text);
  std::string result;
  for (size_t i = 0; i <= number; ++i) {
    if (!std::getline(in, result)) return "(nothing)";
  }
  return result;
}

at::Tensor gather(Communicator& communicator, c10::Device device, const at::Tensor& mine) {
  const auto input = mine.to(device);
  auto all = at::empty({input.numel() * communicator.size()}, input.options());
  communicator.all_gather(all, input).synchronize();
  return all.cpu();
}

}  // namespace

std::vector<std::string> exchange(
    Communicator& communicator, c10::Device device, const std::string& text) {
  if (device.is_meta()) return {text};  // a rehearsal without memory: all say the same
  const int64_t ranks = communicator.size();
  auto length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<int64_t>() = std::ssize(text);
  const auto lengths = gather(communicator, device, length);
  const auto* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t most = std::max<int64_t>(1, *std::max_element(sizes, sizes + ranks));
  auto padded = at::zeros({most}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), text.data(), text.size());
  const auto all = gather(communicator, device, padded);
  std::vector<std::string> result;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto* begin = static_cast<const char*>(all.const_data_ptr()) + rank * most;
    result.emplace_back(begin, static_cast<size_t>(sizes[rank]));
  }
  return result;
}

void require_same(
    Communicator& communicator, c10::Device device, const char* what, const std::string& text) {
  if (device.is_meta()) return;
  auto hash = at::empty({1}, at::kLong);
  *hash.mutable_data_ptr<int64_t>() = static_cast<int64_t>(std::hash<std::string>()(text));
  const auto hashes = gather(communicator, device, hash);
  const auto* values = hashes.const_data_ptr<int64_t>();
  if (std::all_of(values, values + communicator.size(), [&](int64_t value) {
        return value == values[0];
      })) {
    return;
  }
  const auto said = exchange(communicator, device, text);
  for (size_t other = 1; other < said.size(); ++other) {
    TORCH_CHECK(
        said[other] == said.front(), "[shard.agree] rank 0 and rank ", other, " of '",
        communicator.name(), "' do not ", what, " the same. Rank 0: ", said.front(), ". Rank ",
        other, ": ", said[other],
        ". All ranks must shard the same units in the same order, with the same options");
  }
}

bool Agreement::Record::agrees_with(const Record& other) const {
  return std::tie(kind, number, hash, detail) ==
         std::tie(other.kind, other.number, other.hash, other.detail);
}

Agreement::Agreement(const World& world)
    : world_(world), communicator_(world.communicator("control")) {
  const auto device = world.device();
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const bool cuda = device.is_cuda();
  std::optional<c10::StreamGuard> guard;  // the records are written where they are sent
  if (cuda) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true);
    guard.emplace(*stream_);
  }
  mine_ = at::zeros({kFields}, options);
  all_ = at::zeros({kFields * world.size()}, options);
  const auto host = at::TensorOptions().dtype(at::kLong).pinned_memory(cuda);
  host_mine_ = cuda ? at::empty({kFields}, host) : mine_;
  host_all_ = cuda ? at::empty({kFields * world.size()}, host) : all_;
}

void Agreement::start(const Record& record, Words words) {
  if (world_.device().is_meta()) return;
  check(/*block=*/true);
  record_ = record;
  words_ = std::move(words);
  std::memcpy(host_mine_.mutable_data_ptr(), &record, sizeof(record));
  if (!stream_) {
    work_ = communicator_.all_gather(all_, mine_);
  } else {
    // On a stream of its own: it has nothing to do with what the device computes.
    const c10::StreamGuard guard(*stream_);
    mine_.copy_(host_mine_, /*non_blocking=*/true);
    auto gathered = communicator_.all_gather(all_, mine_, stream_);
    host_all_.copy_(all_, /*non_blocking=*/true);
    work_ = Work(std::make_shared<HostCopy>(*stream_, std::move(gathered)));
  }
  open_ = true;
}

bool Agreement::arrived() {
  return work_.done();
}

void Agreement::wait(std::optional<std::chrono::milliseconds> limit) {
  if (!limit) {
    work_.synchronize();
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + *limit;
  while (!arrived()) {
    TORCH_CHECK_WITH(
        DistBackendError, std::chrono::steady_clock::now() < deadline, "[shard.agree] rank ",
        world_.rank(), ": ", line(words_(), 0), ", but the other ranks did not say so within ",
        limit->count() / 1000, " s: all ranks must do the same");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  work_.synchronize();
}

std::vector<Agreement::Record> Agreement::records() const {
  std::vector<Record> all(static_cast<size_t>(world_.size()));
  std::memcpy(all.data(), host_all_.const_data_ptr(), all.size() * sizeof(Record));
  return all;
}

void Agreement::check(bool block, std::optional<std::chrono::milliseconds> limit) {
  if (!open_ || (!block && !arrived())) return;
  wait(limit);
  open_ = false;
  const auto all = records();
  for (const auto& other : all) {
    if (!other.agrees_with(all.front())) refuse(all);
    news_ = news_ || other.news != 0;
  }
}

std::vector<std::string> Agreement::exchange(const std::string& text) {
  return sherd::exchange(communicator_, world_.device(), text);
}

void Agreement::refuse(const std::vector<Record>& all) {
  const auto said = exchange(words_());
  size_t other = 1;
  while (other + 1 < all.size() && all[other].agrees_with(all.front()) &&
         said[other] == said.front()) {
    ++other;
  }
  size_t number = 0;
  const auto lines = [](const std::string& text) {
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  };
  const size_t most = std::max(lines(said.front()), lines(said[other]));
  while (number + 1 < most && line(said.front(), number) == line(said[other], number)) ++number;
  TORCH_CHECK(
      false, "[shard.agree] rank 0 and rank ", other,
      " do not run the same program. Rank 0: ", line(said.front(), number), ". Rank ", other, ": ",
      line(said[other], number), ". (This is rank ", world_.rank(),
      ".) All ranks must shard the same units in the same order, with the same options and number "
      "of micro-batches, and call them alike; a rank without data calls sherd::idle_pass");
}

std::string Agreement::agree_on_order(const std::string& order, bool idle) {
  if (world_.device().is_meta()) return order;
  Record record{Kind::order, 0, static_cast<int64_t>(std::hash<std::string>()(order)), idle};
  check(/*block=*/true);
  start(record, [order] { return "calls its units for the first time\n" + order; });
  wait({});
  open_ = false;
  const auto all = records();
  bool equal = true;
  for (const auto& other : all) {
    if (other.kind != Kind::order) refuse(all);
    equal = equal && other.hash == all.front().hash;
  }
  if (equal) return order;
  const auto said = exchange(order);
  std::optional<size_t> leader;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].detail != 0) continue;
    if (!leader) leader = rank;
    if (all[rank].hash != all[*leader].hash) refuse(all);
  }
  return leader ? said[*leader] : order;
}

}  // namespace sherd
