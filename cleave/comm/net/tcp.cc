#include "cleave/comm/net/tcp.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <thread>

#include "cleave/base/error.h"

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetry{20};
// All ranks of a large job may connect at the same time; the kernel may allow fewer.
constexpr int kBacklog = 4096;
// A lost connection request is retried sooner than the kernel would.
constexpr std::chrono::milliseconds kAttempt{2000};

std::optional<HostAddress> look_up(const std::string& name, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0 || list == nullptr) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(list, freeaddrinfo);
  // Prefer IPv4: a host with both address families may listen only on IPv4.
  const addrinfo* best = list;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    if (item->ai_family != AF_INET) continue;
    best = item;
    break;
  }
  HostAddress address(best->ai_addr, best->ai_addrlen);
  address.set_port(port);
  return address;
}

/// Waits for any of `events`; false at the deadline.
bool wait_for(int socket, int16_t events, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{socket, events, 0};
    const int limit = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
    const int found = poll(&polled, 1, limit);
    if (found > 0) return true;
    if (left <= 0) return false;
  }
}

/// One connection attempt; returns its errno, 0 on success.
int try_connect(int socket, const HostAddress& address, Deadline deadline) {
  if (connect(socket, address.raw(), address.size()) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket, POLLOUT, std::min(deadline, Clock::now() + kAttempt))) return ETIMEDOUT;
  int problem = 0;
  socklen_t size = sizeof(problem);
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &problem, &size);
  return problem;
}

Descriptor open_socket(const HostAddress& address) {
  Descriptor fd(
      socket(address.raw()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  CLEAVE_CHECK(fd.is_open(), Code::kIo, "socket for ", address.text(), ": ", std::strerror(errno));
  return fd;
}

}  // namespace

Deadline deadline_in(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

HostAddress::HostAddress(const sockaddr* raw, socklen_t size)
    : size_(std::min<socklen_t>(size, sizeof(storage_))) {
  std::memcpy(&storage_, raw, size_);
}

bool HostAddress::is_loopback() const {
  const std::string digits = host();
  return digits == "::1" || digits.compare(0, 4, "127.") == 0 ||
         digits.compare(0, 11, "::ffff:127.") == 0;
}

int HostAddress::port() const {
  // The port has the same offset in IPv4 and IPv6 addresses.
  sockaddr_in address{};
  std::memcpy(&address, &storage_, sizeof(address));
  return ntohs(address.sin_port);
}

void HostAddress::set_port(int port) {
  sockaddr_in address{};
  std::memcpy(&address, &storage_, sizeof(address));
  address.sin_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&storage_, &address, sizeof(address));
}

std::string HostAddress::host() const {
  char digits[NI_MAXHOST] = {};
  if (size_ == 0 ||
      getnameinfo(raw(), size_, digits, sizeof(digits), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return digits;
}

std::string HostAddress::text() const {
  const std::string digits = host();
  return digits.find(':') == std::string::npos ? str(digits, ":", port())
                                               : str("[", digits, "]:", port());
}

std::optional<HostAddress> find_address(const std::string& name, int port) {
  if (const auto address = look_up(name, port, AI_NUMERICHOST)) return address;
  return look_up(name, port, 0);
}

bool is_numeric_address(const std::string& name) {
  return look_up(name, 0, AI_NUMERICHOST).has_value();
}

HostAddress any_address(const HostAddress& like) {
  if (like.raw()->sa_family == AF_INET6) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    return {reinterpret_cast<const sockaddr*>(&any), sizeof(any)};
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  return {reinterpret_cast<const sockaddr*>(&any), sizeof(any)};
}

HostAddress own_address(int socket) {
  sockaddr_storage raw{};
  socklen_t size = sizeof(raw);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&raw), &size) != 0) return {};
  return {reinterpret_cast<const sockaddr*>(&raw), size};
}

HostAddress peer_address(int socket) {
  sockaddr_storage raw{};
  socklen_t size = sizeof(raw);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&raw), &size) != 0) return {};
  return {reinterpret_cast<const sockaddr*>(&raw), size};
}

Descriptor listen_at(const HostAddress& address) {
  Descriptor fd = open_socket(address);
  // With SO_REUSEADDR a port in TIME_WAIT can be bound, but not one with a listener.
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool listens =
      bind(fd.get(), address.raw(), address.size()) == 0 && listen(fd.get(), kBacklog) == 0;
  if (!listens && errno == EADDRINUSE) return Descriptor();
  CLEAVE_CHECK(listens, Code::kIo, "listening at ", address.text(), ": ", std::strerror(errno),
               "; MASTER_ADDR must be an address of the host of rank 0");
  return fd;
}

Descriptor connect_until(const HostAddress& address, Deadline deadline, std::string& problem) {
  while (true) {
    Descriptor fd = open_socket(address);
    const int failed = try_connect(fd.get(), address, deadline);
    // A connection to a free local port may connect to itself (TCP simultaneous open).
    const bool is_self = failed == 0 && own_address(fd.get()).text() == address.text();
    if (failed == 0 && !is_self) return fd;
    problem = std::strerror(is_self ? ECONNREFUSED : failed);
    if (Clock::now() + kRetry >= deadline) return Descriptor();
    std::this_thread::sleep_for(kRetry);
  }
}

Descriptor accept_from(int listener) {
  return Descriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

bool receive_all(int socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
      continue;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (!wait_for(socket, POLLIN, deadline)) return false;
  }
  return true;
}

bool send_all(int socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return false;
    if (!wait_for(socket, POLLOUT, deadline)) return false;
  }
  return true;
}

}  // namespace cleave::inline comm
