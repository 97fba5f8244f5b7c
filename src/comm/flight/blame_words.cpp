// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/blame_words.h"

#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <ctime>

#include "comm/flight/process_start.h"
#include "files/format_text.h"
#include "sherd/plan/network.h"

namespace sherd {

std::string words_of_collective(const FlightEntry& entry) {
  const bool named = entry.kind <= static_cast<uint8_t>(Collective::barrier);
  return c10::str(
      named ? to_text(static_cast<Collective>(entry.kind)) : "operation", " ", entry.index + 1,
      " on '", entry.name, "'", entry.axis == entry.name ? "" : c10::str(" along ", entry.axis),
      " (", entry.bytes, " bytes)");
}

std::string words_of_ranks(const std::vector<int64_t>& ranks) {
  constexpr size_t kMost = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t shown = std::min(ranks.size(), kMost);
  for (size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == ranks.size();
    text += c10::str(i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (shown < ranks.size()) text += c10::str(" and ", ranks.size() - shown, " more");
  return text;
}

std::string words_of_seconds(double seconds) {
  return format_text(seconds < 10 ? "%.2f s" : "%.0f s", seconds);
}

std::string words_of_moment(double moment) {
  const auto whole = static_cast<time_t>(std::floor(moment));
  struct tm parts {};
  gmtime_r(&whole, &parts);
  return format_text(
      "%02d:%02d:%06.3f UTC", parts.tm_hour, parts.tm_min,
      parts.tm_sec + (moment - static_cast<double>(whole)));
}

std::string as_sentence(std::string words) {
  if (words.empty()) return words;
  words[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(words[0])));
  return words + ".";
}

std::string words_of_error(const std::string& text) {
  constexpr size_t kLongest = 400;
  auto line = text.substr(0, text.find('\n'));
  if (line.size() > kLongest) return line.substr(0, kLongest) + " …";
  while (!line.empty() && line.back() == '.') line.pop_back();
  return line;
}

char state_of_process_of(const FlightLog& log) {
  std::array<char, 256> here{};
  gethostname(here.data(), here.size() - 1);
  if (log.host != here.data() || log.process_start == 0) return 0;
  if (start_of_process(log.process) != log.process_start) return 'Z';
  const char state = state_of_process(log.process);
  return state == 0 || state == 'X' ? 'Z' : state;
}

std::string words_of_fate(const FlightLog& log) {
  const auto process = c10::str("its process ", log.process);
  switch (state_of_process_of(log)) {
    case 0: return "it was killed or stopped, or its host is down or out of reach";
    case 'Z': return process + " is gone, ended from outside or by a crash";
    case 'T':
    case 't': return process + " is stopped (kill -CONT lets it go on)";
    default: return process + " is still there, and hangs or was stopped";
  }
}

}  // namespace sherd
