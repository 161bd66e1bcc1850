#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace cleave::inline file {

/// Largest number of bytes in one pwrite.
inline constexpr size_t kWriteChunk = size_t{64} << 10;

/// Throws Error(kIo): "PATH: CALL failed: text of errno"; with a remedy for a full disk.
[[noreturn]] void throw_io(const std::string& path, std::string_view call, int error_number);

/// An open file. Failing calls throw Error(kIo) with path, call and errno; interrupted and partial
/// reads and writes are continued.
class File {
 public:
  /// Opens a regular file for reading; never blocks. Refuses devices, folders, Git LFS pointers.
  static File open_read(const std::filesystem::path& path);
  /// The same for an untrusted name: one component below `folder`, opened without following a
  /// symbolic link. Throws Error(kFormat) before any open if the name is not one component.
  static File open_read_below(const std::filesystem::path& folder, std::string_view name);
  /// Creates a file for writing, with this mode less the umask. An existing file is an error.
  static File create(const std::filesystem::path& path, mode_t mode = 0664);
  /// Creates a file in `folder` for writing and reading that no name leads to: it disappears when
  /// it is closed, even if the process is killed.
  static File create_unnamed(const std::filesystem::path& folder);
  /// Opens an existing file for writing in place, without truncating it.
  static File open_write(const std::filesystem::path& path);

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();  ///< closes and ignores errors; call close() after writing

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] uint64_t size() const;  ///< current size in bytes, by fstat

  /// Fills `out` from byte `offset`. Throws Error(kFormat) with the sizes if the file ends before.
  void read_at(uint64_t offset, std::span<std::byte> out) const;
  /// Writes all `bytes` at byte `offset`.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  /// Makes the file `size` bytes long. Where the disk can reserve space, later writes cannot fail.
  void allocate(uint64_t size);
  void sync();   ///< fsync
  void close();  ///< reports delayed write errors

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

/// Whether `name` is a valid name of a file in a folder: one component, 1 to 255 bytes, no
/// separator, no control character, no leading dot.
bool is_file_name(std::string_view name);

/// All bytes of a regular file. Throws Error(kFormat) if it has more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = UINT64_MAX);

}  // namespace cleave::inline file
