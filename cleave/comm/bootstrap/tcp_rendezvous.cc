#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <poll.h>
#include <thread>

#include "cleave/base/log.h"
#include "cleave/base/resource_limits.h"
#include "cleave/comm/bootstrap/rendezvous.h"
#include "cleave/comm/bootstrap/rendezvous_client.h"
#include "cleave/comm/bootstrap/rendezvous_server.h"

// Rendezvous of ranks on several hosts:
// 1. Rank 0 listens at MASTER_ADDR:MASTER_PORT. Each other rank connects, opens a listening port of
//    its own on the interface that it connected from, and sends an AuthRequest (the token) and a
//    JoinRequest. This connection stays open: it becomes the one between the two ranks.
// 2. Rank 0 drops peers with a wrong token and checks the JoinRequests. It reports a conflict to
//    all ranks that have joined.
// 3. When all ranks have joined, and those of each host are as many as they expect, rank 0 sends
//    each a random key and the endpoints of the ranks below it. Each rank connects to these, sends
//    the key and its rank, and accepts connections from the ranks above it.
// 4. Each rank reports to rank 0 that it has all its connections, or why not. Rank 0 sends the
//    outcome to all, so no rank starts work after another one has given up.

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Whether the name resolves to a loopback address here: on other hosts it often resolves to
/// another.
bool is_name_of_this_host(const HostAddress& address, const std::string& master_addr) {
  return address.is_loopback() && master_addr != "localhost" && !is_numeric_address(master_addr);
}

/// A socket that listens at this address and port; on all interfaces if the address is a loopback
/// address that was given by name.
Descriptor listen_on_interface(HostAddress address, const std::string& master_addr) {
  const int port = address.port();
  if (is_name_of_this_host(address, master_addr)) address = any_address(address);
  address.set_port(port);
  return listen_at(address);
}

Endpoint endpoint_of(int listener) {
  const HostAddress address = own_address(listener);
  Endpoint endpoint{};
  endpoint.port = address.port();
  const bool is_any = address.host() == "0.0.0.0" || address.host() == "::";
  if (is_any || address.size() > sizeof(endpoint.address)) return endpoint;
  endpoint.size = address.size();
  std::memcpy(endpoint.address, address.raw(), address.size());
  return endpoint;
}

HostAddress address_of(const Endpoint& endpoint, int socket_of_rank_zero) {
  HostAddress address = peer_address(socket_of_rank_zero);
  if (endpoint.size != 0) {
    sockaddr_storage raw{};
    const auto size = std::min<socklen_t>(endpoint.size, sizeof(endpoint.address));
    std::memcpy(&raw, endpoint.address, size);
    address = HostAddress(reinterpret_cast<const sockaddr*>(&raw), size);
  }
  address.set_port(endpoint.port);
  return address;
}

