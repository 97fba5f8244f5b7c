// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/flight/ring_format.h"

namespace sherd {

/// An entry of a flight recorder with its name. Times are seconds since 1970.
struct FlightEntry {
  flight::Type type{};
  uint8_t kind = 0;
  flight::State state{};
  uint8_t stream = 0;
  int32_t index = -1;
  int32_t step = 0;
  int32_t line = -1;  ///< collective: number of the communicator; else of the section
  int64_t bytes = 0;
  std::string name{};            ///< of the unit, the section or the communicator
  std::string axis{};            ///< collective: mesh axis of the communicator
  std::vector<int64_t> ranks{};  ///< collective: world ranks of the communicator
  double issued = 0;
  double started = 0;  ///< 0: not yet
  double ended = 0;    ///< 0: not yet

  bool is_open() const { return state == flight::State::issued || state == flight::State::started; }
};

/// What a rank's flight recorder has kept.
struct FlightLog {
  std::string path{};
  int64_t run = 0;
  int64_t rank = 0;
  int64_t size = 1;
  int64_t process = 0;
  int64_t process_start = 0;
  std::string host{};
  std::string backend{};
  int64_t step = 0;    ///< counts from 1; 0: none has begun
  double alive = 0;    ///< last sign of life, of any kind
  double asked = 0;    ///< when SIGUSR2 came; 0: never
  double stopped = 0;  ///< when a signal asked it to end; 0: none did
  int64_t stop_signal = 0;
  flight::Reason reason = flight::Reason::none;
  double marked = 0;
  std::string text{};                  ///< of the mark
  std::vector<FlightEntry> entries{};  ///< in the order in which they were issued
};

/// Reads the file of one rank, which may be written meanwhile. Throws with the path and what is
/// wrong if it is short, damaged or no such file.
FlightLog read_flight_log(const std::string& path);
/// Reads the files of all ranks in a folder, or in its subfolder `flight`, in the order of the
/// ranks. Throws also if there is none, or if files are of different runs. Files of some ranks may
/// be missing.
std::vector<FlightLog> read_flight_logs(const std::string& folder);

}  // namespace sherd
