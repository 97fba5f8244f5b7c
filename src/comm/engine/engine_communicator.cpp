// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/engine_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <numeric>

#include "comm/engine/operations.h"
#include "comm/flight/flight_line.h"
#include "comm/notices.h"
#include "comm/split_lists.h"

namespace sherd {
namespace {

class EngineCommunicator final : public Communicator, public HasNotices {
 public:
  using Ranks = std::shared_ptr<const std::vector<int64_t>>;

  EngineCommunicator(
      std::shared_ptr<Engine> engine,
      Ranks ranks,
      int64_t rank,
      int64_t id,
      Identity identity,
      std::chrono::milliseconds timeout)
      : Communicator(rank, std::ssize(*ranks), std::move(identity)),
        engine_(std::move(engine)),
        ranks_(std::move(ranks)),
        id_(id),
        timeout_(timeout) {}

  std::string backend() const override { return engine_->backend(); }

  void leave_notice(const std::string& text) noexcept override {
    try {
      engine_->leave_notice(text);
    } catch (const std::exception&) {
      // No memory for a copy of the text: the other ranks learn of it later.
    }
  }
  std::map<int64_t, std::string> notices() override { return engine_->notices(); }

 private:
  // Note [Tags]
  // A tag is the communicator's number, the kind of operation and the low bits of its count on that
  // communicator. Ranks that make different calls therefore never match each other's messages: they
  // run into the time limit, and the error names the operation and the missing ranks.
  static constexpr int kKindBits = 4;
  static constexpr int kCountBits = 5;
  static constexpr int64_t kMostIds = int64_t{1} << (31 - kKindBits - kCountBits);
  int tag(Collective kind, int64_t count) const {
    return static_cast<int>(
        (id_ << kKindBits | static_cast<int64_t>(kind)) << kCountBits |
        (count & ((1 << kCountBits) - 1)));
  }

  Members members(Collective kind) {
    // Sends and receives pair up by peer and order, not by count.
    const bool paired = kind == Collective::send || kind == Collective::receive;
    return {ranks_, rank(), tag(paired ? Collective::send : kind, paired ? 0 : count_++)};
  }

  /// `bytes`: of the larger side of its tensors.
  Work submit(Collective kind, int64_t bytes, std::shared_ptr<Operation> operation) {
    const bool paired = kind == Collective::send || kind == Collective::receive;
    operation->set_flight_entry(flight_.add(*this, *ranks_, id_, kind, bytes, !paired));
    return engine_->submit(
        paired ? Lanes::kNone : static_cast<int>(id_), std::move(operation), timeout_);
  }

  Work do_all_gather(std::span<const Transfer> transfers, OnStream) override {
    return submit(
        Collective::all_gather, bytes_of(transfers),
        make_all_gather(scope("all_gather"), members(Collective::all_gather), transfers));
  }

  Work do_reduce_scatter(
      std::span<const Transfer> transfers, Reduction reduction, OnStream) override {
    return submit(
        Collective::reduce_scatter, bytes_of(transfers),
        make_reduce_scatter(
            scope("reduce_scatter"), members(Collective::reduce_scatter), transfers, reduction));
  }

  Work do_all_reduce(std::span<const at::Tensor> tensors, Reduction reduction, OnStream) override {
    return submit(
        Collective::all_reduce, bytes_of(tensors),
        make_all_reduce(scope("all_reduce"), members(Collective::all_reduce), tensors, reduction));
  }

  Work do_broadcast(at::Tensor tensor, int64_t root, OnStream) override {
    const auto bytes = bytes_of({&tensor, 1});
    return submit(
        Collective::broadcast, bytes,
        make_broadcast(
            scope("broadcast"), members(Collective::broadcast), std::move(tensor), root));
  }

  Work do_all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::vector<int64_t> output_splits,
      std::vector<int64_t> input_splits,
      OnStream) override {
    const auto bytes = std::max(bytes_of({&output, 1}), bytes_of({&input, 1}));
    return submit(
        Collective::all_to_all, bytes,
        make_all_to_all(
            scope("all_to_all"), members(Collective::all_to_all), std::move(output),
            std::move(input), std::move(output_splits), std::move(input_splits)));
  }

  Work do_send(at::Tensor tensor, int64_t peer, OnStream) override {
    const auto bytes = bytes_of({&tensor, 1});
    return submit(
        Collective::send, bytes,
        make_send(scope("send"), members(Collective::send), std::move(tensor), peer));
  }

  Work do_receive(at::Tensor tensor, int64_t peer, OnStream) override {
    const auto bytes = bytes_of({&tensor, 1});
    return submit(
        Collective::receive, bytes,
        make_receive(scope("receive"), members(Collective::receive), std::move(tensor), peer));
  }

  Work do_barrier() override {
    return submit(
        Collective::barrier, 0, make_barrier(scope("barrier"), members(Collective::barrier)));
  }

  /// Makes all ranks agree on the child's number (the least that none of them has used) and checks
  /// that those of a group passed the same list.
  std::shared_ptr<Communicator> do_split(std::vector<int64_t> group, Identity child) override {
    const auto list = split_list_of(group);
    auto mine = at::tensor({engine_->next_communicator_number(), list.hash, list.size}, at::kLong);
    auto all = at::empty({size(), 3}, at::kLong);
    all_gather(all, mine).wait();
    const auto said = all.accessor<int64_t, 2>();
    int64_t id = 0;
    std::vector<SplitList> lists;
    for (int64_t member = 0; member < size(); ++member) {
      id = std::max(id, said[member][0]);
      lists.push_back({said[member][1], said[member][2]});
    }
    check_split_lists(scope("split"), child.name, group, lists);
    TORCH_CHECK(
        id < kMostIds, scope("split"), "all ", kMostIds, " numbers of communicators are used");
    engine_->use_communicator_number(id);
    auto world_ranks = std::make_shared<std::vector<int64_t>>();
    for (const int64_t member : group)
      world_ranks->push_back((*ranks_)[static_cast<size_t>(member)]);
    const auto place = std::find(group.begin(), group.end(), rank()) - group.begin();
    return std::make_shared<EngineCommunicator>(
        engine_, std::move(world_ranks), place, id, std::move(child), timeout_);
  }

  c10::DeviceType device_type() const override { return c10::kCPU; }

  std::shared_ptr<Engine> engine_;
  Ranks ranks_;  // world rank of each member
  int64_t id_;
  std::chrono::milliseconds timeout_;
  int64_t count_ = 0;
  FlightLine flight_;
};

}  // namespace

std::shared_ptr<Communicator> engine_communicator(
    std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout) {
  std::vector<int64_t> all(static_cast<size_t>(engine->size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  const int64_t rank = engine->rank();
  // The number 1 serves only to agree on the number of each world that the process opens.
  auto ranks = std::make_shared<const std::vector<int64_t>>(all);
  EngineCommunicator root(
      std::move(engine), std::move(ranks), rank, 1, {"start", "start", rank}, timeout);
  return root.split(std::move(all), "world");
}

}  // namespace sherd