/// The address of rank 0. Retries until the deadline: a name server may not know the name yet.
HostAddress master_address(const Environment& environment, Deadline deadline) {
  CLEAVE_CHECK(!environment.master_addr.empty() && environment.master_port > 0, Code::kUsage,
               "ranks on several hosts (", environment.local_world_size, " of ",
               environment.world_size,
               " here) need MASTER_ADDR, a name or address of rank 0's host, "
               "and MASTER_PORT; mpirun passes them on with -x MASTER_ADDR=... -x MASTER_PORT=...");
  while (true) {
    const auto address = find_address(environment.master_addr, environment.master_port);
    if (address) return *address;
    CLEAVE_CHECK(Clock::now() < deadline, Code::kTimeout, "MASTER_ADDR=", environment.master_addr,
                 " is not known on this host; give a numeric address");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

/// Connects a rank other than 0 to all ranks.
class Mesh {
 public:
  Mesh(const Environment& environment, const HostAddress& address, double timeout_s)
      : environment_(environment),
        zero_(environment, address, timeout_s),
        timeout_s_(timeout_s),
        sockets_(static_cast<size_t>(environment.world_size)) {
    reserve_descriptors(environment.world_size, str("a rank of a job of ", environment.world_size,
                                                    " ranks on several hosts"));
  }

  std::vector<Descriptor> join() {
    zero_.connect();
    HostAddress interface = own_address(zero_.socket().get());
    interface.set_port(0);
    listener_ = listen_on_interface(interface, environment_.master_addr);
    zero_.join(endpoint_of(listener_.get()));
    zero_.receive_outcome();
    zero_.report(connect_to_all(zero_.receive_table()));
    zero_.receive_outcome();
    sockets_[0] = zero_.take_socket();
    return std::move(sockets_);
  }

 private:
  /// Connects to all ranks; returns why it could not, if it could not.
  std::optional<Error> connect_to_all(const RendezvousClient::Table& table) {
    try {
      for (int rank = 1; rank < environment_.rank; ++rank) {
        const Endpoint& endpoint = table.endpoints[static_cast<size_t>(rank)];
        connect_to(rank, table.key, address_of(endpoint, zero_.socket().get()));
      }
      accept_higher_ranks(table.key);
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  }

  void connect_to(int rank, const Token& key, const HostAddress& address) {
    std::string problem;
    Descriptor socket = connect_until(address, zero_.deadline(), problem);
    CLEAVE_CHECK(socket.is_open(), Code::kTimeout, "timeout of ", timeout_s_, " s: rank ",
                 environment_.rank, " cannot reach rank ", rank, " at ", address.text(), " (",
                 problem, "); let the hosts of a job connect to each other on all ports");
    const AuthRequest auth{kJobMagic, key};
    const int32_t self = environment_.rank;
    const bool is_sent = send_all(socket.get(), bytes_of(auth), zero_.deadline()) &&
                         send_all(socket.get(), bytes_of(self), zero_.deadline());
    CLEAVE_CHECK(is_sent, Code::kPeer, "rank ", rank, " at ", address.text(),
                 " ended during rendezvous");
    sockets_[static_cast<size_t>(rank)] = std::move(socket);
  }

  void accept_higher_ranks(const Token& key) {
    while (true) {
      int missing = environment_.rank + 1;
      while (missing < environment_.world_size &&
             sockets_[static_cast<size_t>(missing)].is_open()) {
        ++missing;
      }
      if (missing == environment_.world_size) return;
      CLEAVE_CHECK(Clock::now() < zero_.deadline(), Code::kTimeout, "timeout of ", timeout_s_,
                   " s: rank ", missing, " has not connected to rank ", environment_.rank, " at ",
                   own_address(listener_.get()).text(),
                   "; let the hosts of a job connect to each other on all ports");
      pollfd polled[] = {{listener_.get(), POLLIN, 0}, {zero_.socket().get(), POLLIN, 0}};
      poll(polled, 2, 100);
      // Before all are connected rank 0 sends only failures; receive_outcome() reads them.
      if (polled[1].revents != 0) return;
      accept_one(key);
    }
  }

  void accept_one(const Token& key) {
    Descriptor socket = accept_from(listener_.get());
    if (!socket.is_open()) return;
    AuthRequest auth{};
    int32_t rank = 0;
    const auto until = std::min<Deadline>(zero_.deadline(), Clock::now() + kAuthTimeout);
    if (!receive_all(socket.get(), writable_bytes_of(auth), until) || auth.magic != kJobMagic ||
        !is_same(auth.token, key) || !receive_all(socket.get(), writable_bytes_of(rank), until) ||
        rank <= environment_.rank || rank >= environment_.world_size) {
      return;
    }
    sockets_[static_cast<size_t>(rank)] = std::move(socket);
  }

  const Environment& environment_;
  RendezvousClient zero_;
  double timeout_s_;
  Descriptor listener_;
  std::vector<Descriptor> sockets_;
};

}  // namespace

std::vector<Descriptor> rendezvous_hosts(const Environment& environment, double timeout_s) {
  const HostAddress address = master_address(environment, deadline_in(timeout_s));
  if (environment.rank != 0) return Mesh(environment, address, timeout_s).join();
  Descriptor listener = listen_on_interface(address, environment.master_addr);
  if (listener.is_open()) {
    if (is_name_of_this_host(address, environment.master_addr) && environment.token_file.empty()) {
      log_warning("MASTER_ADDR=", environment.master_addr, " is a loopback address here, so rank ",
                  "0 listens on all interfaces during rendezvous, and any host may join; give a ",
                  "numeric address, or a CLEAVE_TOKEN_FILE");
    }
    return serve_rendezvous(environment, address, std::move(listener), timeout_s);
  }
  const auto error = RendezvousClient::error_of_running_server(environment, address);
  throw error.value_or(Error(Code::kIo, str("MASTER_PORT: ", address.text(),
                                            " is used by another program; choose another port")));
}

}  // namespace cleave::inline comm
