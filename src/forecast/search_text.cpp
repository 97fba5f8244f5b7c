// SPDX-License-Identifier: Apache-2.0
// The result of a search, for people and for programs.
#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "configuration/byte_size.h"
#include "files/format_text.h"
#include "forecast/search.h"
#include "forecast/time_text.h"

namespace sherd {
namespace {

std::string recompute_text(const TrainSection& train) {
  if (train.recompute == "none" || train.recompute_layers == 0) return train.recompute;
  return c10::str(train.recompute, ", ", train.recompute_layers);
}

std::string sharding_text(const ShardSection& shard) {
  return shard.outer == 1 ? shard.strategy : c10::str(shard.strategy, ", ", shard.outer_strategy);
}

std::string line_of(const SearchRow& row) {
  const auto& all = row.configuration;
  const auto& parallel = all.parallel;
  const auto number = [](int64_t value) { return static_cast<long long>(value); };
  return format_text(
      "%11s%12.0f%12s%12s%7lld%4lld%4lld%4lld%10s  %-15s%9lld  %s\n",
      time_text(row.plan.seconds).c_str(), row.plan.tokens_per_second,
      time_text(row.plan.exposed).c_str(), byte_text(row.plan.bytes).c_str(),
      number(all.shard.outer), number(parallel.cp), number(parallel.tp), number(parallel.ep),
      c10::str(all.data.batch, " x ", all.data.micro_batches).c_str(),
      recompute_text(all.train).c_str(), number(all.shard.prefetch),
      sharding_text(all.shard).c_str());
}

}  // namespace

std::string SearchResult::to_text() const {
  std::ostringstream out;
  out << title << ", " << sequences << " sequences of " << seq << " tokens a step, at most "
      << byte_text(memory) << " a rank\n\n"
      << "       step  tokens/s*   waiting      memory  outer  cp  tp  ep     batch  recompute"
         "       prefetch  strategy\n";
  for (const auto& row : rows) out << line_of(row);
  out << "  * of a rank. batch: sequences x micro-batches\n\nthe first of them:";
  for (const auto& [key, value] : rows.front().settings) {
    out << " --set '" << key << '=' << value << '\'';
  }
  if (rows.front().settings.empty()) out << " the file as it is";
  out << "\n\nthe others\n";
  const auto best = rows.front().plan.seconds;
  const auto percent = [&](double seconds) { return 100 * (seconds / best - 1); };
  if (slower > 0) {
    out << format_text(
        "  %6lld are slower, by about %.1f to %.0f %% than the first\n",
        static_cast<long long>(slower), percent(slower_from), percent(slower_to));
  }
  if (too_large > 0) {
    out << format_text("  %6lld do not fit", static_cast<long long>(too_large)) << ", by about "
        << byte_text(least_bytes - memory) << " at least: " << smallest << '\n';
  }
  for (const auto& one : refused) {
    out << format_text("  %6lld can't be used: ", static_cast<long long>(one.count)) << one.reason
        << '\n';
  }
  return out.str();
}

std::string SearchResult::to_json() const {
  nlohmann::ordered_json json{
      {"title", title}, {"memory", memory}, {"sequences", sequences}, {"seq", seq}};
  json["rows"] = nlohmann::json::array();
  for (const auto& row : rows) {
    nlohmann::ordered_json settings;
    for (const auto& [key, value] : row.settings) settings[key] = value;
    json["rows"].push_back(
        {{"settings", std::move(settings)},
         {"bytes", row.plan.bytes},
         {"seconds", row.plan.seconds},
         {"exposed", row.plan.exposed},
         {"tokens_per_second", row.plan.tokens_per_second}});
  }
  json["slower"] = {{"count", slower}, {"from", slower_from}, {"to", slower_to}};
  json["too_large"] = {{"count", too_large}, {"least", least_bytes}, {"smallest", smallest}};
  json["refused"] = nlohmann::json::array();
  for (const auto& one : refused) {
    json["refused"].push_back({{"count", one.count}, {"reason", one.reason}});
  }
  return json.dump();
}

}  // namespace sherd
