// SPDX-License-Identifier: Apache-2.0
#include "data/across_ranks.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace sherd {
namespace {

void broadcast_bytes(const World& world, std::string& text) {
  auto bytes = at::empty({std::ssize(text)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const auto there = bytes.to(world.device());
  world.communicator().broadcast(there, 0).synchronize();
  const auto here = there.cpu();
  std::memcpy(text.data(), here.const_data_ptr(), text.size());
}

}  // namespace

std::vector<int64_t> largest_of_ranks(const World& world, const std::vector<int64_t>& mine) {
  const auto value = at::tensor(mine, at::kLong).to(world.device());
  auto all = at::empty({world.size(), std::ssize(mine)}, value.options());
  world.communicator().all_gather(all.view({-1}), value).synchronize();
  const auto largest = all.amax(0).cpu();
  const auto* numbers = largest.const_data_ptr<int64_t>();
  return {numbers, numbers + mine.size()};
}

double sum_of_ranks(const World& world, double mine) {
  auto value = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world.device()));
  value.fill_(mine);
  world.communicator().all_reduce(value, Reduction::sum()).synchronize();
  // An emulated sum is this rank's part.
  const double others =
      world.launcher() == Launcher::emulated ? static_cast<double>(world.size()) : 1;
  return value.item<double>() * others;
}

std::vector<int64_t> numbers_of_first_rank(const World& world, const std::vector<int64_t>& mine) {
  auto value = at::tensor(mine, at::kLong).to(world.device());
  world.communicator().broadcast(value, 0).synchronize();
  const auto here = value.cpu();
  const auto* numbers = here.const_data_ptr<int64_t>();
  return {numbers, numbers + mine.size()};
}

std::string text_of_first_rank(const World& world, const std::function<std::string()>& function) {
  std::string text;
  bool failed = false;
  if (world.rank() == 0) {
    try {
      text = function();
    } catch (const c10::Error& error) {
      failed = true;
      text = error.what_without_backtrace();
    } catch (const std::exception& error) {
      failed = true;
      text = error.what();
    }
  }
  const auto about = numbers_of_first_rank(world, {failed, std::ssize(text)});
  text.resize(static_cast<size_t>(about[1]));
  if (!text.empty()) broadcast_bytes(world, text);
  TORCH_CHECK_VALUE(about[0] == 0, text);
  return text;
}

}  // namespace sherd
