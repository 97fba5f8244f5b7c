// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <nccl.h>

#include <exception>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "comm/flight/flight_line.h"
#include "comm/host_exchange.h"
#include "comm/nccl/nccl_arguments.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/symmetric.h"
#include "comm/split_lists.h"
#include "comm/streams.h"

namespace sherd {
namespace {

class NcclCommunicator final : public Communicator, public HasWindows, public HasHostExchange {
 public:
  NcclCommunicator(
      c10::intrusive_ptr<NcclGroup> group,
      c10::intrusive_ptr<c10d::Store> store,
      c10::Device device,
      WorldOptions options,
      Identity identity,
      GroupPeers peers,
      bool borrowed = false,
      int64_t number = 0)
      : Communicator(group->getRank(), group->getSize(), std::move(identity)),
        group_(std::move(group)),
        store_(std::move(store)),
        device_(device),
        options_(std::move(options)),
        peers_(std::move(peers)),
        borrowed_(borrowed),
        number_(number),
        stream_(communication_stream(device, options_.high_priority_stream)),
        token_(at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device))) {}

  ~NcclCommunicator() override {
    // The peers must learn that this rank leaves before they see its connections break.
    if (peers_.are_world && std::uncaught_exceptions() == 0) finish_and_announce_departure();
    // Before the watch stops, which limits how long this blocks. An abort ends windows too, but a
    // borrowed group is not aborted.
    if (borrowed_ || std::uncaught_exceptions() == 0) windows_->close();
    watch_->stop();
    if (borrowed_ || abortable_->aborted()) return;
    // A clean end waits for what is under way; after an exception, peers may never join
    // it.
    if (std::uncaught_exceptions() > 0) {
      abortable_->abort();
      return;
    }
    group_->setTimeout(kClosing);
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      // A peer is gone: there is nothing left to close.
    }
  }

  std::string backend() const override { return "nccl"; }
  const std::shared_ptr<Windows>& windows() const override { return windows_; }
  std::string decide_on_host(const std::string& text, const Decide& decide) override {
    return decide_over_store(
        *store_, c10::str("exchange ", exchanges_++), rank(), size(), text, decide,
        options_.operation_timeout);
  }

 private:
  void finish_and_announce_departure() noexcept {
    try {
      watch_->wait_until_idle(kClosing);
      peers_.departures->leave();
    } catch (const std::exception&) {
      // A device that reports errors: the peers will see the connections break.
    }
  }

  /// Calls `issue` with the operation's stream as the current one; NCCL then runs on that stream
  /// itself.
  template <class Issue>
  Work run(Collective kind, int64_t bytes, OnStream given, Issue issue) {
    const char* operation = to_text(kind);
    watch_->check();
    const bool paired = kind == Collective::send || kind == Collective::receive;
    const auto flight_entry = flight_.add(*this, peers_.ranks, number_, kind, bytes, !paired);
    const c10::cuda::CUDAGuard device_guard(device_);
    const StreamScope scope_of_stream(given, stream_);
    try {
      issue();
    } catch (const std::exception& error) {
      TORCH_CHECK_WITH(DistBackendError, false, scope(operation), error.what());
    }
    return Work(stream_work(
        scope_of_stream.stream(), scope(operation), watch_, options_.operation_timeout,
        flight_entry));
  }

  Work do_all_gather(std::span<const Transfer> transfers, OnStream stream) override {
    return run(Collective::all_gather, bytes_of(transfers), stream, [&] {
      c10d::AllgatherOptions options;
      options.asyncOp = false;
      auto [outputs, inputs] = split_sides(transfers, /*make_movable=*/true);
      if (outputs.size() == 1) {
        group_->_allgather_base(outputs[0], inputs[0], options);
      } else if (!outputs.empty()) {
        group_->allgather_into_tensor_coalesced(outputs, inputs, options);
      }
    });
  }

  Work do_reduce_scatter(
      std::span<const Transfer> transfers, Reduction reduction, OnStream stream) override {
    for (const auto& transfer : transfers) check_dtype("reduce_scatter", transfer.input);
    return run(Collective::reduce_scatter, bytes_of(transfers), stream, [&] {
      c10d::ReduceScatterOptions options;
      options.asyncOp = false;
      options.reduceOp = reduce_op(reduction);
      auto [outputs, inputs] = split_sides(transfers, /*make_movable=*/false);
      if (outputs.size() == 1) {
        group_->_reduce_scatter_base(outputs[0], inputs[0], options);
      } else if (!outputs.empty()) {
        group_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
      }
      scale_sums(outputs, reduction);
    });
  }

  Work do_all_reduce(
      std::span<const at::Tensor> tensors, Reduction reduction, OnStream stream) override {
    for (const auto& tensor : tensors) check_dtype("all_reduce", tensor);
    return run(Collective::all_reduce, bytes_of(tensors), stream, [&] {
      std::vector<at::Tensor> all;
      for (const auto& tensor : tensors) {
        if (tensor.numel() > 0) all.push_back(tensor);
      }
      c10d::AllreduceCoalescedOptions options;
      options.asyncOp = false;
      options.reduceOp = reduce_op(reduction);
      if (all.size() == 1) {
        group_->allreduce(all, options);
      } else if (!all.empty()) {
        group_->allreduce_coalesced(all, options);
      }
      scale_sums(all, reduction);
    });
  }

  Work do_broadcast(at::Tensor tensor, int64_t root, OnStream stream) override {
    return run(Collective::broadcast, bytes_of({&tensor, 1}), stream, [&] {
      if (tensor.numel() == 0) return;
      c10d::BroadcastOptions options;
      options.asyncOp = false;
      options.rootRank = root;
      std::vector<at::Tensor> one{movable(tensor)};
      group_->broadcast(one, options);
    });
  }

  Work do_all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::vector<int64_t> output_splits,
      std::vector<int64_t> input_splits,
      OnStream stream) override {
    return run(Collective::all_to_all, bytes_of({&output, 1}), stream, [&] {
      auto to = movable(output);
      auto from = movable(input);
      const int64_t width = output.numel() > 0  ? to.numel() / output.numel()
                            : input.numel() > 0 ? from.numel() / input.numel()
                                                : 1;
      for (auto& split : output_splits) split *= width;
      for (auto& split : input_splits) split *= width;
      c10d::AllToAllOptions options;
      options.asyncOp = false;
      group_->alltoall_base(to, from, output_splits, input_splits, options);
    });
  }

  // c10d runs these on a stream of its own, which waits for the current one; waiting for the work
  // makes ours wait for it in turn, as if it had run here.
  Work do_send(at::Tensor tensor, int64_t peer, OnStream stream) override {
    return run(Collective::send, bytes_of({&tensor, 1}), stream, [&] {
      std::vector<at::Tensor> one{movable(tensor)};
      group_->send(one, static_cast<int>(peer), 0)->wait();
    });
  }

  Work do_receive(at::Tensor tensor, int64_t peer, OnStream stream) override {
    return run(Collective::receive, bytes_of({&tensor, 1}), stream, [&] {
      std::vector<at::Tensor> one{movable(tensor)};
      group_->recv(one, static_cast<int>(peer), 0)->wait();
    });
  }

  Work do_barrier() override {
    return run(Collective::barrier, 0, {}, [&] {
      std::vector<at::Tensor> one{token_};
      c10d::AllreduceOptions options;
      options.asyncOp = false;
      group_->allreduce(one, options);
    });
  }

  std::shared_ptr<Communicator> do_split(std::vector<int64_t> ranks, Identity child) override {
    check_lists(ranks, child.name);
    // Every rank is in exactly one of the lists, so all call ncclCommSplit together, each with the
    // colour of its list.
    const std::vector<int> members(ranks.begin(), ranks.end());
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        c10::str(child.name, "/", splits_++, "/", ranks.front()), store_);
    auto made = group_->split(store, members, group_options(options_, child.name));
    auto group = c10::dynamic_intrusive_pointer_cast<NcclGroup>(made);
    TORCH_CHECK(group.defined(), scope("split"), "c10d returned no group for '", child.name, "'");
    GroupPeers peers{.departures = peers_.departures};
    for (const int64_t member : ranks) {
      peers.ranks.push_back(peers_.ranks[static_cast<size_t>(member)]);
    }
    return std::make_shared<NcclCommunicator>(
        std::move(group), store, device_, options_, std::move(child), std::move(peers),
        /*borrowed=*/false, /*number=*/number_ * 101 + splits_);
  }

  /// Throws on all ranks if ranks of one group passed different lists: NCCL would wait for ever, in
  /// the other groups as well.
  void check_lists(const std::vector<int64_t>& ranks, const std::string& name) {
    const auto list = split_list_of(ranks);
    const auto on_device = at::TensorOptions().dtype(at::kLong).device(device_);
    auto mine = at::empty({2}, on_device);
    mine[0].fill_(list.hash);
    mine[1].fill_(list.size);
    auto all = at::empty({2 * size()}, on_device);
    all_gather(all, mine).synchronize();
    const auto numbers = all.cpu();
    const auto* passed = numbers.const_data_ptr<int64_t>();  // of each rank: hash and size
    std::vector<SplitList> lists;
    for (int64_t rank = 0; rank < size(); ++rank) {
      lists.push_back({passed[2 * rank], passed[2 * rank + 1]});
    }
    check_split_lists(scope("split"), name, ranks, lists);
  }

  c10::DeviceType device_type() const override { return c10::kCUDA; }

  void check_dtype(const char* operation, const at::Tensor& tensor) const {
    TORCH_CHECK_VALUE(
        nccl_knows(tensor.scalar_type()), scope(operation), "NCCL can't reduce ",
        tensor.scalar_type(), ": of the integers it knows those of 8, 32 and 64 bits");
  }

  c10::intrusive_ptr<NcclGroup> group_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::Device device_;
  WorldOptions options_;
  GroupPeers peers_;
  bool borrowed_;   // the caller owns the group and closes it
  int64_t number_;  // for the flight recorder: equal on its ranks
  FlightLine flight_;
  std::shared_ptr<AbortableGroup> abortable_ =
      std::make_shared<AbortableGroup>(group_, device_, peers_);
  std::shared_ptr<StreamWatch> watch_ = std::make_shared<StreamWatch>(abortable_);
  std::shared_ptr<Windows> windows_ =
      std::make_shared<Windows>(device_, [group = group_, abortable = abortable_] {
        return abortable->aborted() ? nullptr : reinterpret_cast<ncclComm_t>(group->getCommPtr());
      });
  c10::Stream stream_;
  at::Tensor token_;  // a barrier is an all-reduce of it
  int64_t splits_ = 0;
  int64_t exchanges_ = 0;
};

