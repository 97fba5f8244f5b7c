// SPDX-License-Identifier: Apache-2.0
// The backends for CPU: mpi beside MPI's own collectives, in one run,
//   mpirun -n 4 --oversubscribe --bind-to none build/release/bin/comm_bench
// and tcp:
//   tests/ranks/tcp_ranks.py 4 build/release/bin/comm_bench
// Every rank runs the same number of iterations; rank 0 reports the slowest rank's time.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "sherd/comm/world.h"

namespace {

using sherd::Reduction;

std::optional<sherd::World> the_world;
sherd::Communicator& comm() {
  return the_world->communicator();
}
bool over_mpi() {
  return comm().backend() == "mpi";
}

constexpr int64_t kLarge = (64 << 20) / 4;  // elements of the full buffer: 64 MiB
constexpr int64_t kSmall = (4 << 10) / 4;   // 4 KiB

/// Times `call` on all ranks at once and books the slowest.
void measure(benchmark::State& state, int64_t bytes, const std::function<void()>& call) {
  auto& beside = the_world->communicator("measure");
  auto slowest = at::zeros({1}, at::kDouble);
  for (int i = 0; i < 2; ++i) call();
  for (auto _ : state) {
    beside.barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    call();
    slowest[0] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    beside.all_reduce(slowest, Reduction::max()).wait();
    state.SetIterationTime(slowest.item<double>());
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

/// As in a step: many in a row, waited for one by one.
void measure_chain(benchmark::State& state, const std::function<void()>& call) {
  constexpr int kChain = 200;
  measure(state, 0, [&] {
    for (int i = 0; i < kChain; ++i) call();
  });
  state.counters["us_each"] = benchmark::Counter(
      kChain * 1e-6, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void sherd_all_gather(benchmark::State& state, at::ScalarType dtype, int64_t full) {
  auto output = at::zeros({full}, dtype);
  auto input = at::ones({full / comm().size()}, dtype);
  measure(state, full * output.element_size(), [&] { comm().all_gather(output, input).wait(); });
}

void sherd_all_gather_in_place(benchmark::State& state) {
  auto output = at::zeros({kLarge});
  const int64_t part = kLarge / comm().size();
  auto own = output.narrow(0, comm().rank() * part, part);
  measure(state, kLarge * 4, [&] { comm().all_gather(output, own).wait(); });
}

void sherd_reduce_scatter(benchmark::State& state, at::ScalarType dtype, int64_t full) {
  auto output = at::zeros({full / comm().size()}, dtype);
  auto input = at::ones({full}, dtype);
  measure(state, full * output.element_size(), [&] {
    comm().reduce_scatter(output, input, Reduction::sum()).wait();
  });
}

void mpi_all_gather(benchmark::State& state) {
  auto output = at::zeros({kLarge});
  auto input = at::ones({kLarge / comm().size()});
  const auto count = static_cast<int>(input.numel());
  measure(state, kLarge * 4, [&] {
    MPI_Allgather(
        input.data_ptr(), count, MPI_FLOAT, output.data_ptr(), count, MPI_FLOAT, MPI_COMM_WORLD);
  });
}

void mpi_reduce_scatter_block(benchmark::State& state) {
  auto output = at::zeros({kLarge / comm().size()});
  auto input = at::ones({kLarge});
  const auto count = static_cast<int>(output.numel());
  measure(state, kLarge * 4, [&] {
    MPI_Reduce_scatter_block(
        input.data_ptr(), output.data_ptr(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
}

void sherd_small(benchmark::State& state, int kind) {
  const int64_t size = comm().size();
  auto full = at::ones({kSmall / size * size});
  auto part = at::ones({kSmall / size});
  measure_chain(state, [&] {
    if (kind == 0) comm().all_gather(full, part).wait();
    if (kind == 1) comm().reduce_scatter(part, full, Reduction::sum()).wait();
    if (kind == 2) comm().all_reduce(full, Reduction::mean()).wait();
  });
}

void register_all() {
  const auto slow = [](benchmark::internal::Benchmark* one) {
    one->Iterations(20)->Repetitions(3)->UseManualTime()->Unit(benchmark::kMillisecond);
  };
  using benchmark::RegisterBenchmark;
  if (over_mpi()) {
    slow(RegisterBenchmark("64MiB/reduce_scatter/mpi", mpi_reduce_scatter_block));
    slow(RegisterBenchmark("64MiB/all_gather/mpi", mpi_all_gather));
  }
  slow(RegisterBenchmark("64MiB/reduce_scatter/sherd", sherd_reduce_scatter, at::kFloat, kLarge));
  slow(RegisterBenchmark(
      "64MiB/reduce_scatter/sherd_bf16", sherd_reduce_scatter, at::kBFloat16, 2 * kLarge));
  slow(RegisterBenchmark("64MiB/all_gather/sherd", sherd_all_gather, at::kFloat, kLarge));
  slow(RegisterBenchmark("64MiB/all_gather/sherd_in_place", sherd_all_gather_in_place));
  slow(RegisterBenchmark("4KiB/all_gather/sherd", sherd_small, 0));
  slow(RegisterBenchmark("4KiB/reduce_scatter/sherd", sherd_small, 1));
  slow(RegisterBenchmark("4KiB/all_reduce/sherd", sherd_small, 2));
}

/// Ranks other than 0 keep silent.
class NoReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  the_world = sherd::World::from_environment({.device = c10::kCPU});
  register_all();
  NoReporter none;
  if (the_world->rank() == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    benchmark::RunSpecifiedBenchmarks(&none);
  }
  the_world.reset();
  return 0;
}
