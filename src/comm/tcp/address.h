// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>

#include "comm/tcp/descriptor.h"

namespace sherd {

/// An IPv4 or IPv6 address with a port.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int port() const;
  void set_port(int port);
  /// Returns the address in numbers, without the port.
  std::string text() const;
  /// Returns whether only this machine can reach it.
  bool is_loopback() const;
};

/// Parses an address in numbers. Throws c10::ValueError if it is none.
Address parse_address(const std::string& text, int port);

/// Returns the address at which this machine is to be reached. `interface`: the name of a network
/// interface or an address of this machine; if it is empty, the address from which packets to
/// `host` leave. Throws c10::ValueError if there is none.
Address own_address(const std::string& interface, const std::string& host);

/// Listens at the address, on a free port, which it writes into `address`. Throws c10::ValueError
/// if that is no address of this machine.
Descriptor listen_at(Address& address);

/// Returns a socket bound to the host's address, and that address, for a server that others reach
/// under the host's name. Nothing if it is no address of this machine, or the port is taken; nor if
/// a name (other than localhost) leads to a loopback address, which is so on this machine alone,
/// unless all who connect are on it.
std::optional<std::pair<Descriptor, Address>> bind_to_host(
    const std::string& host, int port, bool one_machine);

/// Starts to connect, and returns at once; the socket can be written to when that is done.
Descriptor begin_connecting(const Address& address);
/// Sets the options of a connection, at either end.
void set_connection_options(const Descriptor& socket);

}  // namespace sherd
