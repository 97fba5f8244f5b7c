// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>

#include "files/crc32c.h"

namespace sherd {
namespace {

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

// Protocol Buffers: a field is its number and wire type, then the value.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string whole(uint64_t field, int64_t value) {
  return varint(field << 3 | 0) + varint(static_cast<uint64_t>(value));
}

std::string bytes(uint64_t field, std::string_view value) {
  return varint(field << 3 | 2) + varint(value.size()) + std::string(value);
}

std::string real(uint64_t field, double value) {
  return varint(field << 3 | 1) + little_endian(std::bit_cast<uint64_t>(value));
}

std::string real(uint64_t field, float value) {
  return varint(field << 3 | 5) + little_endian(std::bit_cast<uint32_t>(value));
}

double now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// TensorBoard reads a folder's files in the order of their names: the oldest run first.
std::string file_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return "events.out.tfevents." + std::to_string(static_cast<int64_t>(now())) + "." + host.data() +
         "." + std::to_string(::getpid());
}

}  // namespace

std::string record_of(std::string_view event) {
  const auto masked = [](std::string_view data) {
    return little_endian(std::rotr(crc32c(data.data(), data.size()), 15) + 0xa282ead8u);
  };
  const auto length = little_endian<uint64_t>(event.size());
  return length + masked(length) + std::string(event) + masked(event);
}

std::string version_event(double seconds) {
  return real(1, seconds) + bytes(3, "brain.Event:2");
}

std::string start_event(double seconds, int64_t step) {
  constexpr int64_t kStart = 1;  // SessionLog.START
  return real(1, seconds) + whole(2, step) + bytes(7, whole(1, kStart));
}

std::string scalars_event(double seconds, int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes(1, bytes(1, tag) + real(2, static_cast<float>(value)));
  }
  return real(1, seconds) + whole(2, step) + bytes(5, summary);
}

// Appending: two runs of one second and process id, as in containers, must not erase each other.
EventFile::EventFile(const std::string& folder)
    : path_((std::filesystem::path(folder) / file_name()).string()),
      file_(path_, std::ios::binary | std::ios::app) {
  TORCH_CHECK(file_, "[train] ", path_, " can't be written: check train.out and the disk");
  write(version_event(now()));
}

void EventFile::add(int64_t step, const Scalars& scalars) {
  // Where an earlier run left events in the folder, TensorBoard then drops those from this step on.
  if (!started_) write(start_event(now(), step));
  started_ = true;
  write(scalars_event(now(), step, scalars));
}

void EventFile::add(const StepMetrics& metrics) {
  Scalars scalars{
      {"train/loss", metrics.loss},
      {"train/grad_norm", metrics.grad_norm},
      {"train/lr", metrics.lr},
      {"speed/step_seconds", metrics.step_seconds},
      {"speed/tokens_per_second", metrics.tokens_per_second},
      {"speed/tflops", metrics.tflops},
      {"memory/planned_bytes", static_cast<double>(metrics.planned_bytes)},
      {"memory/peak_bytes", static_cast<double>(metrics.peak_bytes)}};
  if (metrics.val_loss) scalars.emplace_back("validation/loss", *metrics.val_loss);
  add(metrics.step, scalars);
}

void EventFile::write(std::string_view event) {
  file_ << record_of(event) << std::flush;
  TORCH_CHECK(file_, "[train] ", path_, " can't be written: check the disk");
}

}  // namespace sherd
