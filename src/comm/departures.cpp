// SPDX-License-Identifier: Apache-2.0
#include "comm/departures.h"

#include <c10/util/StringUtil.h>

#include <exception>
#include <utility>

namespace sherd {
namespace {

constexpr const char* kCount = "departures";
constexpr int64_t kMostRead = 64;

std::string key(int64_t number) {
  return c10::str("departure/", number);
}

}  // namespace

Departures::Departures(
    c10::intrusive_ptr<c10d::Store> store, int64_t rank, std::chrono::milliseconds pause)
    : store_(std::move(store)), rank_(rank), pause_(pause) {}

void Departures::leave() noexcept {
  const bool fails = std::uncaught_exceptions() > 0;
  std::lock_guard lock(mutex_);
  if (std::exchange(left_, true)) return;
  try {
    const auto text = c10::str(
        rank_,
        " has left: ", fails ? "an exception ended it" : "its process closed the world, or ended");
    const auto number = store_->add(kCount, 1);
    store_->set(key(number), std::vector<uint8_t>(text.begin(), text.end()));
  } catch (const std::exception&) {
    // The store is gone, and with it the ranks that would read this.
  }
}

std::string Departures::reason(const std::vector<int64_t>& ranks, bool now) {
  std::lock_guard lock(mutex_);
  const auto time = std::chrono::steady_clock::now();
  if (now || time >= last_read_ + pause_) {
    last_read_ = time;
    read_store();
  }
  for (const int64_t rank : ranks) {
    if (const auto found = reasons_.find(rank); found != reasons_.end()) return found->second;
  }
  return store_error_;
}

void Departures::read_store() {
  if (!store_error_.empty() || left_) return;
  try {
    // At the end of a run all ranks write theirs: read a few at a time.
    for (int64_t i = 0; i < kMostRead && store_->check({key(read_count_ + 1)}); ++i) {
      const auto data = store_->get(key(++read_count_));
      const std::string text(data.begin(), data.end());
      reasons_[std::stoll(text)] = "rank " + text;
    }
  } catch (const std::exception& error) {
    store_error_ = c10::str(
        "the ranks' store does not answer; the rank that served it has left (", error.what(), ")");
  }
}

}  // namespace sherd
