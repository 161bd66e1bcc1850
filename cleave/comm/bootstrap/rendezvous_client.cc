#include "cleave/comm/bootstrap/rendezvous_client.h"

#include <algorithm>
#include <chrono>
#include <unistd.h>

#include "cleave/comm/bootstrap/rendezvous.h"

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

RendezvousClient::RendezvousClient(const Environment& environment, const HostAddress& address,
                                   double timeout_s)
    : environment_(environment),
      address_(address),
      timeout_s_(timeout_s),
      deadline_(deadline_in(timeout_s)),
      outcome_deadline_(deadline_in(timeout_s + kOutcomeGraceS)) {}

void RendezvousClient::connect() {
  constexpr std::chrono::seconds kSlice{1};
  std::string problem;
  while (!socket_.is_open() && Clock::now() < deadline_) {
    socket_ = connect_until(address_, std::min(deadline_, Clock::now() + kSlice), problem);
    if (!socket_.is_open()) refuse_rank_zero_of_one_host(environment_);
  }
  CLEAVE_CHECK(socket_.is_open(), Code::kTimeout, "timeout of ", timeout_s_, " s: rank ",
               environment_.rank, " waits for rank 0 at ", address_.text(), " (", problem,
               "); start all ranks with the same MASTER_ADDR and MASTER_PORT");
}

void RendezvousClient::join(const Endpoint& own) const {
  const AuthRequest auth{kJobMagic, read_token(environment_.token_file)};
  JoinRequest request{};
  request.info = {kJobMagic, environment_.rank, environment_.world_size, getpid(),
                  environment_.rank};
  request.job = job_hash(environment_);
  request.endpoint = own;
  request.place = place_of(environment_);
  send_all(socket_.get(), bytes_of(auth), deadline_);
  send_all(socket_.get(), bytes_of(request), deadline_);
}

void RendezvousClient::receive_outcome() const {
  Status status{};
  CLEAVE_CHECK(receive_all(socket_.get(), writable_bytes_of(status), outcome_deadline_),
               Code::kPeer, "rank 0 at ", address_.text(), " closed the connection of rank ",
               environment_.rank,
               " during rendezvous; it has ended, or has another CLEAVE_TOKEN_FILE");
  CLEAVE_CHECK(status.magic == kJobMagic, Code::kIo, "another program answers at ", address_.text(),
               "; choose another MASTER_PORT");
  if (status.code != 0) throw Error(static_cast<Code>(status.code), text_of(status));
}

RendezvousClient::Table RendezvousClient::receive_table() const {
  Table table;
  table.endpoints.resize(static_cast<size_t>(environment_.rank));
  const auto endpoints = std::as_writable_bytes(std::span(table.endpoints));
  CLEAVE_CHECK(receive_all(socket_.get(), table.key, outcome_deadline_) &&
                   receive_all(socket_.get(), endpoints, outcome_deadline_),
               Code::kPeer, "rank 0 ended during rendezvous");
  return table;
}

void RendezvousClient::report(const std::optional<Error>& problem) const {
  const Status status = problem ? error_status(problem->code(), problem->what()) : ok_status();
  send_all(socket_.get(), bytes_of(status), outcome_deadline_);
}

std::optional<Error> RendezvousClient::error_of_running_server(const Environment& environment,
                                                               const HostAddress& address) {
  constexpr double kTimeout = 0.05;
  RendezvousClient client(environment, address, kTimeout);
  std::string problem;
  client.socket_ = connect_until(address, client.deadline_, problem);
  if (!client.socket_.is_open()) return std::nullopt;
  client.join({});
  Status status{};
  if (!receive_all(client.socket_.get(), writable_bytes_of(status), client.deadline_) ||
      status.magic != kJobMagic || status.code == 0) {
    return std::nullopt;
  }
  return Error(static_cast<Code>(status.code), text_of(status));
}

}  // namespace cleave::inline comm