std::vector<int64_t> ranks_below(int64_t size) {
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return ranks;
}

}  // namespace

std::shared_ptr<Communicator> nccl_communicator(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    c10::Device device,
    const WorldOptions& options,
    const std::shared_ptr<Departures>& departures) {
  disable_c10d_watchdog();
  const c10::cuda::CUDAGuard guard(device);
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("sherd/nccl", store);
  auto group = c10::make_intrusive<NcclGroup>(
      prefixed, static_cast<int>(rank), static_cast<int>(size), group_options(options, "world"));
  group->setBoundDeviceId(device);
  group->eagerConnectSingleDevice(device);  // splitting needs a live communicator
  return std::make_shared<NcclCommunicator>(
      std::move(group), prefixed, device, options, Communicator::Identity{"world", "world", rank},
      GroupPeers{
          .departures = departures,
          .ranks = ranks_below(size),
          .are_world = departures != nullptr});
}

std::shared_ptr<Communicator> nccl_communicator(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    c10::Device device,
    const WorldOptions& options) {
  auto nccl = c10::dynamic_intrusive_pointer_cast<NcclGroup>(group->getBackend(c10::kCUDA));
  TORCH_CHECK_VALUE(nccl.defined(), "[comm.nccl] the process group's CUDA backend is not nccl");
  const c10::cuda::CUDAGuard guard(device);
  Communicator::Identity identity{"world", "world", nccl->getRank()};
  nccl->eagerConnectSingleDevice(device);
  const int64_t size = nccl->getSize();
  return std::make_shared<NcclCommunicator>(
      std::move(nccl), group->getStore(), device, options, std::move(identity),
      GroupPeers{.ranks = ranks_below(size)}, /*borrowed=*/true);
}

}  // namespace sherd
