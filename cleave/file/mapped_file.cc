#include "cleave/file/mapped_file.h"

#include <cerrno>
#include <sys/mman.h>
#include <utility>

#include "cleave/base/error.h"

namespace cleave {

MappedFile::MappedFile(const std::filesystem::path& path) : file_(File::open_read(path)) {
  const uint64_t size = file_.size();
  if (size == 0) return;  // mmap refuses empty ranges
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file_.fd(), 0);
  if (memory == MAP_FAILED) throw_io(file_.path(), "mmap", errno);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::check_size() const {
  const uint64_t now = file_.size();
  CLEAVE_CHECK(now == size(), Code::kFormat, path(), " has ", now, " bytes; it had ", size(),
               " when it was opened, another program changed it");
}

}  // namespace cleave
