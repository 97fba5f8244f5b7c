// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/engine/transport.h"
#include "comm/tcp/descriptor.h"

namespace sherd {

/// Returns a transport over connections that exist: `sockets[k]` leads to rank k and does not
/// block; this rank's own is empty. `hosts[k]`: name of the host of rank k; none if all ranks run
/// on one. See Note [How a message travels].
std::unique_ptr<Transport> tcp_transport(
    int64_t rank, std::vector<Descriptor> sockets, std::vector<std::string> hosts = {});

}  // namespace sherd
