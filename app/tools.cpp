// SPDX-License-Identifier: Apache-2.0
#include "tools.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <filesystem>

namespace sherd::app {
namespace {

/// The first of two paths that exists, both relative to this program's folder (an absolute one
/// stays as it is); if neither does, `otherwise`.
std::string first_of(
    const std::string& built, const std::string& installed, const std::string& otherwise) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& path : {built, installed}) {
    const auto full = (here / path).lexically_normal().string();
    if (access(full.c_str(), R_OK) == 0) return full;
  }
  return otherwise;
}

}  // namespace

std::string mpirun() {
  const std::string built = SHERD_MPIRUN;
  TORCH_CHECK(
      !built.empty(),
      "[launch] this build has no MPI, so it can't start ranks by itself: start it with torchrun, "
      "or build with MPI");
  return first_of(built, "mpirun", "mpirun");
}

std::string python() {
  return first_of(SHERD_PYTHON, "python3", "python3");
}

std::string import_script() {
  return first_of(SHERD_IMPORT, "../share/sherd/import_checkpoint.py", "app/import_checkpoint.py");
}

std::string chat_script() {
  return first_of(SHERD_CHAT, "../share/sherd/render_chat.py", "app/render_chat.py");
}

std::string peer_script(const std::string& name) {
  return first_of(SHERD_PEERS "/" + name, "../share/sherd/peers/" + name, "bench/peers/" + name);
}

}  // namespace sherd::app
