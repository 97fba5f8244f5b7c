// SPDX-License-Identifier: Apache-2.0
// One rank of the runs that one_rank_fails_test.py starts: failing_program MODE [PATIENCE_MS
// [EXIT_CODE]]. All ranks train alike, until in the third step rank 1 does something that the
// others don't. EXIT_CODE is that of a rank which has caught an error.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <new>
#include <optional>
#include <thread>

#include "shard/failure_fixture.h"
#include "sherd/shard/diagnostics.h"

using namespace std::chrono_literals;

namespace sherd::testing {
namespace {

const World* world_in_use = nullptr;
std::chrono::steady_clock::time_point went_wrong;
int exit_code_of_error = 1;

/// The first line of what a rank caught, and how long after rank 1 went its own way.
void print(const char* event, const std::string& what) {
  const std::chrono::duration<double> after = std::chrono::steady_clock::now() - went_wrong;
  // In one piece, or mpirun mixes the ranks' lines.
  const auto line =
      c10::str(event, " after ", after.count(), " s: ", what.substr(0, what.find('\n')), "\n");
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

struct Training {
  FaultyModel model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  at::Tensor forward() { return model(torch::ones({4, 7}), torch::zeros({4, 3})); }
  /// `idle`: this rank has no data in it.
  void step(bool idle = false) {
    if (idle) {
      idle_pass(model);
    } else {
      forward().backward();
    }
    sherd::step(model, *optimizer);
  }
};

/// Blocks of the modes in which all ranks catch their errors: more than are gathered ahead.
constexpr int64_t kManyBlocks = 12;

Training make_training(int64_t blocks = 3) {
  torch::manual_seed(5);
  FaultyModel model(FaultyModelImpl::Recompute::nowhere, blocks);
  const UnitOptions options{.mesh = Mesh(test_world(), {{"dp", test_world().size()}})};
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  return {model, make_optimizer(Optimizer::sgd, parameters(model))};
}

at::Tensor throw_logic_error(const at::Tensor&) {
  throw std::logic_error("a mistake of this rank alone");
}

/// What rank 1 does before it goes on with the others.
void misbehave(const std::string& mode, Training& training) {
  auto& block = training.model->blocks[1];
  if (mode == "forward" || mode == "uncaught") {
    block->before = throw_logic_error;
  } else if (mode == "backward") {
    block->before = in_backward;
    InBackward::action = [] { throw std::bad_alloc(); };
  } else if (mode == "goes_on") {
    block->before = throw_logic_error;
    try {
      training.step();
    } catch (const std::logic_error&) {
      block->before = nullptr;
    }
  } else if (mode == "calls_again" || mode == "calls_again_at_once") {
    training.model->blocks.push_back(training.model->blocks[0]);
  } else if (mode == "validates") {
    const torch::NoGradGuard no_grad;
    training.forward();
  } else if (mode == "forwards_twice") {
    training.forward();
  } else if (mode == "micro_batches") {
    micro_batches(training.model, 2);
  } else if (mode == "idles_with_frozen_parameters") {
    training.model->blocks[1]->parameters().front().set_requires_grad(false);
    try {
      idle_pass(training.model);
    } catch (const c10::Error& error) {
      print("thrown", error.what_without_backtrace());
      std::this_thread::sleep_for(3s);  // the others must not learn of it by this rank's end
    }
  } else if (mode != "nothing" && mode != "reports_late") {
    throw std::invalid_argument("unknown mode " + mode);
  }
}

/// The block in which rank 1 fails, in the modes in which all ranks catch their errors; with
/// `beside_idle`, rank 2 has no data in that step.
struct Fault {
  size_t block;
  bool in_backward;
  bool beside_idle = false;
};
const std::map<std::string, Fault> kCaught{
    {"caught_in_an_early_forward", {1, false}},
    {"caught_in_a_late_forward", {11, false}},
    {"caught_in_an_early_backward", {10, true}},
    {"caught_in_a_late_backward", {3, true}},
    {"caught_in_a_forward_beside_an_idle_rank", {5, false, true}},
    {"caught_in_a_backward_beside_an_idle_rank", {5, true, true}}};

/// All ranks catch what is thrown in the third step and try again. In the end they have the weights
/// of a training that nothing happens to.
void run_caught(const Fault& fault) {
  auto undisturbed = make_training(kManyBlocks);
  auto training = make_training(kManyBlocks);
  auto& block = training.model->blocks[fault.block];
  for (int64_t step = 0; step < 5; ++step) {
    const bool idle = fault.beside_idle && step == 2 && test_world().rank() == 2;
    undisturbed.step(idle);
    went_wrong = std::chrono::steady_clock::now();
    if (step == 2 && test_world().rank() == 1) {
      block->before = fault.in_backward ? in_backward : throw_logic_error;
      InBackward::action = [] { throw std::bad_alloc(); };
    }
    for (int64_t tries = 1;; ++tries) {
      try {
        training.step(idle);
        break;
      } catch (const std::exception& error) {
        block->before = nullptr;
        InBackward::action = nullptr;
        if (tries == 3) throw;
        print("tried again", error.what());
      }
    }
  }
  expect_same_bits(main_weights(*training.model), main_weights(*undisturbed.model));
  TORCH_CHECK(!::testing::Test::HasFailure(), "the weights differ");
  std::cout << "rank " << test_world().rank() << " is through" << std::endl;
}

/// All ranks catch what is thrown in the first step and drop the model. Rank 1 leaves much later.
void run_dropped() {
  std::optional<Training> training = make_training(kManyBlocks);
  const bool odd_one = test_world().rank() == 1;
  if (odd_one) training->model->blocks[1]->before = throw_logic_error;
  try {
    training->step();
  } catch (const std::exception& error) {
    went_wrong = std::chrono::steady_clock::now();
    training.reset();
    print("dropped", error.what());
  }
  if (odd_one) std::this_thread::sleep_for(3s);
}

void run(const std::string& mode, std::chrono::milliseconds patience) {
  const auto world = World::from_environment({.device = c10::kCPU, .operation_timeout = patience});
  world_in_use = &world;
  if (const auto fault = kCaught.find(mode); fault != kCaught.end()) {
    return run_caught(fault->second);
  }
  if (mode == "drops_the_model") return run_dropped();
  const bool odd_one = world.rank() == 1;
  auto training = make_training();
  went_wrong = std::chrono::steady_clock::now();
  if (odd_one && mode == "calls_again_at_once") misbehave(mode, training);
  for (int64_t step = 0; step < 5; ++step) {
    if (step == 2) {
      went_wrong = std::chrono::steady_clock::now();
      if (odd_one && mode == "leaves") return;
      if (odd_one && mode == "exits") std::exit(0);
      if (odd_one && mode == "gives_up") {
        training.model->blocks[1]->before = throw_logic_error;
        try {
          training.step();
        } catch (const std::logic_error&) {
          return;
        }
      }
      if (odd_one && mode == "skips_an_update") {
        training.forward().backward();
        continue;
      }
      if (odd_one) misbehave(mode, training);
    }
    try {
      training.step();
    } catch (const c10::Error& error) {  // before the world is closed, which waits for all ranks
      print("thrown", error.what_without_backtrace());
      throw;
    }
    if (mode != "reports_late") continue;
    if (odd_one && step == 2) std::this_thread::sleep_for(std::min(patience + 1500ms, 12'000ms));
    findings(training.model);
  }
  std::cout << "rank " << world.rank() << " is through" << std::endl;
}

int report(const std::string& what) {
  print("caught", what);
  std::this_thread::sleep_for(1s);  // mpirun ends the others when the first is gone: let them speak
  return exit_code_of_error;
}

}  // namespace

const World& test_world() {
  return *world_in_use;
}

}  // namespace sherd::testing

int main(int argc, char** argv) {
  using namespace sherd::testing;
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::chrono::milliseconds patience(argc > 2 ? std::stoi(argv[2]) : 60'000);
  if (argc > 3) exit_code_of_error = std::stoi(argv[3]);
  if (mode == "uncaught") {
    run(mode, patience);
    return 0;
  }
  try {
    run(mode, patience);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return report(error.what());
  }
  return 0;
}
