// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/address.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

namespace sherd {
namespace {

constexpr const char* kInterfaceRemedy =
    "set SHERD_INTERFACE (or WorldOptions::interface) to a network interface of this machine that "
    "the other machines reach";

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Returns the addresses of a host; none if it is unknown.
Found look_up(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

Address copy_of(const sockaddr* from, socklen_t length) {
  Address address;
  std::memcpy(&address.storage, from, length);
  address.length = length;
  return address;
}

std::optional<Address> numeric(const std::string& text) {
  const auto found = look_up(text, AI_NUMERICHOST);
  if (!found) return std::nullopt;
  return copy_of(found->ai_addr, found->ai_addrlen);
}

/// Link-local addresses of IPv6 mean something else on each machine.
bool is_usable(const sockaddr* address) {
  if (address == nullptr) return false;
  if (address->sa_family == AF_INET) return true;
  return address->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

/// Returns the interface's address, IPv4 if it has one.
Address address_of_interface(const std::string& name) {
  ifaddrs* first = nullptr;
  TORCH_CHECK(getifaddrs(&first) == 0, "[comm.tcp] getifaddrs failed: ", std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, freeifaddrs);
  std::optional<Address> chosen;
  std::vector<std::string> known;
  for (const auto* each = first; each != nullptr; each = each->ifa_next) {
    if (!is_usable(each->ifa_addr)) continue;
    if (known.empty() || known.back() != each->ifa_name) known.emplace_back(each->ifa_name);
    const bool is_ipv4 = each->ifa_addr->sa_family == AF_INET;
    if (name != each->ifa_name || (chosen && !is_ipv4)) continue;
    if (chosen && chosen->storage.ss_family == AF_INET) continue;
    chosen = copy_of(each->ifa_addr, is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
  TORCH_CHECK_VALUE(
      chosen, "[comm.tcp] this machine has no network interface '", name,
      "' with an address; it has ", c10::Join(", ", known));
  return *chosen;
}

/// Asks the routing table: connecting a UDP socket sends nothing.
Address address_towards(const std::string& host) {
  const auto found = look_up(host, 0);
  for (const auto* each = found.get(); each != nullptr; each = each->ai_next) {
    auto target = copy_of(each->ai_addr, each->ai_addrlen);
    target.set_port(9);
    const Descriptor probe(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe || connect(probe.number(), target.get(), target.length) != 0) continue;
    Address address;
    address.length = sizeof(address.storage);
    if (getsockname(probe.number(), address.get(), &address.length) == 0) return address;
  }
  TORCH_CHECK_VALUE(
      false, "[comm.tcp] no address of this machine leads to '", host,
      "', where the ranks' store is: ", kInterfaceRemedy);
}

}  // namespace

int Address::port() const {
  return ntohs(
      storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void Address::set_port(int port) {
  const auto number = htons(static_cast<uint16_t>(port));
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = number;
  }
}

std::string Address::text() const {
  std::array<char, NI_MAXHOST> host{};
  const int code = getnameinfo(get(), length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? host.data() : "?";
}

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == 127;
}

Address parse_address(const std::string& text, int port) {
  auto address = numeric(text);
  TORCH_CHECK_VALUE(address, "[comm.tcp] '", text, "' is no address in numbers");
  address->set_port(port);
  return *address;
}

Address own_address(const std::string& interface, const std::string& host) {
  if (interface.empty()) return address_towards(host);
  if (const auto address = numeric(interface)) return *address;
  return address_of_interface(interface);
}

Descriptor listen_at(Address& address) {
  constexpr int kBacklog = 4096;  // all ranks may connect at once; the system may allow fewer
  address.set_port(0);
  Descriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  TORCH_CHECK(socket, "[comm.tcp] can't open a socket: ", std::strerror(errno));
  TORCH_CHECK_VALUE(
      bind(socket.number(), address.get(), address.length) == 0, "[comm.tcp] can't listen at ",
      address.text(), ": ", std::strerror(errno), "; ", kInterfaceRemedy);
  address.length = sizeof(address.storage);
  TORCH_CHECK(
      listen(socket.number(), kBacklog) == 0 &&
          getsockname(socket.number(), address.get(), &address.length) == 0,
      "[comm.tcp] can't listen at ", address.text(), ": ", std::strerror(errno));
  return socket;
}

std::optional<std::pair<Descriptor, Address>> bind_to_host(
    const std::string& host, int port, bool one_machine) {
  const bool literal = host == "localhost" || numeric(host);
  const auto found = look_up(host, 0);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const auto* each = found.get(); each != nullptr; each = each->ai_next) {
      if (each->ai_family != family) continue;
      auto address = copy_of(each->ai_addr, each->ai_addrlen);
      if (address.is_loopback() && !literal && !one_machine) return std::nullopt;
      address.set_port(port);
      Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
      const int on = 1;  // connections of a run before may still be closing
      setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (bind(socket.number(), address.get(), address.length) != 0) continue;
      address.length = sizeof(address.storage);
      if (getsockname(socket.number(), address.get(), &address.length) != 0) continue;
      return std::pair(std::move(socket), address);
    }
  }
  return std::nullopt;
}

Descriptor begin_connecting(const Address& address) {
  Descriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  TORCH_CHECK(socket, "[comm.tcp] can't open a socket: ", std::strerror(errno));
  const int code = connect(socket.number(), address.get(), address.length);
  TORCH_CHECK(
      code == 0 || errno == EINPROGRESS || errno == EINTR, "[comm.tcp] can't connect to ",
      address.text(), ":", address.port(), ": ", std::strerror(errno));
  return socket;
}

void set_connection_options(const Descriptor& socket) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket.number(), level, name, &value, sizeof(value));
  };
  // Small messages leave at once, instead of waiting for more bytes or an acknowledgement.
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A machine that vanishes sends no farewell: after two quiet minutes the connection breaks.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
  // While bytes are not acknowledged there are no keepalives: the same limit for those.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 120'000);  // milliseconds
}

}  // namespace sherd
