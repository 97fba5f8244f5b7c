// SPDX-License-Identifier: Apache-2.0
#include "rehearse_command.h"

#include <iostream>

#include "at_least_one.h"
#include "forecast/rehearse.h"
#include "plan/trace.h"
#include "write_file.h"

namespace sherd::app {

RehearseCommand::RehearseCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "rehearse",
          "Run steps on this device as one rank of an emulated world, and measure them")) {
  command_->add_option("FILE", file_, "The configuration")->required();
  command_->add_option("--set", overrides_, "Override a key of the file: section.key=value")
      ->type_name("KEY=VALUE")
      ->take_all();
  command_
      ->add_option(
          "--world", worlds_, "Number of ranks; several, such as 8,64,512, give a scaling curve")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  command_->add_option(
      "--network", network_,
      "Network description (networks/, sherd network); default: communication takes no time");
  command_->add_option("--steps", steps_, "Number of measured steps")->check(at_least_one());
  command_
      ->add_option(
          "--load", load_,
          "Seconds of steps before the measurement, until the clock rate is stable")
      ->check(CLI::NonNegativeNumber);
  command_->add_option("--times", times_, "Write measured unit times, for sherd plan --times")
      ->type_name("FILE");
  command_->add_option("--html", html_, "Write an HTML page with plots")->type_name("FILE");
  command_
      ->add_option(
          "--trace", trace_, "Write a trace of the planned and the real step, for Perfetto")
      ->type_name("FILE");
  command_->add_option("--profile", profile_, "Write a Chrome trace of one step's kernels")
      ->type_name("FILE");
  command_->add_flag("--json", json_, "Print everything as JSON");
}

int RehearseCommand::run() const {
  RehearseOptions options{.worlds = worlds_, .steps = steps_, .load = load_, .profile = profile_};
  if (!network_.empty()) options.network = read_network(network_);
  options.say = [](const std::string& line) { std::cerr << line << std::endl; };
  const auto worlds = rehearse(read_configuration(file_, overrides_), options);
  const auto& first = worlds.front();
  if (!times_.empty()) write_file(times_, to_json(first.times));
  if (!html_.empty()) write_file(html_, first.plan.to_html());
  if (!trace_.empty()) {
    const TraceProcess both[]{
        {"planned", trace_events(first.plan.program, *first.plan.timeline)},
        {"real", trace_events(first.plan.program, first.real)}};
    write_file(trace_, chrome_trace(both));
  }
  std::cout << (json_ ? first.plan.to_json() + "\n" : first.plan.to_text());
  return 0;
}

}  // namespace sherd::app
