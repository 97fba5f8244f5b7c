// SPDX-License-Identifier: Apache-2.0
#include "comm/host_exchange.h"

#include <c10/util/StringUtil.h>

namespace sherd {

std::string decide_over_store(
    c10d::Store& store,
    const std::string& key,
    int64_t rank,
    int64_t size,
    const std::string& text,
    const Decide& decide,
    std::chrono::milliseconds timeout) {
  const auto key_of = [&](int64_t giver) { return c10::str(key, "/rank ", giver); };
  const auto verdict_key = key + "/verdict";
  const auto set = [&](const std::string& name, const std::string& value) {
    store.set(name, std::vector<uint8_t>(value.begin(), value.end()));
  };
  const auto get = [&](const std::string& name) {
    store.wait({name}, timeout);
    const auto data = store.get(name);
    return std::string(data.begin(), data.end());
  };
  if (rank != 0) {
    set(key_of(rank), text);
    return get(verdict_key);
  }
  auto verdict = decide(0, text);
  for (int64_t giver = 1; giver < size && !verdict; ++giver) {
    verdict = decide(giver, get(key_of(giver)));
  }
  set(verdict_key, verdict.value_or(""));
  return verdict.value_or("");
}

}  // namespace sherd
