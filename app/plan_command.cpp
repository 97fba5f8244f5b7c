// SPDX-License-Identifier: Apache-2.0
#include "plan_command.h"

#include <c10/util/Exception.h>

#include <iostream>

#include "at_least_one.h"
#include "forecast/search.h"
#include "plan/trace.h"
#include "write_file.h"

namespace sherd::app {

PlanCommand::PlanCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "plan", "Predict memory, traffic and time of a run, without a device")) {
  command_->add_option("FILE", files_, "The configuration; with two files, print what differs")
      ->required()
      ->expected(1, 2);
  command_->add_option("--set", overrides_, "Override a key of the file: section.key=value")
      ->type_name("KEY=VALUE")
      ->take_all();
  command_
      ->add_option(
          "--world", world_, "Number of ranks; default: device.emulate or device.ranks of the file")
      ->check(at_least_one());
  command_->add_option("--worlds", worlds_, "Further numbers of ranks to compare, such as 8,64,512")
      ->delimiter(',')
      ->check(at_least_one());
  command_->add_option(
      "--network", network_, "Network description (networks/, sherd network), to predict times");
  command_->add_option("--times", times_, "Measured unit times, from sherd rehearse --times");
  command_->add_flag("--program", program_, "Print the program (all instructions of a step)");
  command_->add_flag("--json", json_, "Print everything as JSON");
  command_->add_option("--html", html_, "Write an HTML page with plots")->type_name("FILE");
  command_->add_option("--trace", trace_, "Write a trace of the planned step, for Perfetto")
      ->type_name("FILE");
  auto* search = command_->add_flag(
      "--search", search_,
      "Search for the fastest arrangement of the ranks that fits memory.budget, or the memory of "
      "the network's devices (docs/parallel.md)");
  command_
      ->add_option(
          "--sequences", sequences_,
          "With --search: sequences of a step on all ranks; default: those of the file")
      ->check(at_least_one())
      ->needs(search);
  for (const char* other : {"--worlds", "--times", "--program", "--html", "--trace"}) {
    search->excludes(command_->get_option(other));
  }
}

int PlanCommand::search() const {
  TORCH_CHECK_VALUE(
      files_.size() == 1, "[plan.search] --search takes one configuration, not ", files_.size());
  TORCH_CHECK_VALUE(
      !network_.empty(),
      "[plan.search] --search compares times: give --network with a [device] section");
  const SearchOptions options{
      .ranks = world_, .network = read_network(network_), .sequences = sequences_};
  const auto result = search_plans(read_configuration(files_[0], overrides_), options);
  std::cout << (json_ ? result.to_json() + "\n" : result.to_text());
  return 0;
}

int PlanCommand::run() const {
  if (search_) return search();
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
      ": it needs times; give --times, or --network with a [device] section");
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
