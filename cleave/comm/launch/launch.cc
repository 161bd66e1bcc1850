#include "cleave/comm/launch/launch.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/resource_limits.h"
#include "cleave/base/stop.h"
#include "cleave/comm/diagnostics/flight_log.h"
#include "cleave/comm/launch/child_process.h"
#include "cleave/comm/launch/signal_reader.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;

// How long the other ranks have to end by themselves after the first failure.
constexpr std::chrono::milliseconds kFailureGrace{200};
// The same with ranks on other hosts: the rank that failed may end after those that noticed it.
constexpr std::chrono::milliseconds kShareGrace{2000};

/// A port that is free now, for ranks that open their own. Cleave does not listen on it.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool known = bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  close(fd);
  return known ? ntohs(address.sin_port) : 0;
}

/// Checks the descriptor limit: each rank needs a pidfd in the launcher, and in every rank that
/// waits for it.
void require_descriptors(int num_ranks) {
  constexpr rlim_t kOther = 32;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t needed = static_cast<rlim_t>(num_ranks) + kOther;
  CLEAVE_CHECK(limit.rlim_cur >= needed, Code::kMemory, num_ranks, " ranks need ", needed,
               " file descriptors, the limit is ", limit.rlim_cur, "; raise it with ulimit -n ",
               needed);
}

std::vector<std::string> rank_variables(const LaunchOptions& options, int rank, int port, int fd) {
  std::vector<std::string> lines = options.environment;
  lines.push_back(str("LOCAL_RANK=", rank));
  lines.push_back(str("LOCAL_WORLD_SIZE=", options.num_ranks));
  if (const auto& share = options.share) {
    lines.push_back(str("RANK=", share->first_rank + rank));
    lines.push_back(str("WORLD_SIZE=", share->world_size));
    lines.push_back(str("GROUP_RANK=", share->host));
    lines.push_back("MASTER_ADDR=" + share->master_addr);
    lines.push_back(str("MASTER_PORT=", share->master_port));
    // Empty: the ranks and the programs that they start must not inherit these two.
    lines.emplace_back("CLEAVE_JOB_FD=");
    lines.push_back(str(kHostShareVariable, "="));
    return lines;
  }
  lines.push_back(str("RANK=", rank));
  lines.push_back(str("WORLD_SIZE=", options.num_ranks));
  lines.push_back("MASTER_ADDR=127.0.0.1");
  lines.push_back(str("MASTER_PORT=", port));
  lines.push_back(str("CLEAVE_JOB_FD=", fd));
  return lines;
}

