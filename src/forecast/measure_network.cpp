// SPDX-License-Identifier: Apache-2.0
#include "forecast/measure_network.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "forecast/device_constants.h"
#include "sherd/comm/mesh.h"

namespace sherd {
namespace {

constexpr int kRepetitions = 7;
constexpr int kWarmUps = 2;
constexpr double kLongEnough = 0.25;  // seconds of one operation
constexpr double kFastest = 1e15;     // bytes per second: what a network file allows at most

std::vector<int64_t> sizes_for(const c10::Device& device) {
  std::vector<int64_t> sizes{kMiB / 16, kMiB, 16 * kMiB, 64 * kMiB};
  // A unit of a large model; ranks on CPUs would take seconds for it.
  if (device.is_cuda()) sizes.push_back(256 * kMiB);
  return sizes;
}

/// Small operations are timed in a row, as they come in a step: one alone would be lost in the
/// noise of the clock and of waking up.
int row_of(int64_t bytes) {
  return bytes <= kMiB ? 16 : 2;
}

/// Seconds of one call on this rank, each time.
std::vector<double> times_of(
    Communicator& communicator, int row, const std::function<Work()>& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> result;
  for (int i = 0; i < kWarmUps + kRepetitions; ++i) {
    // All ranks begin together, or the fast ones would measure how late the others are.
    communicator.barrier().synchronize();
    const auto begin = Clock::now();
    Work last;
    for (int k = 0; k < row; ++k) {
      last = call();
      last.wait();  // the next one writes to the same buffer
    }
    last.synchronize();
    const std::chrono::duration<double> taken = Clock::now() - begin;
    if (i >= kWarmUps) result.push_back(taken.count() / row);
  }
  return result;
}

/// An operation is over when it is on every rank. Makes the ranks agree, too.
double median_of_slowest(const World& world, std::vector<double> mine) {
  const auto here = at::from_blob(mine.data(), {std::ssize(mine)}, at::kDouble);
  const auto all = here.to(world.device(), /*non_blocking=*/false, /*copy=*/true);
  world.communicator().all_reduce(all, Reduction::max()).synchronize();
  const auto slowest = all.cpu();
  std::copy_n(slowest.const_data_ptr<double>(), mine.size(), mine.begin());
  const auto middle = mine.begin() + std::ssize(mine) / 2;
  std::nth_element(mine.begin(), middle, mine.end());
  return *middle;
}

/// Along one axis of the world; all its lines at once.
std::vector<TimedCollective> time_collectives(const World& world, Communicator& communicator) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(world.device());
  std::vector<TimedCollective> result;
  for (const int64_t size : sizes_for(world.device())) {
    const int64_t elements = std::max<int64_t>(1, size / 4 / communicator.size());
    const auto whole = at::zeros({elements * communicator.size()}, options);
    // This rank's own part of the whole: Sherd's gathers and reductions are in place.
    const auto part = whole.narrow(0, elements * communicator.rank(), elements);
    const auto bytes = static_cast<int64_t>(whole.nbytes());
    const auto time = [&](Collective collective, const std::function<Work()>& call) {
      const auto mine = times_of(communicator, row_of(bytes), call);
      result.push_back({collective, bytes, median_of_slowest(world, mine)});
    };
    time(Collective::all_gather, [&] { return communicator.all_gather(whole, part); });
    time(Collective::reduce_scatter, [&] {
      return communicator.reduce_scatter(part, whole, Reduction::sum());
    });
    if (result.back().seconds > kLongEnough) break;  // larger ones would take minutes
  }
  return result;
}

/// Returns how many ranks each machine has. An emulated world is one machine.
int64_t ranks_of_a_machine(const World& world) {
  if (world.launcher() == Launcher::emulated) return world.size();
  const auto local = static_cast<double>(world.local_size());
  auto bounds = at::zeros({2}, at::kDouble);
  bounds[0] = local;
  bounds[1] = -local;
  bounds = bounds.to(world.device());
  world.communicator().all_reduce(bounds, Reduction::max()).synchronize();
  TORCH_CHECK_VALUE(
      bounds[0].item<double>() == -bounds[1].item<double>(), "[network] a machine has ",
      -bounds[1].item<double>(), " ranks, another one ", bounds[0].item<double>(),
      ": start as many on each");
  return world.local_size();
}

/// Three digits: more were not measured.
double rounded(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return std::strtod(text.data(), nullptr);
}

}  // namespace

Link fit_link(const std::vector<TimedCollective>& timed, int64_t ranks) {
  std::map<int64_t, std::pair<double, int>> by_bytes;  // the sum of the seconds, and their count
  for (const auto& [collective, bytes, seconds] : timed) {
    TORCH_CHECK_VALUE(
        seconds > 0, "[network] ", to_text(collective), " of ", bytes, " bytes took ", seconds,
        " s: a time must be above 0");
    auto& [sum, count] = by_bytes[wire_bytes(collective, bytes, ranks)];
    sum += seconds;
    ++count;
  }
  // latency * a + (1 / bandwidth) * b = 1 for each size, with a = 1 / time and b = wire / time.
  double aa = 0;
  double ab = 0;
  double bb = 0;
  double a1 = 0;
  double b1 = 0;
  for (const auto& [wire, times] : by_bytes) {
    const double a = times.second / times.first;
    const double b = static_cast<double>(wire) * a;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a1 += a;
    b1 += b;
  }
  const double determinant = aa * bb - ab * ab;
  double latency = determinant > 0 ? (a1 * bb - b1 * ab) / determinant : 0;
  double per_byte = determinant > 0 ? (b1 * aa - a1 * ab) / determinant : 0;
  // Neither can be negative; then the other explains all.
  if (latency <= 0) {
    latency = 0;
    per_byte = bb > 0 ? b1 / bb : 0;
  } else if (per_byte <= 0) {
    latency = a1 / aa;
    per_byte = 0;
  }
  return {latency, per_byte * kFastest > 1 ? 1 / per_byte : kFastest};
}

NetworkFile measure_network(const World& world, std::vector<TimedLink>* timed) {
  TORCH_CHECK_VALUE(
      world.size() > 1,
      "[network] a world of one rank has no network: start several ranks, with --ranks or a "
      "launcher");
  const int64_t node = ranks_of_a_machine(world);
  const int64_t nodes = world.size() / node;
  const auto backend = world.communicator().backend();
  NetworkFile result;
  result.name = "measured: " + std::to_string(world.size()) + " ranks over " + backend;
  // The thread that moves the bytes between CPU ranks takes the cores that compute.
  result.overlaps = world.device().is_cuda() || backend == "emulated";
  const auto measure = [&](const char* name, Communicator& communicator) {
    const auto measured = time_collectives(world, communicator);
    const auto link = fit_link(measured, communicator.size());
    if (timed) timed->push_back({name, communicator.size(), link, measured});
    return Link{rounded(link.latency), rounded(link.bandwidth)};
  };
  if (nodes == 1) {
    result.inside = measure("inside", world.communicator());
    return result;
  }
  const Mesh mesh(world, {{"node", nodes}, {"local", node}});
  result.name += " on " + std::to_string(nodes) + " machines";
  result.node = node;
  if (node > 1) result.inside = measure("inside", mesh.communicator("local"));
  result.between = measure("between", mesh.communicator("node"));
  return result;
}

}  // namespace sherd
