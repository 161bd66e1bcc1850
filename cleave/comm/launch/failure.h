#pragma once
#include <functional>
#include <string_view>

namespace cleave::inline comm {

/// Prints the current exception as one line on stderr and returns its exit code: the code of an
/// Error, 10 for lack of memory, 128 + signal for Stopped, 70 for any other exception. Under
/// `cleave launch` the launcher prints the line, once for all ranks. Call it only inside a catch
/// block. `advice` follows the text of an unexpected exception.
int report_failure(std::string_view advice = "");

/// From now on an uncaught exception ends this process through report_failure(). Has no effect if
/// the program has set its own handler (std::set_terminate). run_job() and run_ranks() call it.
void report_uncaught_exceptions();

/// Runs the body of a main function and returns the process's exit code: what `body` returns, or
/// what report_failure() returns for its exception.
///
///   int main() { return cleave::run_main([] { ...; return 0; }); }
int run_main(const std::function<int()>& body);

}  // namespace cleave::inline comm
