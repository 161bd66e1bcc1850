#include "cleave/comm/launch/hosts_launch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <list>
#include <optional>
#include <poll.h>
#include <set>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/stop.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "cleave/comm/launch/child_process.h"
#include "cleave/comm/launch/host_share.h"
#include "cleave/comm/launch/launch.h"
#include "cleave/comm/launch/signal_reader.h"

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Ranks of other hosts find a lost one within a second, and end by themselves.
constexpr milliseconds kFailureGrace{4000};
// From the end of a host's connection to SIGKILL of its remote shell.
constexpr milliseconds kCloseGrace{3000};
// How long a host may take to answer before a restart.
constexpr milliseconds kAnswerLimit{20'000};

/// A remote shell that runs the ranks of one host.
struct HostRun {
  std::string host;
  Descriptor control;  // the other end is its stdin
  ChildProcess shell;
  bool is_killed = false;  // by this process
};

struct Outcome {
  int exit_code = 0;
  std::string cause{};      // "" if nothing failed
  bool is_stopped = false;  // a signal asked for the end
};

milliseconds to_ms(double seconds) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(seconds));
}

std::vector<std::string> with_words(std::vector<std::string> words, const std::string& host,
                                    const std::string& command) {
  words.push_back(host);
  words.push_back(command);
  return words;
}

HostRun start(const HostsOptions& options, const std::string& host, const std::string& command) {
  int ends[2];
  CLEAVE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, Code::kMemory,
               "connection to the ranks of ", host, ": ", std::strerror(errno));
  Descriptor control(ends[0]);
  const Descriptor child_end(ends[1]);
  ChildProcess shell({.command = with_words(options.remote_shell, host, command),
                      .environment = {},
                      .stdin_fd = child_end.get()});
  return {.host = host, .control = std::move(control), .shell = std::move(shell)};
}

/// One attempt: the ranks of all `hosts`.
class Attempt {
 public:
  Attempt(const HostsOptions& options, const std::vector<std::string>& hosts, int restarts)
      : options_(options) {
    const std::string& first = hosts.front();
    HostShare share{.first_rank = 0,
                    .world_size = static_cast<int>(hosts.size()) * options.ranks_per_host,
                    .host = 0,
                    .master_port = port_of(restarts),
                    .master_addr = first.substr(first.find('@') + 1)};
    for (const std::string& host : hosts) {
      std::vector<std::string> variables{str(kHostShareVariable, '=', text_of(share))};
      if (restarts > 0) variables.push_back(str("CLEAVE_RESTARTS=", restarts));
      runs_.push_back(start(options, host, options.command(variables)));
      share.first_rank += options.ranks_per_host;
      ++share.host;
    }
  }

  Outcome wait() {
    while (reap()) {
      wait_for_events();
      while (const int signal = signals_.next()) handle(signal);
      const auto now = Clock::now();
      if (now >= close_at_) close_all();
      if (now >= kill_at_) kill_all();
    }
    return outcome();
  }

 private:
  /// A port below the ephemeral ones. Another one for each attempt, since ranks of the one before
  /// may still hold theirs.
  static int port_of(int restarts) { return 20000 + (getpid() + restarts) % 10000; }

  /// Whether some host still runs.
  bool reap() {
    bool is_running = false;
    for (HostRun& run : runs_) {
      const std::optional<int> code = run.shell.poll_exit();
      if (!code) is_running = true;
      if (!code || *code == 0 || stop_signal_ != 0) continue;
      if (close_at_ == Clock::time_point::max()) close_at_ = Clock::now() + kFailureGrace;
      // A rank that ends because of another one is not the cause.
      const bool is_cause = *code != static_cast<int>(Code::kPeer) && !run.is_killed;
      if (cause_ == nullptr && is_cause) cause_ = &run;
    }
    return is_running;
  }

  void wait_for_events() {
    std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
    for (HostRun& run : runs_) {
      if (!run.shell.poll_exit()) polled.push_back({run.shell.pidfd(), POLLIN, 0});
    }
    const auto until = std::min(is_closed_ ? Clock::time_point::max() : close_at_, kill_at_);
    int timeout_ms = -1;
    if (until != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 5, 60'000));
    }
    poll(polled.data(), polled.size(), poll_timeout(timeout_ms, runs_.front().shell));
  }

  void handle(int signal) {
    const auto now = Clock::now();
    if (stop_signal_ != 0) {
      if (now - stopped_at_ > kSameSignal && signal != SIGHUP) close_at_ = now;
      return;
    }
    stop_signal_ = signal;
    stopped_at_ = now;
    close_at_ = std::min(close_at_, now + to_ms(options_.grace_s));
    const char byte = static_cast<char>(signal);
    for (const HostRun& run : runs_) send(run.control.get(), &byte, 1, MSG_NOSIGNAL);
  }

  /// The hosts kill their ranks.
  void close_all() {
    if (is_closed_) return;
    is_closed_ = true;
    kill_at_ = Clock::now() + kCloseGrace;
    for (HostRun& run : runs_) {
      if (!run.shell.poll_exit()) run.is_killed = true;
      run.control = Descriptor();
    }
  }

  void kill_all() {
    for (HostRun& run : runs_) run.shell.send(SIGKILL);
  }

