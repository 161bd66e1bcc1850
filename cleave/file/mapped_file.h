#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "cleave/file/file.h"

namespace cleave {

/// A whole file mapped into memory, read only.
///
/// A page of a mapping whose file has been cut meanwhile answers with a deadly signal (SIGBUS).
/// So bytes() is for files that only Cleave writes and never shortens; data of others is taken
/// with copy(), which reads through the descriptor and throws Error(kFormat) instead.
class MappedFile {
 public:
  /// Throws Error(kIo) or Error(kFormat) as File::open_read does.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] uint64_t size() const { return bytes_.size(); }  ///< when it was mapped
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

  /// Fills `out` from byte `offset`; safe when the file has been cut or replaced meanwhile.
  void copy(uint64_t offset, std::span<std::byte> out) const { file_.read_at(offset, out); }
  /// Throws Error(kFormat) with both sizes when the file is no longer as long as when mapped.
  void check_size() const;

 private:
  File file_;
  std::span<const std::byte> bytes_;
};

}  // namespace cleave
