#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <sys/socket.h>

#include "cleave/comm/bootstrap/rendezvous_dir.h"

namespace cleave::inline comm {

/// The time at which a wait ends.
using Deadline = std::chrono::steady_clock::time_point;

/// The time this many seconds from now.
Deadline deadline_in(double seconds);

/// An IPv4 or IPv6 address with a port.
class HostAddress {
 public:
  HostAddress() = default;
  HostAddress(const sockaddr* raw, socklen_t size);

  [[nodiscard]] const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t size() const { return size_; }
  [[nodiscard]] bool is_loopback() const;
  [[nodiscard]] int port() const;          ///< 0 to 65535, as set_port() sets it
  void set_port(int port);                 ///< 0 lets the system choose
  [[nodiscard]] std::string host() const;  ///< numeric; "" if default-constructed
  [[nodiscard]] std::string text() const;  ///< host and port: "10.0.0.1:29500", "[::1]:29500"

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// Resolves a host name or a numeric address (without a name server); nullopt if the name is
/// unknown.
std::optional<HostAddress> find_address(const std::string& name, int port);
/// Whether `name` is a numeric address.
bool is_numeric_address(const std::string& name);
/// The wildcard address (all interfaces) of the same family (IPv4 or IPv6), port 0.
HostAddress any_address(const HostAddress& like);

/// The local and the remote address of a connection.
HostAddress own_address(int socket);
HostAddress peer_address(int socket);

/// A listening socket; not open if the port is taken. Throws Error(kIo), also if the address is not
/// one of this host.
Descriptor listen_at(const HostAddress& address);
/// Connects; retries until the deadline. At the deadline the result is not open, and `problem` is
/// the reason.
Descriptor connect_until(const HostAddress& address, Deadline deadline, std::string& problem);
/// The next connection; not open if none is waiting.
Descriptor accept_from(int listener);

/// Receives or sends all bytes over a non-blocking socket; false if the connection ends or the
/// deadline passes.
bool receive_all(int socket, std::span<std::byte> bytes, Deadline deadline);
bool send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);

}  // namespace cleave::inline comm
