// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/flight_ring.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <new>

#include "comm/flight/process_start.h"
#include "comm/wait_time.h"

namespace sherd {
namespace {

using namespace flight;

/// May be called in a signal handler.
int64_t clock_of(clockid_t which) noexcept {
  struct timespec now {};
  clock_gettime(which, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}
int64_t steady_now() noexcept {
  return clock_of(CLOCK_MONOTONIC);  // that of std::chrono::steady_clock
}

/// Other threads, and the reader of the file, may look at it at any time.
template <class T>
void put(T& place, T value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<T>(place).store(value, order);
}
template <class T>
T get(T& place, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref<T>(place).load(order);
}

template <size_t N>
void copy_text(const std::string& from, std::array<char, N>& to) {
  const size_t length = std::min(from.size(), N - 1);
  std::memcpy(to.data(), from.data(), length);
  to[length] = 0;
}

/// Maps a new file of so many bytes.
char* map_file(const std::string& path, int64_t bytes) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  TORCH_CHECK(
      file >= 0, "[flight] ", path, " can't be created: ", std::strerror(errno),
      "; check train.out, or set train.flight_recorder = 0");
  // All of it now: a disk that is full later would end the process at a write to the memory.
  const int error = posix_fallocate(file, 0, bytes);
  void* data = MAP_FAILED;
  if (error == 0)
    data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int map_error = errno;
  ::close(file);
  if (data == MAP_FAILED) unlink(path.c_str());
  TORCH_CHECK(
      data != MAP_FAILED, "[flight] ", path, " of ", bytes,
      " bytes can't be written: ", std::strerror(error != 0 ? error : map_error),
      "; check the disk, or set train.flight_recorder = 0");
  return static_cast<char*>(data);
}

void on_usr2(int) {
  FlightRing::note_asked();
}

}  // namespace

std::atomic<FlightRing*> FlightRing::current_{nullptr};

void FlightRing::open(const Options& options) {
  TORCH_CHECK_VALUE(options.entries > 0, "[flight] a ring of ", options.entries, " entries");
  const int64_t bytes =
      kHeaderBytes + kNamesBytes + options.entries * static_cast<int64_t>(sizeof(Entry));
  // Never freed: see Note [The flight recorder].
  current_.store(new FlightRing(map_file(options.path, bytes), options), std::memory_order_release);
}

void FlightRing::close() noexcept {
  current_.store(nullptr, std::memory_order_release);
}

FlightRing::FlightRing(char* data, const Options& options)
    : data_(data), entries_(static_cast<uint64_t>(options.entries)) {
  auto& head = *new (data_) Header();
  head.version = kVersion;
  head.entry_bytes = sizeof(Entry);
  head.entries = options.entries;
  head.names_bytes = kNamesBytes;
  head.run = options.run;
  head.rank = options.rank;
  head.size = options.size;
  head.process = getpid();
  head.process_start = start_of_process(getpid());
  head.wall_clock = clock_of(CLOCK_REALTIME);
  head.steady_clock = steady_now();
  gethostname(head.host.data(), head.host.size() - 1);
  copy_text(options.backend, head.backend);
  head.names_used = 1;  // the empty name
  head.alive = head.steady_clock;
  step_begin_ = head.steady_clock;
  head.magic = kMagic;
}

Entry& FlightRing::entry_of(uint64_t number) {
  auto* entries = reinterpret_cast<Entry*>(data_ + kHeaderBytes + kNamesBytes);
  return entries[(number - 1) % entries_];
}

uint32_t FlightRing::name(std::string_view text) {
  const std::lock_guard lock(names_mutex_);
  const auto found = names_.find(text);
  if (found != names_.end()) return found->second;
  const auto begin = header().names_used;
  const auto end = begin + std::ssize(text) + 1;
  if (text.empty() || end > kNamesBytes) return 0;
  std::memcpy(data_ + kHeaderBytes + begin, text.data(), text.size());
  put(header().names_used, end, std::memory_order_release);
  names_.emplace(text, static_cast<uint32_t>(begin));
  return static_cast<uint32_t>(begin);
}

uint64_t FlightRing::add(const Event& event, State state) {
  const auto now = steady_now();
  const uint64_t number =
      std::atomic_ref(header().written).fetch_add(1, std::memory_order_relaxed) + 1;
  auto& entry = entry_of(number);
  put<uint64_t>(entry.number, 0);
  std::atomic_thread_fence(std::memory_order_release);
  put(entry.issued, now);
  put<int64_t>(entry.started, state == State::issued ? 0 : now);
  put<int64_t>(entry.ended, state == State::finished ? now : 0);
  put(entry.bytes, event.bytes);
  put(entry.name, event.name);
  put(entry.type, event.type);
  put(entry.kind, event.kind);
  put(entry.state, state);
  put(entry.stream, event.stream);
  put(entry.index, event.index);
  put(entry.step, static_cast<int32_t>(get(header().step)));
  put(entry.line, event.type == Type::collective ? event.line : section());
  put(entry.number, number, std::memory_order_release);
  return number;
}

void FlightRing::start(uint64_t number) {
  auto& entry = entry_of(number);
  if (number == 0 || get(entry.number, std::memory_order_acquire) != number) return;
  put(entry.started, steady_now());
  put(entry.state, State::started);
}

void FlightRing::end(uint64_t number, State state) {
  auto& entry = entry_of(number);
  if (number == 0 || get(entry.number, std::memory_order_acquire) != number) return;
  put(entry.ended, steady_now());
  put(entry.state, state);
}

void FlightRing::begin_section(std::string_view text, uint8_t kind, int64_t step) {
  step += steps_before_;
  if (get(header().step) != step) {
    step_begin_ = steady_now();
    waited_before_ = waited_nanoseconds();
  }
  put(header().step, step);
  section_.fetch_add(1, std::memory_order_relaxed);
  add({.type = Type::section, .kind = kind, .name = name(text)}, State::finished);
}

void FlightRing::set_steps_before(int64_t steps) {
  steps_before_ = steps;
}

void FlightRing::end_step() {
  const auto number =
      add({.type = Type::step, .bytes = waited_nanoseconds() - waited_before_}, State::finished);
  put(entry_of(number).started, step_begin_.load());
}

void FlightRing::beat() noexcept {
  put(header().alive, steady_now());
}

void FlightRing::mark(Reason reason, const std::string& text) noexcept {
  const std::lock_guard lock(mark_mutex_);
  auto& head = header();
  if (get(head.reason) >= reason) return;
  copy_text(text, head.text);
  put(head.marked, steady_now());
  put(head.reason, reason, std::memory_order_release);
}

void FlightRing::note_asked() noexcept {
  if (auto* ring = current()) put(ring->header().asked, steady_now());
}

void FlightRing::note_stop(int signal) noexcept {
  auto* ring = current();
  if (!ring || get(ring->header().stopped) != 0) return;
  put<int64_t>(ring->header().stop_signal, signal);
  put(ring->header().stopped, steady_now());
}

FlightSignal::FlightSignal() : before_(std::signal(SIGUSR2, on_usr2)) {}

FlightSignal::~FlightSignal() {
  std::signal(SIGUSR2, before_ == SIG_ERR ? SIG_DFL : before_);
}

}  // namespace sherd