/// The shared segment of the ranks. With several hosts the ranks make their own, and this one only
/// records failures.
std::shared_ptr<SharedSegment> make_segment(const LaunchOptions& options) {
  return options.share ? SharedSegment::create_private(options.num_ranks)
                       : SharedSegment::create_shared(options.num_ranks);
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options)
      : options_(options), segment_(make_segment(options)) {
    const int port = free_port();
    const bool has_terminal = isatty(STDIN_FILENO) == 1;
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      ranks_.emplace_back(
          ChildOptions{.command = options.command,
                       .environment = rank_variables(options, rank, port, segment_->fd()),
                       .inherited_fd = segment_->fd(),
                       // A rank has its own process group: reading a terminal would stop it.
                       .keeps_stdin = rank == 0 && !has_terminal && !options.share});
    }
  }

  LaunchOutcome wait() {
    while (reap() < ranks_.size()) {
      wait_for_events();
      while (const int signal = signals_.next()) handle(signal);
      if (is_connected_) read_control();
      if (waits_for_some()) check_stopped();
      if (Clock::now() >= kill_at_) kill_all();
    }
    return outcome();
  }

 private:
  size_t reap() {
    size_t num_ended = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const bool was_running = !ended_[rank];
      const std::optional<int> code = ranks_[rank].poll_exit();
      if (!code) continue;
      ++num_ended;
      ended_[rank] = true;
      if (was_running && *code != 0) handle_failure(static_cast<int>(rank), *code);
    }
    return num_ended;
  }

  void handle_failure(int rank, int code) {
    // A rank that ends on a forwarded signal has not failed: the others may still be saving.
    const bool is_requested = stop_signal_ != 0 && code == 128 + stop_signal_;
    if (!is_requested && !has_failed_) {
      has_failed_ = true;
      first_failed_ = rank;
      kill_at_ = std::min(kill_at_, Clock::now() + (options_.share ? kShareGrace : kFailureGrace));
    }
    if (is_requested && ranks_[static_cast<size_t>(rank)].end_signal() == 0) return;
    // Only the first record counts; usually the rank has recorded its own failure already.
    segment_->abort({.rank = rank,
                     .code = Code::kPeer,
                     .step = segment_->rank(rank).step.load(),
                     .group = "",
                     .text = describe_end(rank, code)});
  }

  /// Whether some ranks have ended without a failure and others still run.
  [[nodiscard]] bool waits_for_some() const {
    return !has_failed_ && std::find(ended_.begin(), ended_.end(), true) != ended_.end();
  }

  /// Fails the job if a rank stays stopped after others have ended: no rank may be waiting for it,
  /// so no watchdog would report it.
  void check_stopped() {
    size_t rank = 0;
    while (rank < ranks_.size() && (ended_[rank] || process_state(ranks_[rank].pid()) != 'T'))
      ++rank;
    if (rank == ranks_.size()) {
      stopped_since_.reset();
      return;
    }
    const auto now = Clock::now();
    if (!stopped_since_) stopped_since_ = now;
    const std::chrono::duration<double> stopped = now - *stopped_since_;
    if (stopped.count() < options_.stopped_limit_s) return;
    has_failed_ = true;
    first_failed_ = static_cast<int>(rank);
    segment_->abort({.rank = first_failed_,
                     .code = Code::kTimeout,
                     .step = segment_->rank(first_failed_).step.load(),
                     .group = "",
                     .text = str("timeout of ", options_.stopped_limit_s, " s: rank ",
                                 rank_of_job(first_failed_), " (pid ", ranks_[rank].pid(),
                                 ") is stopped, and other ranks have ended")});
    kill_at_ = now;
  }

  /// " for lack of memory ..." if the kernel has killed processes of this control group since the
  /// start.
  [[nodiscard]] std::string why_killed(int signal) const {
    const CgroupLimits now = cgroup_limits();
    const bool was_by_kernel = now.num_killed > num_killed_before_;
    if (signal != SIGKILL || !was_by_kernel) return "";
    std::string text = " for lack of memory";
    if (!now.memory) return text + " of the machine";
    text += " (limit " + bytes_text(*now.memory);
    if (now.memory_peak) text += ", peak " + bytes_text(*now.memory_peak);
    return text + ')';
  }

  /// The number among the ranks of all hosts of this host's rank `rank`.
  [[nodiscard]] int rank_of_job(int rank) const {
    return rank + (options_.share ? options_.share->first_rank : 0);
  }

  [[nodiscard]] std::string describe_end(int rank, int code) const {
    const ChildProcess& child = ranks_[static_cast<size_t>(rank)];
    std::string text = str("rank ", rank_of_job(rank), " (pid ", child.pid(), ") ");
    if (child.end_signal() != 0) {
      text += str("was killed by signal ", child.end_signal(), why_killed(child.end_signal()));
    } else {
      text += str("ended with exit code ", code);
    }
    if (options_.share) return text;  // only the ranks of several hosts know what they did
    if (segment_->rank(rank).state.load() == RankState::kAbsent) return text + " before it joined";
    return str(text, " ", describe_place(*segment_, rank), describe_step(*segment_, rank));
  }

  void wait_for_events() {
    std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
    if (is_connected_) polled.push_back({STDIN_FILENO, POLLIN, 0});
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ended_[rank]) polled.push_back({ranks_[rank].pidfd(), POLLIN, 0});
    }
    int timeout_ms = waits_for_some() ? 100 : -1;
    if (kill_at_ != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(kill_at_ - Clock::now());
      // After the deadline, when SIGKILL has been sent, poll at a short interval.
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 5, 60'000));
    }
    timeout_ms = poll_timeout(timeout_ms, ranks_.front());
    poll(polled.data(), polled.size(), timeout_ms);
  }

  void handle(int signal) {
    const auto now = Clock::now();
    if (stop_signal_ != 0) {
      // A terminal that closes sends several SIGHUPs.
      if (now - stopped_at_ > kSameSignal && signal != SIGHUP) kill_at_ = now;
      return;
    }
    stop_signal_ = signal;
    stopped_at_ = now;
    kill_at_ = std::min(kill_at_, now + std::chrono::duration_cast<Clock::duration>(
                                            std::chrono::duration<double>(options_.grace_s)));
    send_all(signal);
  }

  /// Reads the connection to `cleave launch --hosts`.
  void read_control() {
    pollfd state{STDIN_FILENO, POLLIN, 0};
    while (is_connected_ && poll(&state, 1, 0) == 1) {
      char signal = 0;
      is_connected_ = read(STDIN_FILENO, &signal, 1) == 1;
      if (is_connected_) handle(signal);
    }
    if (!is_connected_) kill_at_ = Clock::now();
  }

  void kill_all() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ended_[rank]) killed_[rank] = true;
    }
    send_all(SIGKILL);
  }

  /// Whether a rank recorded its failure and was then killed by this launcher because it ended too
  /// slowly.
  [[nodiscard]] bool was_killed_after_failing(int rank, const LaunchOutcome& result) const {
    return killed_[static_cast<size_t>(rank)] && result.cause && result.cause->rank == rank;
  }

  void send_all(int signal) {
    for (const ChildProcess& rank : ranks_) rank.send(signal);
  }

  /// The rank that failed first. Of a share, the first one that did not end because of another.
  [[nodiscard]] int root_cause(const LaunchOutcome& result) const {
    for (size_t rank = 0; options_.share && rank < ranks_.size(); ++rank) {
      const int code = result.exit_codes[rank];
      const bool is_own = code != 0 && code != static_cast<int>(Code::kPeer) && !killed_[rank];
      if (is_own) return static_cast<int>(rank);
    }
    return result.cause && result.cause->rank >= 0 ? result.cause->rank : first_failed_;
  }

  LaunchOutcome outcome() {
    LaunchOutcome result;
    result.cause = segment_->aborted();
    for (ChildProcess& rank : ranks_) result.exit_codes.push_back(rank.poll_exit().value_or(0));
    if (!has_failed_) {
      result.exit_code = stop_signal_ == 0 ? 0 : 128 + stop_signal_;
      return result;
    }
    const int root = root_cause(result);
    const int code = result.exit_codes[static_cast<size_t>(root)];
    // The rank's own exit code counts, unless it is 0 or was caused by this launcher's SIGKILL.
    const bool is_own = code != 0 && !was_killed_after_failing(root, result);
    result.exit_code = is_own ? code : static_cast<int>(result.cause->code);
    if (stop_signal_ != 0 && was_stopped(result)) {
      result.exit_code = 128 + stop_signal_;
      result.cause.reset();
      return result;
    }
    report(root, result);
    return result;
  }

  /// Whether every rank ended because of the forwarded signal: with 0, by the signal, or with its
  /// exit code; because another rank did (kPeer); or by SIGKILL after the grace period.
  [[nodiscard]] bool was_stopped(const LaunchOutcome& result) const {
    return std::all_of(result.exit_codes.begin(), result.exit_codes.end(), [&](int code) {
      return code == 0 || code == 128 + stop_signal_ || code == 128 + SIGKILL ||
             code == static_cast<int>(Code::kPeer);
    });
  }

  void report(int root, LaunchOutcome& result) const {
    // The reader of the output has closed the pipe: print nothing.
    if (result.exit_code == 128 + SIGPIPE) return;
    const bool was_killed = ranks_[static_cast<size_t>(root)].end_signal() != 0 &&
                            !was_killed_after_failing(root, result);
    const bool is_recorded = result.cause && result.cause->rank == root && !was_killed;
    // The ranks of several hosts print their failures themselves; one that is stopped cannot.
    const bool was_stopped_too_long = is_recorded && result.cause->code == Code::kTimeout;
    if (options_.share && !was_killed && !was_stopped_too_long) return;
    const std::string text =
        is_recorded ? result.cause->text : describe_end(root, result.exit_code);
    const std::string name = str("rank ", rank_of_job(root));
    const bool names_rank = text.find(name) != std::string::npos;
    result.lines.push_back(names_rank ? text : str(name, ": ", text));
    // Where the other ranks were does not matter for a failure that every rank would have.
    for (int rank = 0; rank < options_.num_ranks && !would_recur(result.exit_code); ++rank) {
      if (rank == root || segment_->rank(rank).num_operations.load() == 0) continue;
      result.lines.push_back(str("rank ", rank, " stopped ", describe_place(*segment_, rank)));
      break;
    }
    const std::string hint = segment_->resume_hint();
    if (!hint.empty()) result.lines.push_back("resume: " + hint);
  }

  const LaunchOptions& options_;
  SignalReader signals_;  // constructed before the ranks, so that no signal ends the launcher alone
  const int64_t num_killed_before_ = cgroup_limits().num_killed;
  std::shared_ptr<SharedSegment> segment_;
  std::vector<ChildProcess> ranks_;
  std::vector<bool> ended_ = std::vector<bool>(static_cast<size_t>(options_.num_ranks));
  std::vector<bool> killed_ = ended_;  // by this launcher, while still running
  bool has_failed_ = false;
  int first_failed_ = -1;
  std::optional<Clock::time_point> stopped_since_;
  int stop_signal_ = 0;
  bool is_connected_ = options_.share.has_value();  // stdin is open
  Clock::time_point stopped_at_{};
  Clock::time_point kill_at_ = Clock::time_point::max();
};

