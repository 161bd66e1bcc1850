// Limits every input of a fuzzer to a second of CPU time; libFuzzer's limit is wall-clock time,
// which on a busy machine depends on other programs. Linked with --wrap.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>

// Names that the linker's --wrap creates for LLVMFuzzerTestOneInput.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" int __real_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int __wrap_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Its name appears in the stack trace that libFuzzer prints.
[[noreturn]] void input_took_more_than_a_second() {
  std::abort();
}

}  // namespace

extern "C" int __wrap_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const double begin = cpu_seconds();
  const int result = __real_LLVMFuzzerTestOneInput(data, size);
  if (cpu_seconds() - begin > 1) input_took_more_than_a_second();
  return result;
}
