// SPDX-License-Identifier: Apache-2.0
#include "blame_command.h"

#include <iostream>

#include "comm/flight/blame.h"
#include "comm/flight/flight_trace.h"
#include "write_file.h"

namespace sherd::app {

BlameCommand::BlameCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "blame",
          "Say which rank was missing, slow or did something else; exit code 1 if one was missing "
          "or did")) {
  command_
      ->add_option(
          "DIR", folder_,
          "The folder of a run (train.out), or one with the files of its flight recorders")
      ->required();
  command_->add_option(
      "--trace", trace_, "Write the last seconds of all ranks to this file, for ui.perfetto.dev");
  command_->add_option("--seconds", seconds_, "How many seconds the trace has (default 10)")
      ->check(CLI::PositiveNumber);
}

int BlameCommand::run() const {
  const auto found = blame_folder(folder_);
  std::cout << found.text << '\n';
  if (trace_) write_file(*trace_, flight_trace_of_folder(folder_, seconds_));
  return found.well ? 0 : 1;
}

}  // namespace sherd::app
