#include <csignal>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleave/base/log.h"
#include "cleave/base/stop.h"
#include "cleave/cli/program.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/comm/launch/failure.h"

namespace {

// SIGPIPE from stdout ends the program. SIGPIPE from the socket of a lost rank must not: the failed
// write reports the cause. Nor must one while a run stops on a signal, which may have ended the
// reader too (cleave train | tee): the run still saves.
extern "C" void on_broken_pipe(int signal) {
  if (cleave::StopSignal::pending() != 0) return;
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0) _exit(128 + signal);
}

// Reports exceptions that no caller can catch, such as out of memory while a library is loaded.
[[noreturn]] void on_terminate() {
  if (std::current_exception()) _exit(cleave::report_failure(cleave::cli::kBugAdvice));
  cleave::log_error("terminated without an exception; this is a bug in cleave");
  std::abort();
}

/// Opens /dev/null in place of a closed stdin, stdout or stderr. Otherwise the next opened file
/// gets its descriptor, and printed text goes into that file.
void open_closed_streams() {
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
  // Files of a run are never world-writable, whatever the shell's umask.
  umask(umask(0) | S_IWOTH);
  // At the file size limit the failed write reports the error; SIGXFSZ would kill the process.
  action.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &action, nullptr);
  // A parent that ignores SIGCHLD passes this on, and then a launcher could not wait for its ranks.
  action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &action, nullptr);
  std::set_terminate(on_terminate);
  cleave::cli::note_process_args({argv, argv + argc});
  return cleave::cli::run_program({argv + (argc > 0 ? 1 : 0), argv + argc},
                                  cleave::cli::all_commands());
}
