// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "bench_command.h"
#include "checkpoint_command.h"
#include "network_command.h"
#include "plan_command.h"
#include "rehearse_command.h"
#include "sherd/comm/world.h"
#include "sherd/version.h"
#include "tokenize_command.h"
#include "train_command.h"

namespace {

/// However main ends, the other ranks are told, and MPI is finished.
struct ClosesWorlds {
  ClosesWorlds() = default;
  ~ClosesWorlds() { sherd::World::close(); }
  ClosesWorlds(const ClosesWorlds&) = delete;
  ClosesWorlds& operator=(const ClosesWorlds&) = delete;
};

}  // namespace

int main(int argc, char** argv) try {
  const ClosesWorlds closes_worlds;
  CLI::App app("Sherd: fully sharded training on LibTorch", "sherd");
  app.require_subcommand(1);
  auto* version =
      app.add_subcommand("version", "Print the versions of Sherd and what it stands on");
  const sherd::app::TrainCommand train(app);
  const sherd::app::PlanCommand plan(app);
  const sherd::app::RehearseCommand rehearse(app);
  const sherd::app::NetworkCommand network(app);
  const sherd::app::BenchCommand bench(app);
  const sherd::app::TokenizeCommand tokenize(app);
  const sherd::app::CheckpointCommand checkpoint(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (version->parsed()) std::cout << sherd::version_text();
  if (train.parsed()) return train.run(argv);
  if (plan.parsed()) return plan.run();
  if (rehearse.parsed()) return rehearse.run();
  if (network.parsed()) return network.run(argv);
  if (bench.parsed()) return bench.run();
  if (tokenize.parsed()) return tokenize.run();
  if (checkpoint.parsed()) return checkpoint.run();
  return 0;
} catch (const std::exception& error) {
  std::cerr << "sherd: " << error.what() << '\n';
  return 1;
}
