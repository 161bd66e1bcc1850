#include "cleave/format/indexed_file.h"

#include <system_error>

#include "cleave/base/error.h"
#include "cleave/file/model_path.h"

namespace cleave::inline format {

File open_indexed(const std::filesystem::path& index, const std::string& name) {
  const std::filesystem::path folder = index.parent_path();
  try {
    return File::open_read_below(folder, name);
  } catch (const Error& error) {
    std::error_code failure;  // then the file may be there, and the first error says what is wrong
    const bool is_there = std::filesystem::exists(folder / name, failure);
    if (error.code() != Code::kIo || is_there || failure) throw;
    throw Error(Code::kIo, str(index.string(), " names ", name,
                               ": No such file or directory; copy it from where the files are from",
                               download_advice(folder)));
  }
}

}  // namespace cleave::inline format
