// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "bench_command.h"
#include "checkpoint_command.h"
#include "eval_command.h"
#include "exit_code.h"
#include "files/nearest_word.h"
#include "generate_command.h"
#include "network_command.h"
#include "plan_command.h"
#include "rehearse_command.h"
#include "sherd/comm/world.h"
#include "sherd/version.h"
#include "tokenize_command.h"
#include "train_command.h"

namespace sherd::app {
namespace {

/// However the command ends, the other ranks are told, and MPI is finished.
struct ClosesWorlds {
  ClosesWorlds() = default;
  ~ClosesWorlds() { World::close(); }
  ClosesWorlds(const ClosesWorlds&) = delete;
  ClosesWorlds& operator=(const ClosesWorlds&) = delete;
};

/// Returns what is wrong with the command's name; nothing if there is such a command, or none.
std::string fault_of_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return "";
  const std::string name = argv[1];
  std::vector<std::string> commands;
  for (const auto* command : app.get_subcommands({})) commands.push_back(command->get_name());
  if (std::find(commands.begin(), commands.end(), name) != commands.end()) return "";
  std::string text = "sherd: there is no command '" + name + "'";
  if (const auto near = nearest_word(name, commands)) text += ", did you mean " + *near + "?";
  return text + " 'sherd --help' lists the commands.";
}

}  // namespace

int run_command_line(int argc, char** argv) {
  const ClosesWorlds closes_worlds;  // after an error's message
  CLI::App app("Sherd: fully sharded training on LibTorch", "sherd");
  app.require_subcommand(1);
  auto* version = app.add_subcommand("version", "Print the versions of Sherd and its libraries");
  const TrainCommand train(app);
  const PlanCommand plan(app);
  const RehearseCommand rehearse(app);
  const NetworkCommand network(app);
  const BenchCommand bench(app);
  const TokenizeCommand tokenize(app);
  const GenerateCommand generate(app);
  const EvalCommand eval(app);
  const CheckpointCommand checkpoint(app);
  if (const auto fault = fault_of_command(app, argc, argv); !fault.empty()) {
    std::cerr << fault << std::endl;
    return kRefused;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kRefused;
  }
  const auto run = [&] {
    if (train.parsed()) return train.run();
    if (plan.parsed()) return plan.run();
    if (rehearse.parsed()) return rehearse.run();
    if (network.parsed()) return network.run(argv);
    if (bench.parsed()) return bench.run();
    if (tokenize.parsed()) return tokenize.run();
    if (generate.parsed()) return generate.run(argv);
    if (eval.parsed()) return eval.run(argv);
    if (checkpoint.parsed()) return checkpoint.run();
    if (version->parsed()) std::cout << version_text();
    return 0;
  };
  // `checkpoint diff` uses 1 to say that two checkpoints differ.
  return exit_code_of(run, checkpoint.parsed() ? kRefused : kFailed);
}

}  // namespace sherd::app
