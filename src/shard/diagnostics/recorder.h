// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shard/diagnostics/recording.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// Records when instructions begin and end: on CUDA with events on their streams, which the host
/// does not wait for, otherwise with the host's clock.
class Recorder {
 public:
  Recorder(c10::Device device, std::function<int64_t()> live);

  /// Starts a section: the entries that follow belong to it.
  void begin_section(const std::string& name, Section::Kind kind);
  /// Records that an instruction begins on a stream; returns its number for end().
  size_t begin(const Instruction& instruction, Communicator::OnStream stream);
  /// Records that a unit begins an exchange of activations on the current stream.
  size_t begin_exchange(ExchangeKind kind, int32_t unit, int64_t bytes);
  void end(size_t number, Communicator::OnStream stream);

  /// Returns the record. Nothing may be under way.
  StepRecord record(const Program& program) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Moment {
    std::optional<c10::Event> event;
    Clock::time_point time;
  };
  struct Entry {
    Stream stream{};
    Action action{};
    AxisKind axis{};
    int32_t unit = kNone;
    int32_t group = kNone;
    int64_t bytes = 0;
    int32_t section = 0;
    int64_t live = 0;  // at its begin
    Moment begin;
    Moment end;
    bool ended = false;
    std::optional<ExchangeKind> exchange;  // part of a `compute`
  };
  Moment now(Communicator::OnStream stream) const;
  double seconds(const Moment& from, const Moment& to) const;
  void add_computing(const Program& program, StepRecord& result) const;

  c10::Device device_;
  std::function<int64_t()> live_;
  std::vector<std::string> sections_;
  std::vector<Section::Kind> kinds_;
  std::deque<Entry> entries_;
};

}  // namespace sherd
