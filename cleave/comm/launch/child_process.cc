#include "cleave/comm/launch/child_process.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "cleave/base/clock.h"
#include "cleave/base/error.h"

namespace cleave::inline comm {
namespace {

/// Looks a program up in PATH, like a shell.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const size_t end = rest.find(':');
    std::string candidate = rest.substr(0, end) + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  throw Error(Code::kUsage, str("program ", name, " is not in PATH; give its full path"));
}

std::vector<std::string> merged_environment(const std::vector<std::string>& changes) {
  std::map<std::string, std::string> variables;
  const auto add = [&](const std::string& line) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line;
  };
  for (char** line = environ; *line != nullptr; ++line) add(*line);
  for (const std::string& line : changes) add(line);
  std::vector<std::string> lines;
  lines.reserve(variables.size());
  for (auto& [name, line] : variables) lines.push_back(std::move(line));
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& lines) {
  std::vector<char*> result;
  result.reserve(lines.size() + 1);
  for (std::string& line : lines) result.push_back(line.data());
  result.push_back(nullptr);
  return result;
}

/// What the child needs, prepared before fork(): after it only async-signal-safe calls may run.
struct ChildSetup {
  const char* program;
  char** arguments;
  char** environment;
  pid_t parent;
  int inherited_fd;
  int stdin_fd;  // -1 to keep stdin
  int error_fd;  // closed by a successful exec; a failed one writes errno to it
};

/// Waits for the child's exec: errno if it failed, 0 if it succeeded, nullopt at the limit.
std::optional<int> await_exec(int pipe, double limit_s) {
  const double deadline = monotonic_s() + limit_s;
  pollfd polled{pipe, POLLIN, 0};
  while (poll(&polled, 1, static_cast<int>(std::max(0.0, deadline - monotonic_s()) * 1e3)) != 1) {
    if (monotonic_s() >= deadline) return std::nullopt;
  }
  int error = 0;
  return read(pipe, &error, sizeof(error)) == sizeof(error) ? error : 0;
}

[[noreturn]] void run_child(const ChildSetup& start) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != start.parent) _exit(128 + SIGKILL);  // the parent died before prctl
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < 32; ++signal) sigaction(signal, &standard, nullptr);
  if (hangup.sa_handler == SIG_IGN) sigaction(SIGHUP, &hangup, nullptr);  // nohup
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (start.stdin_fd >= 0) dup2(start.stdin_fd, STDIN_FILENO);
  if (start.inherited_fd >= 0) fcntl(start.inherited_fd, F_SETFD, 0);
  execve(start.program, start.arguments, start.environment);
  const int error = errno;
  const ssize_t written = write(start.error_fd, &error, sizeof(error));
  _exit(written == sizeof(error) ? 127 : 126);
}

}  // namespace

ChildProcess::ChildProcess(const ChildOptions& options) {
  CLEAVE_CHECK(!options.command.empty(), Code::kUsage, "no program to start was given");
  const std::string program = find_program(options.command.front());
  std::vector<std::string> arguments = options.command;
  std::vector<std::string> environment = merged_environment(options.environment);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  int error_pipe[2];
  CLEAVE_CHECK(pipe2(error_pipe, O_CLOEXEC) == 0, Code::kMemory,
               "pipe to a new rank: ", std::strerror(errno));
  const int null_fd = options.keeps_stdin ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC);
  const ChildSetup start{program.c_str(),
                         const_cast<char**>(argv.data()),
                         const_cast<char**>(envp.data()),
                         getpid(),
                         options.inherited_fd,
                         null_fd >= 0 ? null_fd : options.stdin_fd,
                         error_pipe[1]};
  pid_ = fork();
  if (pid_ == 0) run_child(start);
  const int fork_error = errno;
  close(error_pipe[1]);
  if (null_fd >= 0) close(null_fd);
  const auto error = pid_ > 0 ? await_exec(error_pipe[0], options.start_limit_s) : 0;
  close(error_pipe[0]);
  CLEAVE_CHECK(pid_ > 0, Code::kMemory, "fork of ", program, ": ", std::strerror(fork_error));
  if (!error) kill(pid_, SIGKILL);
  if (error != 0) waitpid(pid_, nullptr, 0);
  CLEAVE_CHECK(error.has_value(), Code::kTimeout, "timeout of ", options.start_limit_s,
               " s: ", program, " (pid ", pid_, ") did not start; it was stopped before that");
  CLEAVE_CHECK(*error == 0, Code::kUsage, program, " cannot be started: ", std::strerror(*error));
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::exchange(other.pidfd_, -1)),
      exit_code_(other.exit_code_),
      end_signal_(other.end_signal_) {}

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && !poll_exit()) {
    send(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pidfd_ >= 0) close(pidfd_);
}

std::optional<int> ChildProcess::poll_exit() {
  if (exit_code_) return exit_code_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  if (WIFSIGNALED(status)) end_signal_ = WTERMSIG(status);
  exit_code_ = end_signal_ != 0 ? 128 + end_signal_ : WEXITSTATUS(status);
  return exit_code_;
}

void ChildProcess::send(int signal) const {
  // Not reaped yet, so the pid still means this child.
  if (pid_ > 0 && !exit_code_) kill(pid_, signal);
}

}  // namespace cleave::inline comm