/// Whether a restart of a failed job may succeed.
bool is_worth_restarting(const LaunchOutcome& outcome) {
  if (outcome.lines.empty()) return false;  // succeeded, or was stopped on request
  return !would_recur(outcome.exit_code);
}

}  // namespace

bool would_recur(int exit_code) {
  constexpr Code kPermanent[] = {Code::kUsage, Code::kShape, Code::kFormat, Code::kNumerics};
  return std::any_of(std::begin(kPermanent), std::end(kPermanent),
                     [&](Code code) { return exit_code == static_cast<int>(code); });
}

LaunchOutcome launch_ranks(const LaunchOptions& options) {
  require_descriptors(options.num_ranks);
  return Launcher(options).wait();
}

int launch(const LaunchOptions& options) {
  LaunchOptions attempt = options;
  LaunchOutcome outcome = launch_ranks(attempt);
  int restarts = 0;
  while (restarts < options.max_restarts && is_worth_restarting(outcome)) {
    ++restarts;
    std::cerr << "cleave: restart " << restarts << " of " << options.max_restarts << ": "
              << outcome.lines.front() << '\n';
    attempt.environment = options.environment;
    attempt.environment.push_back(str("CLEAVE_RESTARTS=", restarts));
    outcome = launch_ranks(attempt);
  }
  for (const std::string& line : outcome.lines) std::cerr << "cleave: " << line << '\n';
  if (outcome.lines.empty() || options.max_restarts == 0) return outcome.exit_code;
  if (is_worth_restarting(outcome)) {
    std::cerr << "cleave: gave up after " << restarts
              << (restarts == 1 ? " restart\n" : " restarts\n");
  } else {
    std::cerr << "cleave: not restarted: a restart would fail in the same way\n";
  }
  return outcome.exit_code;
}

}  // namespace cleave::inline comm
