#pragma once
#include <functional>
#include <string_view>

namespace cleave {

/// Turns the exception in flight into one line on stderr and the exit code that it means: of an
/// Error the value of its code, 10 for lack of memory, 128 + signal for Stopped, 70 for any other
/// one. Under `cleave launch` the launcher prints the line, once for all ranks. Call it inside a
/// catch block only. `advice` follows the text of an exception of unknown type.
int report_failure(std::string_view advice = "");

/// Makes an exception that nobody catches end this process as report_failure() says, from now on.
/// Where the program has set a handler of its own (std::set_terminate), that one stays. run_job and
/// run_ranks call it.
void report_uncaught_exceptions();

/// Runs the main function of a program and returns the process's exit code: what `body` returns,
/// or what report_failure() makes of an exception.
///
///   int main() { return cleave::run_main([] { ...; return 0; }); }
int run_main(const std::function<int()>& body);

}  // namespace cleave
