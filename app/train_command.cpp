// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "local_ranks.h"
#include "sherd/train/train.h"
#include "train_command.h"

namespace sherd::app {

TrainCommand::TrainCommand(CLI::App& app)
    : command_(app.add_subcommand("train", "Train a model as a TOML file says")) {
  command_->add_option("FILE", file_, "The configuration")->required();
  command_->add_option("--set", overrides_, "section.key=value, instead of what the file says")
      ->type_name("KEY=VALUE")
      ->take_all();
  command_->add_option("--ranks", ranks_, "Ranks to start on this machine (device.ranks)")
      ->check(CLI::PositiveNumber);
  command_->footer("Keys of the configuration, with their defaults:\n\n" + configuration_help());
}

int TrainCommand::run(char** arguments) const {
  Configuration configuration;
  try {
    configuration = read_configuration(file_, overrides_);
  } catch (const ConfigurationError& error) {
    if (is_first_rank()) std::cerr << error.what() << '\n';
    return 2;
  }
  const int64_t ranks = ranks_.value_or(configuration.device.ranks);
  if (ranks > 1 && !has_launcher()) return start_local_ranks(ranks, arguments);
  if (ranks_ && has_launcher() && *ranks_ != launched_ranks()) {
    std::cerr << rank_text() << "--ranks " << *ranks_ << ": a launcher has started "
              << launched_ranks() << " ranks; leave --ranks out\n";
    return 2;
  }
  // Ranks of one machine share its cores.
  if (!std::getenv("OMP_NUM_THREADS")) {
    const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
    at::set_num_threads(static_cast<int>(std::max<int64_t>(1, cores / local_ranks())));
  }
  try {
    train(configuration);
  } catch (const c10::ValueError& error) {
    std::cerr << rank_text() << error.what_without_backtrace() << std::endl;
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << rank_text() << error.what_without_backtrace() << std::endl;
    return 1;
  } catch (const std::exception& error) {
    std::cerr << rank_text() << error.what() << std::endl;
    return 1;
  }
  return 0;
}

}  // namespace sherd::app
