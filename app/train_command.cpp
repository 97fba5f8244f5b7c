// SPDX-License-Identifier: Apache-2.0
#include "train_command.h"

#include "at_least_one.h"
#include "local_ranks.h"
#include "train/train.h"

namespace sherd::app {

TrainCommand::TrainCommand(CLI::App& app)
    : command_(app.add_subcommand("train", "Train a model described by a TOML file")) {
  command_->add_option("FILE", file_, "The configuration")->required();
  command_->add_option("--set", overrides_, "Override a key of the file: section.key=value")
      ->type_name("KEY=VALUE")
      ->take_all();
  command_->add_option("--ranks", ranks_, "Number of ranks to start on this machine (device.ranks)")
      ->check(at_least_one());
  command_->footer("Keys of the configuration, with their defaults:\n\n" + configuration_help());
}

int TrainCommand::run(char** arguments) const {
  const auto configuration = read_configuration(file_, overrides_);
  const int64_t ranks = ranks_.value_or(configuration.device.ranks);
  if (ranks > 1 && !has_launcher()) {
    check_inputs(configuration);  // while one process can say what is wrong with them
    return start_local_ranks(ranks, arguments);
  }
  if (ranks_) check_launched_ranks(*ranks_);
  share_cores();
  train(configuration);
  return 0;
}

}  // namespace sherd::app
