// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "bench_command.h"
#include "blame_command.h"
#include "checkpoint_command.h"
#include "configuration/keys.h"
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

/// Returns what is wrong with the options of the command; nothing if all of them exist.
std::string fault_of_options(const CLI::App& command, int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const auto name = word.substr(0, word.find('='));
    if (!word.starts_with("--") || word == "--" || command.get_option_no_throw(name)) continue;
    std::vector<std::string> options;
    for (const auto* option : command.get_options()) options.push_back(option->get_name());
    std::string text = "sherd: " + command.get_name() + " has no option " + name;
    const auto key = name.substr(2);
    Configuration all;
    sections(all, [&](const char* section, auto& of_section) {
      keys(of_section, [&](const char* one, auto&, const Key&) {
        const auto whole = std::string(section) + "." + one;
        if (key == one || key == whole) text += "; its key is set with --set " + whole + "=VALUE";
      });
    });
    if (const auto near = nearest_word(name, options)) text += ", did you mean " + *near + "?";
    return text + " 'sherd " + command.get_name() + " --help' lists the options.";
  }
  return "";
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
  const BlameCommand blame(app);
  if (const auto fault = fault_of_command(app, argc, argv); !fault.empty()) {
    std::cerr << fault << std::endl;
    return kRefused;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    const auto given = app.get_subcommands();
    const bool plain = !given.empty() && given.front()->get_subcommands({}).empty();
    const auto fault = plain ? fault_of_options(*given.front(), argc, argv) : "";
    if (fault.empty()) return app.exit(error) == 0 ? 0 : kRefused;
    std::cerr << fault << std::endl;
    return kRefused;
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
    if (blame.parsed()) return blame.run();
    if (version->parsed()) std::cout << version_text();
    return 0;
  };
  // `checkpoint diff` uses 1 to say that two checkpoints differ, `blame` that a rank is to blame.
  return exit_code_of(run, checkpoint.parsed() || blame.parsed() ? kRefused : kFailed);
}

}  // namespace sherd::app
