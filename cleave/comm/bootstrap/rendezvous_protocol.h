#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/membership.h"
#include "cleave/comm/net/tcp.h"
#include "cleave/comm/shm/segment_layout.h"

namespace cleave::inline comm {

// The messages of the rendezvous over TCP. All ranks are the same build and have the same byte
// order, which rank 0 checks by the magic numbers.

/// A secret. Its memory is wiped when it is destroyed. It is copied and compared byte by byte:
/// vector registers would keep it, and a later call may save them on the stack.
struct Token : std::array<std::byte, 32> {
  Token() : std::array<std::byte, 32>{} {}
  Token(const Token& other) : std::array<std::byte, 32>{} { *this = other; }
  Token& operator=(const Token& other) {
    for (size_t i = 0; i < size(); ++i) (*this)[i] = other.byte(i);
    return *this;
  }
  /// Byte `i`, by a load of one byte.
  [[nodiscard]] std::byte byte(size_t i) const {
    return static_cast<const volatile std::byte*>(data())[i];
  }
  /// Overwrites it with zeros.
  void wipe();
  ~Token() { wipe(); }
};

/// Whether two tokens are equal. Compares all bytes, so that the time reveals nothing about them.
bool is_same(const Token& a, const Token& b);
/// The job's token: the first bytes of a file that only its owner may read; zeros without one.
/// Throws Error(kIo) or Error(kUsage) if it cannot be used.
Token read_token(const std::string& path);

/// The first message on every connection.
struct AuthRequest {
  uint64_t magic;
  Token token;
};

/// Where a rank accepts connections.
struct Endpoint {
  uint32_t size = 0;  ///< of the address; 0: on the host of rank 0, at that port
  int32_t port = 0;   ///< 0: it accepts none, and needs no endpoints of others
  std::byte address[28]{};
};

/// The second message of a rank to rank 0.
struct JoinRequest {
  RankInfo info;
  uint64_t job = 0;  ///< job_hash()
  Endpoint endpoint;
  HostPlace place{};
};

/// An id of this host. It also differs between hosts whose ranks see the same files: network
/// namespaces of one machine, or a runtime folder on a shared disk.
std::string host_id(const Environment& environment);
/// A rank's host.
HostPlace place_of(const Environment& environment);

/// A hash of the launcher's job id.
uint64_t job_hash(const Environment& environment);

/// An outcome, sent by rank 0 and to rank 0: code 0 is success.
struct Status {
  uint64_t magic;
  int32_t code;
  char text[kAbortTextBytes];
};

/// A Status without and with an error, and its text.
Status ok_status();
Status error_status(Code code, std::string_view text);
std::string text_of(const Status& status);

/// How long a new connection may take to authenticate and join.
inline constexpr std::chrono::seconds kAuthTimeout{5};
/// How much longer than rank 0's timeout the other ranks wait for its outcome.
inline constexpr double kOutcomeGraceS = 2;

/// The bytes of a message.
template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace cleave::inline comm
