// SPDX-License-Identifier: Apache-2.0
#include "shard/rank_texts.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <sstream>

#include "comm/streams.h"

namespace sherd {
namespace {

/// The current stream itself: what ranks tell each other must not queue behind other work on the
/// communicator's own.
Communicator::OnStream on_current_stream(c10::Device device) {
  if (!device.is_cuda()) return {};
  return current_stream(device);
}

}  // namespace

int64_t hash_of(const std::string& text) {
  return static_cast<int64_t>(std::hash<std::string>()(text));
}

std::vector<int64_t> max_over(
    Communicator& communicator, c10::Device device, const std::vector<int64_t>& values) {
  if (device.is_meta() || values.empty()) return values;
  auto host = at::empty({std::ssize(values)}, at::kLong);
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<int64_t>());
  auto reduced = host.to(device);
  communicator.all_reduce(reduced, Reduction::max(), on_current_stream(device)).synchronize();
  const auto result = reduced.cpu();
  const auto* begin = result.const_data_ptr<int64_t>();
  return {begin, begin + result.numel()};
}

std::optional<int64_t> lowest_rank(Communicator& communicator, c10::Device device, bool is_true) {
  const int64_t mine = is_true ? communicator.size() - communicator.rank() : 0;
  const int64_t found = max_over(communicator, device, {mine}).front();
  return found == 0 ? std::nullopt : std::optional(communicator.size() - found);
}

std::string text_of(
    Communicator& communicator, c10::Device device, int64_t rank, const std::string& mine) {
  const bool speaks = communicator.rank() == rank;
  const auto length = max_over(communicator, device, {speaks ? std::ssize(mine) : 0}).front();
  if (length == 0) return {};
  auto text = at::empty({length}, at::kByte);
  if (speaks) std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
  auto sent = text.to(device);
  communicator.broadcast(sent, rank, on_current_stream(device)).synchronize();
  const auto heard = sent.cpu();
  return {static_cast<const char*>(heard.const_data_ptr()), static_cast<size_t>(length)};
}

std::vector<Statement> collect(
    Communicator& communicator, c10::Device device, const std::string& text, size_t most) {
  // A rehearsal without memory is alone.
  if (device.is_meta())
    return text.empty() ? std::vector<Statement>{} : std::vector{Statement{0, text}};
  std::vector<Statement> result;
  int64_t after = -1;
  while (result.size() < most) {
    const bool speaks = !text.empty() && communicator.rank() > after;
    const auto next = lowest_rank(communicator, device, speaks);
    if (!next) break;
    result.push_back({*next, text_of(communicator, device, *next, text)});
    after = *next;
  }
  return result;
}

std::optional<std::pair<Statement, Statement>> differing_texts(
    Communicator& communicator, c10::Device device, const std::string& text) {
  if (device.is_meta()) return std::nullopt;
  const int64_t hash = hash_of(text);
  const auto ends = max_over(communicator, device, {hash, ~hash});
  if (ends[0] == ~ends[1]) return std::nullopt;
  const auto first = text_of(communicator, device, 0, text);
  const auto other = lowest_rank(communicator, device, text != first).value_or(0);
  return std::pair(
      Statement{0, first}, Statement{other, text_of(communicator, device, other, text)});
}

void require_same(
    Communicator& communicator, c10::Device device, const char* what, const std::string& text) {
  const auto sides = differing_texts(communicator, device, text);
  if (!sides) return;
  const auto& [one, other] = *sides;
  TORCH_CHECK(
      false, "[shard.agree] rank ", one.rank, " and rank ", other.rank, " of '",
      communicator.name(), "' do not ", what, " the same. Rank ", one.rank, ": ", one.text,
      ". Rank ", other.rank, ": ", other.text,
      ". All ranks must shard the same units in the same order, with the same options");
}

size_t differing_line(const std::string& one, const std::string& other) {
  const auto lines = [](const std::string& text) {
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  };
  const size_t most = std::max(lines(one), lines(other));
  size_t number = 0;
  while (number + 1 < most && line_of(one, number) == line_of(other, number)) ++number;
  return number;
}

std::string line_of(const std::string& text, size_t number) {
  std::istringstream in(text);
  std::string result;
  for (size_t i = 0; i <= number; ++i) {
    if (!std::getline(in, result)) return "(nothing)";
  }
  return result;
}

std::string difference_of(const Statement& one, const Statement& other) {
  const size_t number = differing_line(one.text, other.text);
  return c10::str(
      "rank ", one.rank, " and rank ", other.rank, " do not run the same program. Rank ", one.rank,
      ": ", line_of(one.text, number), ". Rank ", other.rank, ": ", line_of(other.text, number));
}

}  // namespace sherd
