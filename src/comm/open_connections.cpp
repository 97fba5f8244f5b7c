// SPDX-License-Identifier: Apache-2.0
#include "comm/open_connections.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <vector>

namespace sherd {
namespace {

struct OpenConnections {
  std::mutex mutex;
  pid_t process = getpid();
  std::vector<std::weak_ptr<Connection>> connections;
};

/// Never destroyed: exit() may run while static objects are being destroyed.
OpenConnections& open_connections() {
  static auto& open = *[] {
    // A process that calls exit() without closing its worlds: the handler runs before what was
    // there when it was registered is torn down.
    std::atexit([] {
      if (getpid() == open_connections().process) leave_all();
    });
    return new OpenConnections();
  }();
  return open;
}

}  // namespace

void leave_at_exit(const std::shared_ptr<Connection>& connection) {
  auto& open = open_connections();
  const std::lock_guard lock(open.mutex);
  std::erase_if(open.connections, [](const auto& old) { return old.expired(); });
  open.connections.push_back(connection);
}

void leave_all() noexcept {
  auto& open = open_connections();
  std::vector<std::weak_ptr<Connection>> connections;
  {
    const std::lock_guard lock(open.mutex);
    connections = open.connections;
  }
  for (auto each = connections.rbegin(); each != connections.rend(); ++each) {
    if (const auto connection = each->lock()) connection->leave();
  }
}

}  // namespace sherd
