// SPDX-License-Identifier: Apache-2.0
#include "train/bad_steps.h"

#include <algorithm>
#include <cmath>

namespace sherd {
namespace {

constexpr const char* kSkipped = "skipped_steps";
constexpr const char* kLeftOut = "left_out";

std::string bound_of(size_t number, const char* which) {
  return std::string(kLeftOut) + "_" + std::to_string(number) + "_" + which;
}

}  // namespace

bool BadSteps::is_bad(double norm) {
  const bool explodes = train_.bad_norm > 0 && good_ >= kLeastNorms &&
                        norm > train_.bad_norm * norms_ / static_cast<double>(good_);
  if (!std::isfinite(norm) || explodes) return true;
  norms_ += norm;
  ++good_;
  in_a_row_ = 0;
  return false;
}

bool BadSteps::skip() {
  ++skipped_;
  return ++in_a_row_ <= kMostInARow;
}

bool BadSteps::leave_out(const Samples& samples, int64_t trained) {
  left_out_.push_back(samples);
  return std::count_if(left_out_.begin(), left_out_.end(), [&](const Samples& each) {
           return each.from >= trained;
         }) <= kMostRewinds;
}

int64_t BadSteps::next_position(int64_t position) const {
  // They are in no order: a later rewind may leave out samples before those of an earlier one.
  for (size_t i = 0; i < left_out_.size(); ++i) {
    for (const auto& [from, to] : left_out_) {
      if (position >= from && position < to) position = to;
    }
  }
  return position;
}

std::map<std::string, int64_t> BadSteps::numbers() const {
  std::map<std::string, int64_t> result;
  if (skipped_ > 0) result[kSkipped] = skipped_;
  for (size_t i = 0; i < left_out_.size(); ++i) {
    result[bound_of(i + 1, "from")] = left_out_[i].from;
    result[bound_of(i + 1, "to")] = left_out_[i].to;
  }
  return result;
}

void BadSteps::restore(const std::map<std::string, int64_t>& numbers) {
  const auto skipped = numbers.find(kSkipped);
  skipped_ = skipped == numbers.end() ? 0 : skipped->second;
  left_out_.clear();
  for (size_t i = 1;; ++i) {
    const auto from = numbers.find(bound_of(i, "from")), to = numbers.find(bound_of(i, "to"));
    if (from == numbers.end() || to == numbers.end()) return;
    left_out_.push_back({from->second, to->second});
  }
}

}  // namespace sherd
