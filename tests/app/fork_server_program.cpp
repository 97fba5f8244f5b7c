// SPDX-License-Identifier: Apache-2.0
// `sherd` for tests that run it often: to load libtorch takes longer than most commands. As
// `fork_server_program --serve SOCKET` it runs each command line that arrives on the socket in a
// process of its own, forked from this one, in which everything is loaded and nothing has begun.
// With other arguments it is `sherd`, which is what ranks that such a command starts need.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "command_line.h"

namespace {

constexpr size_t kLongest = 1 << 16;  // bytes of a message

/// A message is the working folder and the words, each with a zero byte at its end. With it come
/// the descriptors that are to be standard output and standard error.
struct Request {
  std::vector<std::string> words;
  std::array<int, 2> outputs{-1, -1};
};

/// Returns false when the other end is closed.
bool receive(int socket, Request& request) {
  std::vector<char> text(kLongest);
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(request.outputs))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (size <= 0) return false;
  const auto* header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_len != CMSG_LEN(sizeof(request.outputs))) return false;
  std::memcpy(request.outputs.data(), CMSG_DATA(header), sizeof(request.outputs));
  for (const char* word = text.data(); word < text.data() + size; word += std::strlen(word) + 1) {
    request.words.emplace_back(word);
  }
  return true;
}

[[noreturn]] void run(const Request& request, const char* program) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that runs into its limit ends the server
  if (chdir(request.words[0].c_str()) != 0 || dup2(request.outputs[0], STDOUT_FILENO) < 0 ||
      dup2(request.outputs[1], STDERR_FILENO) < 0) {
    std::perror("fork_server_program");
    _exit(127);
  }
  std::vector<char*> arguments{const_cast<char*>(program)};
  for (size_t i = 1; i < request.words.size(); ++i) {
    arguments.push_back(const_cast<char*>(request.words[i].c_str()));
  }
  arguments.push_back(nullptr);
  const int code =
      sherd::app::run_command_line(static_cast<int>(arguments.size()) - 1, arguments.data());
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);  // torch unregisters its operators at an exit, for as long as it loads
}

/// Answers each request with the status of its process.
int serve(int socket, const char* program) {
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  for (;;) {
    Request request;
    if (!receive(socket, request)) return 0;
    const pid_t child = fork();
    if (child == 0) run(request, program);
    for (const int output : request.outputs) close(output);
    int status = 127 << 8;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (send(socket, &status, sizeof(status), 0) < 0) return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--serve") == 0) return serve(std::atoi(argv[2]), argv[0]);
  return sherd::app::run_command_line(argc, argv);
}
