// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/exchange.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "files/byte_text.h"
#include "plan/text.h"

namespace sherd {

const char* to_text(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::gather_rows: return "gather_rows";
    case ExchangeKind::scatter_sum: return "scatter_sum";
    case ExchangeKind::all_to_all: return "all_to_all";
    case ExchangeKind::all_to_all_dims: return "all_to_all_dims";
    case ExchangeKind::sum_numbers: return "sum_numbers";
    case ExchangeKind::exchange_counts: return "exchange_counts";
  }
  return "?";
}

const char* to_text(ExchangePass pass) {
  switch (pass) {
    case ExchangePass::forward: return "forward";
    case ExchangePass::recompute: return "recompute";
    case ExchangePass::backward: return "backward";
  }
  return "?";
}

Collective collective_of(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::gather_rows: return Collective::all_gather;
    case ExchangeKind::scatter_sum: return Collective::reduce_scatter;
    case ExchangeKind::sum_numbers: return Collective::all_reduce;
    case ExchangeKind::all_to_all:
    case ExchangeKind::all_to_all_dims:
    case ExchangeKind::exchange_counts: return Collective::all_to_all;
  }
  return Collective::all_to_all;
}

std::string to_text(const ExchangeSpec& exchange) {
  return text(
      to_text(exchange.kind), " along ", exchange.axis, " (", exchange.ranks, " ranks) for ",
      exchange.purpose, ", ", byte_text(exchange.bytes),
      exchange.routed ? " in the mean, by routing" : "");
}

double seconds(const Network& network, const ExchangeSpec& exchange) {
  return seconds(
      network.link(exchange.axis), collective_of(exchange.kind), exchange.bytes, exchange.ranks);
}

std::string write_exchanges(const std::vector<CallExchanges>& calls) {
  auto json = nlohmann::json::array();
  for (const auto& call : calls) {
    auto& of_call = json.emplace_back(nlohmann::json::array());
    for (const auto& one : call) {
      of_call.push_back(
          {static_cast<int>(one.kind), static_cast<int>(one.pass), one.axis, one.purpose, one.ranks,
           one.bytes, one.routed});
    }
  }
  return json.dump();
}

std::vector<CallExchanges> read_exchanges(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    std::vector<CallExchanges> calls;
    for (const auto& of_call : json) {
      auto& call = calls.emplace_back();
      for (const auto& one : of_call) {
        const auto kind = one.at(0).get<size_t>();
        const auto pass = one.at(1).get<size_t>();
        if (kind >= kExchangeKinds || pass > static_cast<size_t>(ExchangePass::backward)) {
          throw std::runtime_error(sherd::text("kind ", kind, " in pass ", pass));
        }
        call.push_back(
            {static_cast<ExchangeKind>(kind), static_cast<ExchangePass>(pass),
             one.at(2).get<std::string>(), one.at(3).get<std::string>(), one.at(4).get<int64_t>(),
             one.at(5).get<int64_t>(), one.at(6).get<bool>()});
      }
    }
    return calls;
  } catch (const std::exception& error) {
    throw std::runtime_error(sherd::text("[plan] these are no exchanges of calls: ", error.what()));
  }
}

}  // namespace sherd
