// SPDX-License-Identifier: Apache-2.0
#include "train/event_command.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "device/timing.h"

namespace sherd {
namespace {

constexpr size_t kMostWaiting = 1 << 20;  // bytes

double unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// In a process group of its own: the terminal's Ctrl-C is the run's, which then says so.
pid_t spawn_with_input(const std::string& command, int input) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const std::array<const char*, 4> words{"sh", "-c", command.c_str(), nullptr};
  pid_t process = -1;
  const int error = posix_spawn(
      &process, "/bin/sh", &actions, &attributes, const_cast<char* const*>(words.data()), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  TORCH_CHECK(
      error == 0, "[train] train.on_event = \"", command,
      "\" can't be started: ", std::strerror(error));
  return process;
}

}  // namespace

EventCommand::EventCommand(const std::string& command) {
  // A socket can be written to without a signal where its other end is closed.
  std::array<int, 2> ends{};
  TORCH_CHECK(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0,
      "[train] train.on_event: no socket: ", std::strerror(errno));
  socket_ = ends[0];
  process_ = spawn_with_input(command, ends[1]);
  close(ends[1]);
}

EventCommand::~EventCommand() {
  const auto begin = std::chrono::steady_clock::now();
  const auto patient = [&] { return seconds_since(begin) < kPatience; };
  while (!waiting_.empty() && patient()) {
    pollfd ready{socket_, POLLOUT, 0};
    poll(&ready, 1, 100);
    write_waiting();
  }
  close(socket_);
  int status = 0;
  while (waitpid(process_, &status, WNOHANG) == 0) {
    if (!patient()) {
      kill(-process_, SIGTERM);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void EventCommand::send(const std::string& name, const std::string& json) {
  nlohmann::ordered_json line{{"event", name}, {"time", unix_seconds()}};
  line.update(nlohmann::ordered_json::parse(json));
  const auto text = line.dump() + "\n";
  if (waiting_.size() + text.size() > kMostWaiting) {
    ++dropped_;
  } else {
    waiting_ += text;
  }
  write_waiting();
}

void EventCommand::write_waiting() {
  const auto size = ::send(socket_, waiting_.data(), waiting_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (size >= 0) {
    waiting_.erase(0, static_cast<size_t>(size));
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    waiting_.clear();  // the command has ended
  }
}

}  // namespace sherd
