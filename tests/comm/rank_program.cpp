// SPDX-License-Identifier: Apache-2.0
// One rank of the runs that failures_test.py starts: rank_program MODE [PATIENCE_MS].
#include <ATen/ATen.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "comm/backends.h"
#include "sherd/comm/world.h"

using namespace std::chrono_literals;

namespace {

at::Tensor values(const sherd::World& world, int64_t count) {
  return at::ones({count}, at::TensorOptions().device(world.device()));
}

void all_reduce(const sherd::World& world, int64_t count) {
  world.communicator().all_reduce(values(world, count), sherd::Reduction::sum()).synchronize();
}

void run_in_background(const std::string& command) {
  [[maybe_unused]] const int code =
      std::system(("(" + command + ") > /dev/null 2>&1 < /dev/null &").c_str());
}

/// From here on, failures_test.py counts.
void say_time(const char* what) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::ostringstream line;
  line << what << ": " << std::fixed << now.count() << '\n';
  std::cerr << line.str();  // at once: mpirun marks each piece
}

void run(const std::string& mode, std::chrono::milliseconds patience) {
  const char* rank_variable = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank_variable == nullptr) rank_variable = std::getenv("RANK");
  const bool first = rank_variable != nullptr && std::string(rank_variable) == "1";
  if (mode == "late" && first) std::this_thread::sleep_for(30s);

  sherd::WorldOptions options;
  if (mode == "late") options.start_timeout = patience;  // else as it is: a start takes its time
  options.operation_timeout = patience;
  const char* backend = std::getenv("SHERD_TEST_BACKEND");
  if (backend != nullptr) {
    for (const auto& entry : sherd::backends()) {
      if (std::string(backend) == entry.name) options.backend = entry.backend;
    }
    if (!options.backend) throw std::invalid_argument("no backend has this name");
  }
  say_time("begun");
  const auto world = sherd::World::from_environment(options);
  say_time("up");
  auto& comm = world.communicator();
  const bool odd_one = world.rank() == 1;

  if (mode == "hello") {
    auto sum = values(world, 3);
    comm.all_reduce(sum, sherd::Reduction::sum()).synchronize();
    std::cout << "rank " << world.rank() << " of " << world.size() << " by "
              << sherd::to_text(world.launcher()) << " over " << comm.backend() << ", sum "
              << sum[0].item<float>() << std::endl;
  } else if (mode == "kill") {
    if (odd_one) {
      std::thread([] {
        std::this_thread::sleep_for(500ms);
        raise(SIGKILL);
      }).detach();
    }
    while (true) all_reduce(world, 4'000'000);
  } else if (mode == "kill_parent") {
    all_reduce(world, 10);
    if (odd_one) {
      // A program that this rank has started must not keep its connections open.
      run_in_background("sleep 30");
      raise(SIGKILL);
    }
    all_reduce(world, 10);
  } else if (mode == "exit") {
    all_reduce(world, 10);
    if (odd_one) _exit(0);
    std::this_thread::sleep_for(1s);  // hears of it while it makes no calls
    all_reduce(world, 10);
  } else if (mode == "stop") {
    all_reduce(world, 10);
    if (odd_one) {
      const auto wake = patience + 4s;
      run_in_background(
          "sleep " + std::to_string(wake.count() / 1000) + "; kill -CONT " +
          std::to_string(getpid()));
      raise(SIGSTOP);
    }
    all_reduce(world, 10);
  } else if (mode == "throw") {
    all_reduce(world, 10);
    if (odd_one) throw std::runtime_error("a mistake of this rank alone");
    all_reduce(world, 10);
  } else if (mode == "sizes") {
    const int64_t count = odd_one ? 2000 : 1000;
    comm.all_gather(values(world, count * world.size()), values(world, count)).wait();
  } else if (mode == "calls") {
    if (odd_one) comm.broadcast(values(world, 10), 0).wait();
    all_reduce(world, 10);
  } else if (mode == "left_behind") {
    auto tensor = values(world, 10);
    const auto started =
        odd_one ? comm.broadcast(tensor, 0) : comm.all_reduce(tensor, sherd::Reduction::sum());
    sherd::World::close();
  } else if (mode == "slow_end") {
    if (odd_one) std::this_thread::sleep_for(12s);
    if (odd_one) std::cout << "rank 1 is through" << std::endl;
  } else if (mode == "leave") {
    all_reduce(world, 10);
    if (odd_one) return;
    all_reduce(world, 10);
  } else if (mode == "closed") {
    all_reduce(world, 10);
    sherd::World::close();
    sherd::World::close();
    all_reduce(world, 10);
  } else if (mode == "away") {
    if (odd_one) std::this_thread::sleep_for(patience + 2s);
    all_reduce(world, 100'000);
  } else {
    throw std::invalid_argument("unknown mode " + mode);
  }
}

int report(const std::string& what) {
  // In one piece, or mpirun mixes the ranks' lines.
  const auto line = "caught: " + what + "\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
  std::this_thread::sleep_for(1s);  // mpirun ends the others when the first is gone: let them speak
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    run(mode, std::chrono::milliseconds(argc > 2 ? std::stoi(argv[2]) : 60'000));
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return report(error.what());
  }
  return 0;
}
