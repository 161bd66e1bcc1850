#include "cleave/cli/trace.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cxxabi.h>
#include <deque>
#include <dlfcn.h>
#include <execinfo.h>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unistd.h>

#include "cleave/base/str.h"

namespace cleave::cli {
namespace {

constexpr size_t kMaxThrows = 4;
constexpr int kMaxFrames = 32;

struct Throw {
  std::string type;
  int thread = 0;
  std::array<void*, kMaxFrames> frames{};
  int num_frames = 0;
};

std::atomic<bool> is_tracing{false};
std::mutex mutex;
std::deque<Throw> throws;

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

void record(const std::type_info* type) {
  Throw entry{.type = demangled(type->name()), .thread = gettid()};
  entry.num_frames = backtrace(entry.frames.data(), kMaxFrames);
  const std::lock_guard lock(mutex);
  throws.push_back(entry);
  if (throws.size() > kMaxThrows) throws.pop_front();
}

std::string frame_text(void* frame) {
  Dl_info info{};
  if (dladdr(frame, &info) == 0 || info.dli_fname == nullptr) return str(frame);
  const auto offset =
      reinterpret_cast<uintptr_t>(frame) - reinterpret_cast<uintptr_t>(info.dli_fbase);
  const std::string file = info.dli_fname;
  const std::string place = str(file.substr(file.rfind('/') + 1), "+0x", std::hex, offset);
  return info.dli_sname == nullptr ? place : place + ' ' + demangled(info.dli_sname);
}

}  // namespace

void start_trace() {
  is_tracing = true;
}

void print_trace() {
  const std::lock_guard lock(mutex);
  for (const Throw& entry : throws) {
    std::cerr << "thread " << entry.thread << " threw " << entry.type << '\n';
    // The first two frames belong to the recording.
    for (int i = 2; i < entry.num_frames; ++i) {
      std::cerr << "  " << frame_text(entry.frames.at(static_cast<size_t>(i))) << '\n';
    }
  }
}

}  // namespace cleave::cli

// Replaces __cxa_throw, which every throw expression calls before the stack is unwound. Compilers
// declare it differently, so only the symbol has its name.
extern "C" void record_and_throw(void* exception, std::type_info* type,
                                 void (*destroy)(void*)) __asm__("__cxa_throw");

extern "C" void record_and_throw(void* exception, std::type_info* type, void (*destroy)(void*)) {
  using Next = void (*)(void*, std::type_info*, void (*)(void*));
  static const auto next = reinterpret_cast<Next>(dlsym(RTLD_NEXT, "__cxa_throw"));
  if (cleave::cli::is_tracing) cleave::cli::record(type);
  next(exception, type, destroy);
  std::abort();  // __cxa_throw does not return
}
