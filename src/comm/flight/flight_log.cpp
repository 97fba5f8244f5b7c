// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/flight_log.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "comm/flight/rank_list.h"

namespace sherd {
namespace {

using namespace flight;

/// The bytes of one file, checked as far as everything else needs it.
class RingFile {
 public:
  explicit RingFile(const std::string& path) : path_(path) {
    std::ifstream in(path, std::ios::binary);
    TORCH_CHECK_VALUE(in, "[flight] ", path, " can't be read");
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    check(std::ssize(bytes_) >= kHeaderBytes, "it has ", bytes_.size(), " bytes and is cut short");
    std::memcpy(&header_, bytes_.data(), sizeof(header_));
    TORCH_CHECK_VALUE(
        header_.magic == kMagic, "[flight] ", path, " is no file of a flight recorder");
    TORCH_CHECK_VALUE(
        header_.version == kVersion && header_.entry_bytes == sizeof(Entry), "[flight] ", path,
        " has format ", header_.version, ", this sherd reads ", kVersion,
        ": read it with the sherd that wrote it");
    check(
        header_.names_bytes == kNamesBytes && header_.entries > 0 && header_.entries < (1LL << 40),
        "its header is damaged");
    const int64_t whole =
        kHeaderBytes + kNamesBytes + header_.entries * static_cast<int64_t>(sizeof(Entry));
    check(
        std::ssize(bytes_) >= whole, "it has ", bytes_.size(), " of ", whole,
        " bytes and is cut short");
    check(
        header_.size > 0 && header_.rank >= 0 && header_.rank < header_.size &&
            header_.names_used > 0 && header_.names_used <= kNamesBytes &&
            header_.reason <= Reason::ended,
        "its header is damaged");
  }

  const Header& header() const { return header_; }

  /// Returns the entries that were complete, in order.
  std::vector<Entry> entries() const {
    std::vector<Entry> found;
    for (int64_t i = 0; i < header_.entries; ++i) {
      Entry entry;
      std::memcpy(
          &entry,
          bytes_.data() + kHeaderBytes + kNamesBytes + i * static_cast<int64_t>(sizeof(Entry)),
          sizeof(Entry));
      if (entry.number == 0) continue;  // not written, or not completely
      check(
          (entry.number - 1) % static_cast<uint64_t>(header_.entries) == static_cast<uint64_t>(i) &&
              entry.type != Type::none && entry.type <= kLastType && entry.state <= State::failed &&
              entry.name < kNamesBytes,
          "entry ", i, " is damaged");
      found.push_back(entry);
    }
    std::sort(found.begin(), found.end(), [](const Entry& one, const Entry& other) {
      return one.number < other.number;
    });
    return found;
  }

  std::string name(uint32_t place) const {
    const char* begin = bytes_.data() + kHeaderBytes + place;
    return {begin, strnlen(begin, kNamesBytes - place)};
  }

  /// Returns seconds since 1970; 0 for a moment that has not been.
  double seconds(int64_t moment) const {
    if (moment == 0) return 0;
    return static_cast<double>(header_.wall_clock + (moment - header_.steady_clock)) * 1e-9;
  }

 private:
  template <class... Words>
  void check(bool is_so, const Words&... words) const {
    TORCH_CHECK_VALUE(
        is_so, "[flight] ", path_, ": ", words...,
        "; a file that a rank writes is always whole: copy it again");
  }

  std::string path_;
  std::vector<char> bytes_;
  Header header_;
};

/// The three parts of a communicator's name; see EngineCommunicator.
void split_name(FlightEntry& entry) {
  std::istringstream in(entry.name);
  std::string name, ranks;
  std::getline(in, name, '\t');
  std::getline(in, entry.axis, '\t');
  std::getline(in, ranks);
  entry.name = name;
  entry.ranks = parse_rank_list(ranks);
}

/// Returns the rank of a file named rank-N.ring.
std::optional<int64_t> rank_in(const std::string& name) {
  constexpr std::string_view kBegin = "rank-", kEnd = ".ring";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  int64_t rank = 0;
  const auto* end = name.data() + name.size() - kEnd.size();
  const auto parsed = std::from_chars(name.data() + kBegin.size(), end, rank);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return rank;
}

}  // namespace

FlightLog read_flight_log(const std::string& path) {
  const RingFile file(path);
  const auto& head = file.header();
  FlightLog log;
  log.path = path;
  log.run = head.run;
  log.rank = head.rank;
  log.size = head.size;
  log.process = head.process;
  log.process_start = head.process_start;
  log.host.assign(head.host.data(), strnlen(head.host.data(), head.host.size()));
  log.backend.assign(head.backend.data(), strnlen(head.backend.data(), head.backend.size()));
  log.step = head.step;
  log.asked = file.seconds(head.asked);
  log.stopped = file.seconds(head.stopped);
  log.stop_signal = head.stop_signal;
  log.reason = head.reason;
  log.marked = file.seconds(head.marked);
  log.text.assign(head.text.data(), strnlen(head.text.data(), head.text.size()));
  log.alive = std::max(file.seconds(head.alive), log.marked);
  for (const auto& entry : file.entries()) {
    FlightEntry one{entry.type, entry.kind, entry.state, entry.stream,         entry.index,
                    entry.step, entry.line, entry.bytes, file.name(entry.name)};
    one.issued = file.seconds(entry.issued);
    one.started = file.seconds(entry.started);
    one.ended = file.seconds(entry.ended);
    if (one.type == Type::collective) split_name(one);
    log.alive = std::max({log.alive, one.issued, one.started, one.ended});
    log.entries.push_back(std::move(one));
  }
  return log;
}

std::vector<FlightLog> read_flight_logs(const std::string& folder) {
  namespace fs = std::filesystem;
  const auto inner = fs::path(folder) / "flight";
  const auto place = fs::is_directory(inner) ? inner : fs::path(folder);
  TORCH_CHECK_VALUE(fs::is_directory(place), "[flight] ", folder, " is not a folder");
  std::map<int64_t, std::string> paths;
  for (const auto& item : fs::directory_iterator(place)) {
    if (const auto rank = rank_in(item.path().filename())) paths[*rank] = item.path();
  }
  TORCH_CHECK_VALUE(
      !paths.empty(), "[flight] ", place.string(),
      " has no files rank-<number>.ring: give the folder of a run (train.out) that had "
      "train.flight_recorder on");
  std::vector<FlightLog> logs;
  for (const auto& [rank, path] : paths) {
    auto log = read_flight_log(path);
    TORCH_CHECK_VALUE(
        log.rank == rank, "[flight] ", path, " is the file of rank ", log.rank,
        ": give it its own name again");
    if (!logs.empty()) {
      TORCH_CHECK_VALUE(
          log.run == logs.front().run && log.size == logs.front().size, "[flight] ", path,
          " is of another run than ", logs.front().path, ": keep the files of one run in a folder");
    }
    logs.push_back(std::move(log));
  }
  return logs;
}

}  // namespace sherd
