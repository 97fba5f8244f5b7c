// SPDX-License-Identifier: Apache-2.0
#include "configuration/axes.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace sherd {
namespace {

/// The ranks of each group.
int64_t group_of(const Configuration& configuration, int64_t ranks) {
  const int64_t outer = configuration.shard.outer;
  TORCH_CHECK_VALUE(
      ranks % outer == 0, "[train] shard.outer = ", outer,
      ": it must divide the number of ranks, which is ", ranks);
  return ranks / outer;
}

std::string in_each_group(const Configuration& configuration) {
  const int64_t outer = configuration.shard.outer;
  return outer > 1 ? c10::str(" of each of the ", outer, " groups (shard.outer)") : "";
}

NamedSizes with_outer(const Configuration& configuration, NamedSizes axes) {
  if (configuration.shard.outer > 1) {
    axes.insert(axes.begin(), {"dp_outer", configuration.shard.outer});
  }
  return axes;
}

}  // namespace

std::string data_axis_of(const Configuration& configuration) {
  std::string name = "dp";
  if (configuration.parallel.cp > 1) name += "_cp";
  if (configuration.parallel.tp > 1) name += "_tp";
  return name;
}

NamedSizes data_axes_of(const Configuration& configuration, int64_t ranks) {
  const int64_t group = group_of(configuration, ranks);
  return with_outer(configuration, {{data_axis_of(configuration), group}});
}

std::optional<NamedSizes> sequence_axes_of(const Configuration& configuration, int64_t ranks) {
  const auto& parallel = configuration.parallel;
  const int64_t sharing = sharing_ranks_of(configuration);
  if (sharing == 1) return std::nullopt;
  const int64_t group = group_of(configuration, ranks);
  TORCH_CHECK_VALUE(
      group % sharing == 0, "[train] parallel.cp = ", parallel.cp, ", parallel.tp = ", parallel.tp,
      ": their product must divide the ", group, " ranks", in_each_group(configuration));
  NamedSizes axes{{"dp", group / sharing}};
  if (parallel.cp > 1) axes.emplace_back("cp", parallel.cp);
  if (parallel.tp > 1) axes.emplace_back("tp", parallel.tp);
  return with_outer(configuration, std::move(axes));
}

std::optional<NamedSizes> expert_axes_of(const Configuration& configuration, int64_t ranks) {
  const int64_t ep = configuration.parallel.ep;
  if (ep == 1) return std::nullopt;
  const int64_t group = group_of(configuration, ranks);
  TORCH_CHECK_VALUE(
      group % ep == 0, "[train] parallel.ep = ", ep, ": it must divide the ", group, " ranks",
      in_each_group(configuration));
  return with_outer(configuration, {{"edp", group / ep}, {"ep", ep}});
}

void check_axes(const Configuration& configuration, int64_t ranks) {
  data_axes_of(configuration, ranks);
  sequence_axes_of(configuration, ranks);
  expert_axes_of(configuration, ranks);
}

}  // namespace sherd