  /// Whether a host ended because of the forwarded signal.
  [[nodiscard]] bool is_stopped(const HostRun& run, int code) const {
    return stop_signal_ != 0 && (run.is_killed || code == 128 + stop_signal_ ||
                                 code == 128 + SIGKILL || code == static_cast<int>(Code::kPeer));
  }

  Outcome outcome() {
    // A host that this process killed is the cause only if none ended by itself.
    for (const bool is_killed : {false, true}) {
      for (HostRun& run : runs_) {
        const int code = run.shell.poll_exit().value_or(0);
        const bool is_failure = code != 0 && run.is_killed == is_killed && !is_stopped(run, code);
        if (cause_ == nullptr && is_failure) cause_ = &run;
      }
    }
    const bool is_requested = stop_signal_ != 0;
    if (cause_ == nullptr) {
      return {.exit_code = is_requested ? 128 + stop_signal_ : 0, .is_stopped = is_requested};
    }
    const int code = cause_->shell.poll_exit().value_or(0);
    return {.exit_code = code,
            .cause = str("the ranks of ", cause_->host, " ended with exit code ", code),
            .is_stopped = is_requested};
  }

  const HostsOptions& options_;
  // Constructed before the shells, so that no signal ends this process alone.
  SignalReader signals_;
  std::list<HostRun> runs_;
  HostRun* cause_ = nullptr;
  int stop_signal_ = 0;
  bool is_closed_ = false;
  Clock::time_point stopped_at_{};
  Clock::time_point close_at_ = Clock::time_point::max();
  Clock::time_point kill_at_ = Clock::time_point::max();
};

/// The hosts on which a command runs within the limit.
std::vector<std::string> hosts_that_answer(const HostsOptions& options) {
  // Silent, because the attempt has shown the remote shell's message.
  std::vector<std::string> silent{"/bin/sh", "-c", "exec \"$@\" 2>/dev/null", "sh"};
  silent.insert(silent.end(), options.remote_shell.begin(), options.remote_shell.end());
  std::list<ChildProcess> shells;
  for (const std::string& host : options.hosts) {
    shells.emplace_back(ChildOptions{
        .command = with_words(silent, host, "true"), .environment = {}, .keeps_stdin = false});
  }
  const auto deadline = Clock::now() + kAnswerLimit;
  std::vector<std::string> found;
  size_t index = 0;
  for (ChildProcess& shell : shells) {
    while (!shell.poll_exit() && Clock::now() < deadline) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
      pollfd ended{shell.pidfd(), POLLIN, 0};
      poll(&ended, 1, poll_timeout(static_cast<int>(std::max<int64_t>(left, 0)), shell));
    }
    if (shell.poll_exit() == 0) found.push_back(options.hosts[index]);
    ++index;
  }
  return found;
}

/// "host b does not answer" or "hosts b, c do not answer"; "" if all were found.
std::string missing_text(const std::vector<std::string>& all,
                         const std::vector<std::string>& found) {
  std::string names;
  size_t count = 0;
  for (const std::string& host : all) {
    if (std::find(found.begin(), found.end(), host) != found.end()) continue;
    names += (count++ == 0 ? "" : ", ") + host;
  }
  if (count == 0) return "";
  return count == 1 ? str("host ", names, " does not answer")
                    : str("hosts ", names, " do not answer");
}

void check_hosts(const std::vector<std::string>& hosts) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:@";
  std::set<std::string> seen;
  for (const std::string& host : hosts) {
    // A name that begins with - would be an option of ssh.
    CLEAVE_CHECK(
        !host.empty() && host.front() != '-' && host.find_first_not_of(kPlain) == std::string::npos,
        Code::kUsage, "--hosts: '", host, "' is not a host; give names or addresses between ",
        "commas, as in --hosts node0,node1");
    CLEAVE_CHECK(seen.insert(host).second, Code::kUsage, "--hosts: ", host,
                 " appears twice; name each host once");
  }
}

}  // namespace

int launch_on_hosts(const HostsOptions& options) {
  check_hosts(options.hosts);
  std::vector<std::string> hosts = options.hosts;
  int restarts = 0;
  while (true) {
    Outcome outcome = Attempt(options, hosts, restarts).wait();
    if (outcome.cause.empty()) return outcome.exit_code;
    if (outcome.is_stopped || would_recur(outcome.exit_code)) {
      std::cerr << str("cleave: ", outcome.cause, "\n");
      return outcome.exit_code;
    }
    const std::vector<std::string> used = std::exchange(hosts, hosts_that_answer(options));
    // A host that an earlier attempt has lost did not cause this failure.
    const std::string missing = missing_text(used, hosts);
    if (!missing.empty()) {
      outcome = {.exit_code = static_cast<int>(Code::kPeer), .cause = missing};
    }
    if (restarts == options.max_restarts || hosts.empty()) {
      std::cerr << str("cleave: ", outcome.cause, "\n");
      return outcome.exit_code;
    }
    ++restarts;
    const int num_ranks = static_cast<int>(hosts.size()) * options.ranks_per_host;
    std::cerr << str("cleave: restart ", restarts, " of ", options.max_restarts, ": ",
                     outcome.cause, "; ", hosts.size(), " of ", options.hosts.size(),
                     " hosts continue with ", num_ranks, num_ranks == 1 ? " rank\n" : " ranks\n");
  }
}

}  // namespace cleave::inline comm
