// SPDX-License-Identifier: Apache-2.0
#include "sherd/comm/communicator.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>

#include "comm/overlap.h"
#include "kernels/join.h"

namespace sherd {
namespace {

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

std::string Communicator::scope(const char* operation) const {
  return c10::str(
      "[comm.", backend(), "] rank ", world_rank(), ", ", operation, " on '", name(), "' (", rank_,
      " of ", size_, "): ");
}

void Communicator::check_tensor(const char* operation, const at::Tensor& tensor) const {
  TORCH_CHECK_VALUE(tensor.defined(), scope(operation), "a tensor is undefined");
  TORCH_CHECK_VALUE(
      tensor.is_contiguous(), scope(operation), "a tensor of shape ", tensor.sizes(),
      " is not contiguous; pass its flat buffer");
  TORCH_CHECK_VALUE(
      tensor.device().type() == device_type(), scope(operation), "a tensor is on ", tensor.device(),
      "; this communicator moves ", device_type(), " tensors");
}

void Communicator::check_peer(const char* operation, int64_t peer) const {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size_, scope(operation), "there is no rank ", peer);
}

void Communicator::check_transfer(
    const char* operation, const at::Tensor& full, const at::Tensor& part) const {
  check_tensor(operation, full);
  check_tensor(operation, part);
  TORCH_CHECK_VALUE(
      full.scalar_type() == part.scalar_type(), scope(operation),
      "output and input differ in dtype: ", full.scalar_type(), " and ", part.scalar_type());
  TORCH_CHECK_VALUE(
      full.numel() == size_ * part.numel(), scope(operation), "the full side has ", full.numel(),
      " elements; ", size_, " parts of ", part.numel(), " are ", size_ * part.numel());
  const char* own = begin_of(full) + static_cast<int64_t>(part.nbytes()) * rank_;
  TORCH_CHECK_VALUE(
      !overlap(full, part) || begin_of(part) == own, scope(operation),
      "output and input overlap; only this rank's own part may be shared, exactly");
}

void Communicator::check_reduction(
    const char* operation, const at::Tensor& tensor, Reduction reduction) const {
  TORCH_CHECK_VALUE(
      can_join(tensor.scalar_type(), reduction), scope(operation), tensor.scalar_type(),
      " can't be reduced like that: integers have sum and max; floating point of 16 bits or more ",
      "has all");
}

Work Communicator::all_gather(std::span<const Transfer> transfers, OnStream stream) {
  for (const auto& [output, input] : transfers) check_transfer("all_gather", output, input);
  return do_all_gather(transfers, stream);
}

Work Communicator::all_gather(at::Tensor output, at::Tensor input, OnStream stream) {
  const Transfer one{std::move(output), std::move(input)};
  return all_gather({&one, 1}, stream);
}

Work Communicator::reduce_scatter(
    std::span<const Transfer> transfers, Reduction reduction, OnStream stream) {
  for (const auto& [output, input] : transfers) {
    check_transfer("reduce_scatter", input, output);
    check_reduction("reduce_scatter", input, reduction);
  }
  return do_reduce_scatter(transfers, reduction, stream);
}

Work Communicator::reduce_scatter(
    at::Tensor output, at::Tensor input, Reduction reduction, OnStream stream) {
  const Transfer one{std::move(output), std::move(input)};
  return reduce_scatter({&one, 1}, reduction, stream);
}

Work Communicator::all_reduce(
    std::span<const at::Tensor> tensors, Reduction reduction, OnStream stream) {
  for (const auto& tensor : tensors) {
    check_tensor("all_reduce", tensor);
    check_reduction("all_reduce", tensor, reduction);
  }
  return do_all_reduce(tensors, reduction, stream);
}

Work Communicator::all_reduce(at::Tensor tensor, Reduction reduction, OnStream stream) {
  return all_reduce({&tensor, 1}, reduction, stream);
}

Work Communicator::broadcast(at::Tensor tensor, int64_t root, OnStream stream) {
  check_tensor("broadcast", tensor);
  check_peer("broadcast", root);
  return do_broadcast(std::move(tensor), root, stream);
}

Work Communicator::all_to_all(
    at::Tensor output,
    at::Tensor input,
    std::vector<int64_t> output_splits,
    std::vector<int64_t> input_splits,
    OnStream stream) {
  const char* operation = "all_to_all";
  check_tensor(operation, output);
  check_tensor(operation, input);
  TORCH_CHECK_VALUE(
      output.scalar_type() == input.scalar_type(), scope(operation),
      "output and input differ in dtype: ", output.scalar_type(), " and ", input.scalar_type());
  TORCH_CHECK_VALUE(!overlap(output, input), scope(operation), "output and input overlap");
  const auto complete = [&](const char* side, const at::Tensor& tensor,
                            std::vector<int64_t>& splits) {
    if (splits.empty()) {
      TORCH_CHECK_VALUE(
          tensor.numel() % size_ == 0, scope(operation), "the ", side, " has ", tensor.numel(),
          " elements, which ", size_, " ranks don't divide; pass its splits");
      splits.assign(static_cast<size_t>(size_), tensor.numel() / size_);
    }
    const bool fits = std::ssize(splits) == size_ && sum(splits) == tensor.numel() &&
                      std::all_of(splits.begin(), splits.end(), [](int64_t n) { return n >= 0; });
    TORCH_CHECK_VALUE(
        fits, scope(operation), "the ", side, "'s splits [", c10::Join(", ", splits), "] are not ",
        size_, " counts that add up to its ", tensor.numel(), " elements");
  };
  complete("output", output, output_splits);
  complete("input", input, input_splits);
  const auto own = static_cast<size_t>(rank_);
  TORCH_CHECK_VALUE(
      output_splits[own] == input_splits[own], scope(operation), "this rank keeps ",
      input_splits[own], " elements for itself but expects ", output_splits[own]);
  return do_all_to_all(
      std::move(output), std::move(input), std::move(output_splits), std::move(input_splits),
      stream);
}

Work Communicator::send(at::Tensor tensor, int64_t peer, OnStream stream) {
  check_tensor("send", tensor);
  check_peer("send", peer);
  TORCH_CHECK_VALUE(peer != rank_, scope("send"), "a rank can't send to itself");
  return do_send(std::move(tensor), peer, stream);
}

Work Communicator::receive(at::Tensor tensor, int64_t peer, OnStream stream) {
  check_tensor("receive", tensor);
  check_peer("receive", peer);
  TORCH_CHECK_VALUE(peer != rank_, scope("receive"), "a rank can't receive from itself");
  return do_receive(std::move(tensor), peer, stream);
}

Work Communicator::barrier() {
  return do_barrier();
}

std::shared_ptr<Communicator> Communicator::split(
    std::vector<int64_t> ranks, const std::string& name, const std::string& axis) {
  auto sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  const bool inside = !sorted.empty() && sorted.front() >= 0 && sorted.back() < size_;
  TORCH_CHECK_VALUE(
      distinct && inside, scope("split"), "[", c10::Join(", ", ranks),
      "] are not distinct ranks of this communicator");
  TORCH_CHECK_VALUE(
      std::binary_search(sorted.begin(), sorted.end(), rank_), scope("split"),
      "this rank is not among [", c10::Join(", ", ranks), "]; pass the group that it belongs to");
  return do_split(std::move(ranks), {name, axis.empty() ? name : axis, world_rank()});
}

}  // namespace sherd
