// Atomic write of a folder:
//   1. One rank creates TARGET.partial and its files, allocated at their full size.
//   2. All ranks write their parts in place, fsync and close each file they wrote to.
//   3. The caller waits until all ranks are done.
//   4. One rank writes the last file, fsyncs the folder, renames it to TARGET, fsyncs the parent.
// TARGET does not exist before the rename in 4 and is complete after it.
#include "cleave/file/folder_writer.h"

#include <algorithm>
#include <cerrno>
#include <sys/stat.h>
#include <system_error>
#include <utility>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/model_path.h"

namespace cleave::inline file {
namespace {

namespace fs = std::filesystem;

void remove_tree(const fs::path& path) {
  int error = call_file_hook(FileCall::kRemove, path.string());
  if (error == 0) {
    std::error_code code;
    fs::remove_all(path, code);
    error = code.value();
  }
  if (error != 0) throw_io(path.string(), name(FileCall::kRemove), error);
}

void make_one(const fs::path& path) {
  const int error = call_file_hook(FileCall::kMakeFolder, path.string());
  if (error != 0) throw_io(path.string(), name(FileCall::kMakeFolder), error);
  if (::mkdir(path.c_str(), 0775) != 0) throw_io(path.string(), "mkdir", errno);
}

}  // namespace

fs::path FolderWriter::partial_path(const fs::path& target) {
  return target.string() + std::string(kPartialSuffix);
}

FolderWriter::FolderWriter(fs::path target)
    : target_(std::move(target)), partial_(partial_path(target_)) {
  CLEAVE_CHECK(!fs::exists(target_), Code::kIo, target_.string(),
               " already exists; remove it or choose another folder");
  remove_tree(partial_);
  make_one(partial_);
}

void FolderWriter::make_folder(std::string_view name) {
  CLEAVE_CHECK(is_file_name(name), Code::kUsage, "'", name, "' is not a valid name of a folder");
  make_one(partial_ / name);
  folders_.emplace_back(name);
}

void FolderWriter::allocate_file(std::string_view name, uint64_t size, std::string_view head) {
  const size_t slash = name.find('/');
  const bool is_inside =
      slash != std::string_view::npos &&
      std::find(folders_.begin(), folders_.end(), name.substr(0, slash)) != folders_.end();
  const std::string_view last = is_inside ? name.substr(slash + 1) : name;
  CLEAVE_CHECK(
      is_file_name(last) && head.size() <= size, Code::kUsage, "file '", name, "' of ", size,
      " bytes that begins with ", head.size(),
      " bytes cannot be created; expected NAME or FOLDER/NAME and a size of at least that");
  File file = File::create(partial_ / name);
  file.allocate(size);
  file.write_at(0, std::as_bytes(std::span(head)));
  file.sync();
  file.close();
}

void FolderWriter::write_file(std::string_view name, std::string_view bytes) {
  allocate_file(name, bytes.size(), bytes);
}

void FolderWriter::commit() {
  for (const std::string& folder : folders_) sync_folder(partial_ / folder);
  sync_folder(partial_);
  rename_durably(partial_, target_);
}

void FolderWriter::abandon() noexcept {
  std::error_code ignored;  // the next writer removes what remains
  fs::remove_all(partial_, ignored);
}

/// Whether a name in a run's folder is of a partial checkpoint or a partial `latest`.
static bool is_leftover(const fs::path& path) {
  const std::string stem = path.stem();
  return path.extension() == kPartialSuffix && (stem.starts_with("step_") || stem == kLatestName);
}

int remove_leftovers(const fs::path& folder) {
  std::vector<fs::path> leftovers;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    if (is_leftover(it->path())) leftovers.push_back(it->path());
  }
  if (code) throw_io(folder.string(), "reading the folder", code.value());
  for (const fs::path& leftover : leftovers) remove_tree(leftover);
  return static_cast<int>(leftovers.size());
}

void remove_folder(const fs::path& folder) {
  const fs::path partial = FolderWriter::partial_path(folder);
  remove_tree(partial);
  rename_durably(folder, partial);
  remove_tree(partial);
}

}  // namespace cleave::inline file
