// Random bytes as an index of a model's files: a refusal is Error(kFormat); every file that an
// accepted index names is a name in the folder, not a path.
#include <cstdint>

#include "cleave/base/error.h"
#include "cleave/file/file.h"
#include "cleave/format/tensor_source.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cleave::fuzz::require;
  const cleave::fuzz::MemoryFile input({data, size});
  try {
    const auto weight_map = cleave::read_weight_map(input.path());
    require(!weight_map.empty());
    for (const auto& [tensor, file] : weight_map) {
      require(cleave::is_file_name(file));
      require(file.find('/') == std::string::npos && file.find('\0') == std::string::npos);
      require(file != "." && file != ".." && file.size() <= 255);
    }
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
  }
  return 0;
}
