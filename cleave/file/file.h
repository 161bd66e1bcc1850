#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace cleave {

/// Longest piece given to one pwrite.
inline constexpr size_t kWriteChunk = size_t{64} << 10;

/// Throws Error(kIo): "PATH: CALL failed: what errno says"; a full disk says how to go on.
[[noreturn]] void throw_io(const std::string& path, std::string_view call, int error_number);

/// An open file. Every failing call throws Error(kIo) with path, call and errno; interrupted and
/// short calls are continued.
class File {
 public:
  /// A regular file for reading. Devices, pipes and folders are refused without waiting.
  static File open_read(const std::filesystem::path& path);
  /// The same for a name found inside another file: one component below `folder`, opened relative
  /// to it, never through a link. Throws Error(kFormat) for anything else, before any open.
  static File open_read_below(const std::filesystem::path& folder, std::string_view name);
  /// A new file for writing, with this mode less the umask; one that exists is an error.
  static File create(const std::filesystem::path& path, mode_t mode = 0664);
  /// An existing file for writing in place; its bytes stay.
  static File open_write(const std::filesystem::path& path);

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();  ///< closes silently: a written file is closed by close(), which reports errors

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] uint64_t size() const;  ///< asked anew on every call

  /// Fills `out` from byte `offset`. A file that ends before is Error(kFormat) with the sizes.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  /// Gives the file `size` bytes of disk now, so that later writes cannot run out of it.
  void allocate(uint64_t size);
  void sync();   ///< fsync
  void close();  ///< reports delayed write errors

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

/// Whether `name` may name a file in a folder: one component, 1 to 255 bytes, no separator, no
/// control character, no leading dot.
bool is_file_name(std::string_view name);

/// All bytes of a regular file, at most `max_bytes`; Error(kFormat) when it is larger.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = UINT64_MAX);

}  // namespace cleave
