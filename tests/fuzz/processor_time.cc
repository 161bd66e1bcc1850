// Every input of a fuzzer is to take a second of processor time at most; libFuzzer's own limit is
// of the clock, which on a busy machine measures the others. Linked with --wrap.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>

// The names that the linker makes of LLVMFuzzerTestOneInput.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" int __real_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int __wrap_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace {

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// In the stack that libFuzzer prints.
[[noreturn]] void input_took_more_than_a_second() {
  std::abort();
}

}  // namespace

extern "C" int __wrap_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const double begin = processor_seconds();
  const int result = __real_LLVMFuzzerTestOneInput(data, size);
  if (processor_seconds() - begin > 1) input_took_more_than_a_second();
  return result;
}
