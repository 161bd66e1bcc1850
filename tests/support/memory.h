#pragma once
#include <cstdint>
#include <fstream>
#include <string>

namespace cleave::test {

/// VmRSS or VmHWM of this process, in bytes.
inline uint64_t resident_bytes(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(what + ":")) return std::stoull(line.substr(what.size() + 1)) * 1024;
  }
  return 0;
}

/// Resets VmHWM; false if the kernel does not support it.
inline bool reset_peak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << '5' << std::flush;
  return clear.good();
}

}  // namespace cleave::test
