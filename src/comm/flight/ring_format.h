// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

// The bytes of a flight recorder's file: a header, names, then entries that are written in turn.
// Numbers are in the byte order of the machine; times are nanoseconds.
namespace sherd::flight {

inline constexpr std::array<char, 8> kMagic{'S', 'H', 'E', 'R', 'D', 'F', 'L', 'T'};
inline constexpr uint32_t kVersion = 1;
inline constexpr int64_t kNamesBytes = 256 << 10;

/// The kinds of entries.
enum class Type : uint8_t {
  none,
  section,      ///< a section of the program begins; kind: Section::Kind
  instruction,  ///< kind: Action
  call,         ///< a unit is called in a forward
  exchange,     ///< a unit exchanges activations; kind: ExchangeKind
  collective,   ///< kind: Collective
  step,         ///< a step has ended
};
inline constexpr auto kLastType = Type::step;

enum class State : uint8_t { issued, started, finished, failed };

/// Why a rank wrote its mark, from the least to the most important reason.
enum class Reason : uint32_t { none, error, time_limit, ended };

struct Entry {
  uint64_t number = 0;  ///< counts from 1; 0 while it is written
  int64_t issued = 0;   ///< steady clock
  int64_t started = 0;  ///< 0: not yet
  int64_t ended = 0;    ///< 0: not yet
  int64_t bytes = 0;    ///< step: nanoseconds in which the host waited for other ranks
  uint32_t name = 0;    ///< where its name begins: of the unit, section or communicator
  Type type = Type::none;
  uint8_t kind = 0;
  State state = State::issued;
  uint8_t stream = 0;  ///< instruction: Stream
  int32_t index = -1;  ///< in its section; of a collective: in its communicator, -1: not counted
  int32_t step = 0;    ///< counts from 1
  int32_t line = -1;   ///< collective: number of the communicator; else of the section
  int32_t unused = 0;
};
static_assert(sizeof(Entry) == 64);

struct Header {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t entry_bytes = 0;
  int64_t entries = 0;      ///< how many the file has room for
  int64_t names_bytes = 0;  ///< how many bytes follow the header before the entries
  int64_t run = 0;          ///< equal for all ranks of a run
  int64_t rank = 0;
  int64_t size = 0;           ///< ranks of the world
  int64_t process = 0;        ///< its number on the host
  int64_t process_start = 0;  ///< of /proc/PID/stat: tells it from a later one of that number
  int64_t wall_clock = 0;     ///< when the file was opened, since 1970
  int64_t steady_clock = 0;   ///< the same moment by the clock of the entries
  std::array<char, 64> host{};
  std::array<char, 16> backend{};

  uint64_t written = 0;     ///< entries so far
  int64_t names_used = 0;   ///< bytes
  int64_t alive = 0;        ///< last sign of life of the thread that moves messages
  int64_t step = 0;         ///< counts from 1
  int64_t asked = 0;        ///< when SIGUSR2 asked for a mark; 0: never
  int64_t stopped = 0;      ///< when a signal asked the rank to end; 0: none did
  int64_t stop_signal = 0;  ///< which one
  Reason reason = Reason::none;
  int32_t unused = 0;
  int64_t marked = 0;  ///< when the reason was written
  std::array<char, 2048> text{};
};
inline constexpr int64_t kHeaderBytes = 4096;
static_assert(sizeof(Header) <= kHeaderBytes);

}  // namespace sherd::flight
