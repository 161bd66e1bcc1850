#include <csignal>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleave/base/log.h"
#include "cleave/base/mutant.h"
#include "cleave/cli/failure.h"
#include "cleave/cli/program.h"

namespace {

// A reader of stdout that has gone away ends the program; a socket of a lost rank must not: there
// the failing write says more.
extern "C" void on_broken_pipe(int signal) {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0 &&
      !cleave::mutant_enabled("program.ignores_pipe")) {
    _exit(128 + signal);
  }
}

// What no caller can catch, as a library's start that runs out of memory, is told like any failure.
[[noreturn]] void on_terminate() {
  if (std::current_exception()) _exit(cleave::cli::report_failure());
  cleave::log_error("ended without an exception; this is a bug in cleave");
  std::abort();
}

/// Where the caller closed stdin, stdout or stderr, the next file to be opened would get its
/// number, and what is printed would go there.
void open_closed_streams() {
  if (cleave::mutant_enabled("program.closed_streams")) return;
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
  struct sigaction action = {};
  action.sa_handler = on_broken_pipe;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
  // Nothing that a run leaves may be written by everybody, whatever the shell's umask.
  umask(umask(0) | S_IWOTH);
  // A limit on file sizes is told by the write that fails.
  action.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &action, nullptr);
  std::set_terminate(on_terminate);
  namespace cli = cleave::cli;
  return cli::run_program(
      {argv + (argc > 0 ? 1 : 0), argv + argc},
      {cli::train_command(), cli::generate_command(), cli::eval_command(), cli::predict_command(),
       cli::verify_command(), cli::plan_command(), cli::launch_command(), cli::tokenize_command(),
       cli::inspect_command(), cli::convert_command(), cli::diff_command(), cli::doctor_command(),
       cli::bench_train_command(), cli::bench_generate_command(), cli::bench_collectives_command(),
       cli::completion_command()});
}
