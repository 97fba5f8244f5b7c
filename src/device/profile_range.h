// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

// Stretches of host time with a name, for tools that record NVTX ranges. Where no tool is attached,
// or Sherd was built without NVTX's header, they do nothing.

/// From begin() to end(), which need not nest with others.
class ProfileRange {
 public:
  ProfileRange() = default;
  ~ProfileRange() { end(); }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

  /// Ends what was begun before. The name is copied by who records it.
  void begin(const std::string& name);
  void end() noexcept;

 private:
  bool open_ = false;
  uint64_t number_ = 0;
};

/// As long as it lives: what the thread enqueues meanwhile is shown under its name.
class ProfileScope {
 public:
  explicit ProfileScope(const std::string& name);
  ~ProfileScope();
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;
};

}  // namespace sherd
