#include "cleave/cli/failure.h"

#include <algorithm>
#include <exception>
#include <new>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/base/mutant.h"
#include "cleave/base/stop.h"
#include "cleave/comm/rank_end.h"
#include "cleave/comm/rank_process.h"

namespace cleave::cli {
namespace {

int number(Code code) {
  return static_cast<int>(code);
}

// what() of other libraries can be pages of backtrace; its first line says what happened.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

int report_failure() {
  try {
    throw;
  } catch (const Error& error) {
    if (!tell_launcher(error)) log_error(error.what());
    return number(error.code());
  } catch (const FailureTold& told) {
    return told.exit_code;
  } catch (const Stopped& stopped) {
    return 128 + stopped.signal;
  } catch (const std::bad_alloc&) {
    log_error("out of memory; choose a smaller batch or sequence, or split over more ranks");
    return number(is_planted("memory.no_code") ? Code::kBug : Code::kMemory);
  } catch (const std::exception& error) {
    const Error known = as_error(std::current_exception());
    if (known.code() == Code::kMemory) {
      log_error(known.what(), "; choose a smaller batch or sequence, or split over more ranks");
      return number(Code::kMemory);
    }
    if (known.code() != Code::kBug) {
      log_error(known.what());
      return number(known.code());
    }
    log_error("unexpected error: ", first_line(error.what()),
              "; this is a bug in cleave (--trace shows where)");
    return number(Code::kBug);
  } catch (...) {
    log_error("unexpected error of unknown type; this is a bug in cleave (--trace shows where)");
    return number(Code::kBug);
  }
}

std::vector<ExitCode> exit_codes() {
  const auto row = [](Code code, std::string meaning) {
    return ExitCode{number(code), std::string(name(code)), std::move(meaning)};
  };
  return {
      {0, "ok", "all done"},
      {kDifferent, "different", "what diff compares is not equal"},
      row(Code::kUsage, "a flag or a command line that cannot mean anything"),
      row(Code::kShape, "sizes, layouts or a configuration that do not fit together"),
      row(Code::kFormat, "a file whose bytes are not what its format says"),
      row(Code::kIo, "the operating system refused a file operation"),
      row(Code::kPeer, "another rank is gone"),
      row(Code::kTimeout, "a wait was longer than --timeout"),
      row(Code::kDesync, "ranks called different collectives"),
      row(Code::kNumerics, "NaN or infinity where a number is needed"),
      row(Code::kMemory, "not enough memory"),
      row(Code::kBug, "a contradiction inside cleave: please report it"),
  };
}

}  // namespace cleave::cli
