// SPDX-License-Identifier: Apache-2.0
#include "network_command.h"

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "at_least_one.h"
#include "forecast/measure_network.h"
#include "local_ranks.h"
#include "write_file.h"

namespace sherd::app {
namespace {

/// A line per size: what each collective took, and what the link says of both.
void print_table(const TimedLink& link) {
  std::fprintf(
      stderr, "%10s %14s %14s %14s %8s  %s, %lld ranks\n", "KiB", "all_gather", "reduce_scatter",
      "predicted", "error", link.name.c_str(), static_cast<long long>(link.ranks));
  for (size_t i = 0; i + 1 < link.collectives.size(); i += 2) {
    const auto& gather = link.collectives[i];
    const auto& reduce = link.collectives[i + 1];
    const double predicted = seconds(link.link, gather.collective, gather.bytes, link.ranks);
    const double mean = (gather.seconds + reduce.seconds) / 2;
    std::fprintf(
        stderr, "%10lld %11.3f ms %11.3f ms %11.3f ms %+7.1f%%\n",
        static_cast<long long>(gather.bytes / 1024), gather.seconds * 1e3, reduce.seconds * 1e3,
        predicted * 1e3, (predicted / mean - 1) * 100);
  }
}

}  // namespace

NetworkCommand::NetworkCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "network", "Measure the network between ranks and write a description for sherd plan")) {
  command_->add_option("--ranks", ranks_, "Number of ranks to start on this machine")
      ->check(at_least_one());
  command_->add_option("--out", out_, "Also write the description to this file")->type_name("FILE");
}

void NetworkCommand::measure() const {
  const auto world = World::from_environment();
  std::vector<TimedLink> timed;
  const auto network = measure_network(world, &timed);
  if (world.rank() != 0) return;
  for (const auto& link : timed) print_table(link);
  const auto text = to_text(network);
  std::cout << text << std::flush;
  if (!out_.empty()) write_file(out_, text);
}

int NetworkCommand::run(char** arguments) const {
  if (ranks_ && *ranks_ > 1 && !has_launcher()) {
    std::vector<std::string> all;
    for (char** argument = arguments + 1; *argument; ++argument) all.emplace_back(*argument);
    return start_local_ranks(*ranks_, all);
  }
  if (ranks_) check_launched_ranks(*ranks_);
  share_cores();  // as in training
  measure();
  return 0;
}

}  // namespace sherd::app
