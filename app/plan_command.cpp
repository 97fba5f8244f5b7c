// SPDX-License-Identifier: Apache-2.0
#include "plan_command.h"

#include <c10/util/Exception.h>

#include <iostream>

#include "plan/trace.h"
#include "write_file.h"

namespace sherd::app {

PlanCommand::PlanCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "plan", "Say what a run will take and do, without a device: memory, traffic, time")) {
  command_
      ->add_option("FILE", files_, "The configuration; of two, what differs between them is said")
      ->required()
      ->expected(1, 2);
  command_->add_option("--set", overrides_, "section.key=value, instead of what the file says")
      ->type_name("KEY=VALUE")
      ->take_all();
  command_->add_option("--world", world_, "Ranks; else those that the file emulates or starts")
      ->check(CLI::PositiveNumber);
  command_->add_option("--worlds", worlds_, "Other numbers of ranks, each planned in short")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command_->add_option(
      "--network", network_, "A described network (networks/, sherd network): seconds, too");
  command_->add_option("--times", times_, "Measured unit times, which sherd rehearse writes");
  command_->add_flag("--program", program_, "Print the program itself");
  command_->add_flag("--json", json_, "Print all of it as JSON");
  command_->add_option("--html", html_, "Write a page that shows it")->type_name("FILE");
  command_->add_option("--trace", trace_, "Write the planned step for Perfetto")->type_name("FILE");
}

int PlanCommand::run() const {
  PlanOptions options{.ranks = world_, .worlds = worlds_};
  if (!network_.empty()) options.network = read_network(network_);
  if (!times_.empty()) options.times = read_unit_times(times_);
  const auto plan = plan_run(read_configuration(files_[0], overrides_), options);
  if (files_.size() == 2) {
    std::cout << difference(plan, plan_run(read_configuration(files_[1], overrides_), options));
    return 0;
  }
  TORCH_CHECK_VALUE(
      trace_.empty() || plan.timeline, "--trace ", trace_,
      ": no times are known; give --times, or --network with a [device]");
  if (!html_.empty()) write_file(html_, plan.to_html());
  if (!trace_.empty()) {
    const TraceProcess planned{"planned", trace_events(plan.program, *plan.timeline)};
    write_file(trace_, chrome_trace({&planned, 1}));
  }
  if (json_) {
    std::cout << plan.to_json(program_) << '\n';
  } else {
    std::cout << plan.to_text();
    if (program_) std::cout << '\n' << plan.program.to_text();
  }
  return 0;
}

}  // namespace sherd::app
