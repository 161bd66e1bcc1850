#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <sys/socket.h>

#include "cleave/comm/bootstrap/rendezvous_dir.h"

namespace cleave {

/// When a wait ends.
using Deadline = std::chrono::steady_clock::time_point;

/// The moment that is this many seconds away.
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
  [[nodiscard]] std::string host() const;  ///< in digits; "" of the default
  [[nodiscard]] std::string text() const;  ///< host and port: "10.0.0.1:29500", "[::1]:29500"

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// The address of a name or of an address in digits (which asks no name server); nothing while the
/// name is unknown.
std::optional<HostAddress> find_address(const std::string& name, int port);
/// Whether a text is an address in digits.
bool is_in_digits(const std::string& name);
/// All addresses of this host of the same kind (IPv4 or IPv6), port 0.
HostAddress any_address(const HostAddress& like);

/// The two ends of a connection.
HostAddress own_address(int socket);
HostAddress peer_address(int socket);

/// A socket that listens there; not open when the port is taken. Throws Error(kIo), also when the
/// address is not one of this host.
Descriptor listen_at(const HostAddress& address);
/// A connection, tried again until somebody listens there; not open when the time is over.
/// `problem` then says why.
Descriptor connect_until(const HostAddress& address, Deadline deadline, std::string& problem);
/// The next connection; not open when there is none now.
Descriptor accept_from(int listener);

/// All of the bytes, over a socket that does not block; false when the connection or the time ends.
bool receive_all(int socket, std::span<std::byte> bytes, Deadline deadline);
bool send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);

}  // namespace cleave
