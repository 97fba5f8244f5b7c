// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/flight/flight_log.h"

namespace sherd {

/// Returns a collective in words: "all_reduce 12 on 'world' (4 bytes)".
std::string words_of_collective(const FlightEntry& entry);
/// Returns "rank 3" or "ranks 0, 2 and 3".
std::string words_of_ranks(const std::vector<int64_t>& ranks);
/// Returns a time with two digits behind the point, if it is short.
std::string words_of_seconds(double seconds);
/// Returns a moment since 1970 as the time of its day.
std::string words_of_moment(double moment);
/// Returns the first line of an error, cut if it is long, without a full stop.
std::string words_of_error(const std::string& text);
/// Returns a sentence with its capital and full stop.
std::string as_sentence(std::string words);

/// Returns the state of a log's process as /proc has it, 'Z' if it has ended; 0 if it runs on
/// another machine.
char state_of_process_of(const FlightLog& log);
/// Returns what became of a process without a sign of life, as far as this machine can tell.
std::string words_of_fate(const FlightLog& log);

}  // namespace sherd
