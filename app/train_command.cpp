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
  command_
      ->add_option(
          "--restarts", restarts_.most,
          "How often the ranks are started again, from the newest checkpoint, if one dies; not "
          "after a refusal, a stop signal or a step that is not finite. Default: 0")
      ->check(CLI::NonNegativeNumber);
  command_
      ->add_option(
          "--min-ranks", restarts_.min_ranks,
          "With --restarts: start again with fewer ranks, at least so many, which make more "
          "micro-batches of the same samples. Default: with as many as before")
      ->check(at_least_one());
  command_->footer("Keys of the configuration, with their defaults:\n\n" + configuration_help());
}

int TrainCommand::run() const {
  const auto configuration = read_configuration(file_, overrides_);
  const int64_t ranks = ranks_.value_or(configuration.device.ranks);
  check_restarts(restarts_, configuration, ranks);
  if (!has_launcher()) check_inputs(configuration);  // while one process can say what is wrong
  if ((ranks > 1 || restarts_.most > 0) && !has_launcher()) {
    std::vector<std::string> words{"train", file_};
    for (const auto& each : overrides_) words.insert(words.end(), {"--set", each});
    return train_with_restarts(restarts_, configuration, ranks, words);
  }
  if (ranks_) check_launched_ranks(*ranks_);
  stop_with_launcher();
  share_cores();
  train(configuration);
  return 0;
}

}  // namespace sherd::app
