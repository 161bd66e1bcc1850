#pragma once
#include <exception>
#include <filesystem>
#include <functional>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <thread>

namespace cleave::test {

/// Runs `work` in a thread that sees `folder` as an empty file system of `bytes`, as do the threads
/// that it starts. Rethrows what `work` throws. False if this user may not mount one.
inline bool on_small_disk(const std::filesystem::path& folder, uint64_t bytes,
                          const std::function<void()>& work) {
  bool is_made = false;
  std::exception_ptr thrown;
  std::thread thread([&] {
    const std::string size = "size=" + std::to_string(bytes);
    is_made = unshare(CLONE_NEWNS) == 0 &&
              mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              mount("tmpfs", folder.c_str(), "tmpfs", 0, size.c_str()) == 0;
    try {
      if (is_made) work();
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  thread.join();
  if (thrown) std::rethrow_exception(thrown);
  return is_made;
}

/// Bytes that the files of a folder take on such a disk.
inline uint64_t bytes_on_disk(const std::filesystem::path& folder) {
  constexpr uint64_t kBlock = 4096;
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += (entry.file_size() + kBlock - 1) / kBlock * kBlock;
  }
  return bytes;
}

}  // namespace cleave::test
