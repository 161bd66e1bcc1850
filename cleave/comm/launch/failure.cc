#include "cleave/comm/launch/failure.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <unistd.h>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/base/stop.h"
#include "cleave/comm/bootstrap/rank_process.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {
namespace {

int number(Code code) {
  return static_cast<int>(code);
}

// what() of other libraries may contain pages of backtrace; its first line says what happened.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

constexpr std::string_view kSmallerWork =
    "; choose a smaller batch or sequence, or shard over more ranks";

int report(std::string_view advice) {
  try {
    throw;
  } catch (const ReportedError& error) {
    return number(error.code());
  } catch (const Error& error) {
    if (!report_to_launcher(error)) log_error(error.what());
    return number(error.code());
  } catch (const Stopped& stopped) {
    return 128 + stopped.signal;
  } catch (const std::bad_alloc&) {
    log_error("out of memory", kSmallerWork);
    return number(Code::kMemory);
  } catch (const std::exception& error) {
    const Error known = as_error(std::current_exception());
    if (known.code() == Code::kMemory) {
      log_error(known.what(), kSmallerWork);
      return number(Code::kMemory);
    }
    if (known.code() != Code::kBug) {
      log_error(known.what());
      return number(known.code());
    }
    const std::string text = str("unexpected error: ", first_line(error.what()), advice);
    if (!report_to_launcher(Error(Code::kBug, text))) log_error(text);
    return number(Code::kBug);
  } catch (...) {
    log_error("unexpected error of unknown type", advice);
    return number(Code::kBug);
  }
}

[[noreturn]] void on_terminate() {
  if (!std::current_exception()) std::abort();
  const int code = report_failure();
  (void)std::fflush(stdout);  // what the program has printed so far
  _exit(code);
}

}  // namespace

int report_failure(std::string_view advice) {
  try {
    return report(advice);
  } catch (...) {
    // Not even enough memory for the message: this one needs none.
    for (const std::string_view text :
         {std::string_view("cleave: out of memory"), kSmallerWork, std::string_view("\n")}) {
      (void)!write(STDERR_FILENO, text.data(), text.size());
    }
    return number(Code::kMemory);
  }
}

void report_uncaught_exceptions() {
  if (std::get_terminate() == __gnu_cxx::__verbose_terminate_handler) {
    std::set_terminate(on_terminate);
  }
}

int run_main(const std::function<int()>& body) {
  try {
    return body();
  } catch (...) {
    return report_failure();
  }
}

}  // namespace cleave::inline comm
