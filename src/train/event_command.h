// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

/// A command of the user's that is told what happens in a run: it gets a line of JSON for each
/// event on its standard input. The run never waits for it: lines that it does not read in time are
/// dropped, and it may end whenever it likes.
class EventCommand {
 public:
  /// Starts `command` with sh.
  explicit EventCommand(const std::string& command);
  /// Closes the command's standard input, and ends the command if it does not end by itself within
  /// kPatience seconds.
  ~EventCommand();
  EventCommand(const EventCommand&) = delete;
  EventCommand& operator=(const EventCommand&) = delete;

  static constexpr double kPatience = 10;

  /// Sends {"event": `name`, "time": …} and the fields of `json`, an object as text.
  void send(const std::string& name, const std::string& json);
  /// Returns the number of events that were dropped.
  int64_t dropped() const { return dropped_; }

 private:
  void write_waiting();

  int socket_ = -1;  // its other end is the command's standard input
  int process_ = -1;
  std::string waiting_;  // that the socket has no room for
  int64_t dropped_ = 0;
};

}  // namespace sherd
