// Random bytes as a GGUF file: a refusal is Error(kFormat); every tensor of an accepted file lies
// in the file and can be read completely.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/format/gguf.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::fuzz::require;

void read_tensors(const cleave::Gguf& file, size_t size) {
  std::vector<std::byte> bytes;
  for (const cleave::GgufTensor& tensor : file.tensors()) {
    require(tensor.begin <= size && tensor.bytes <= size - tensor.begin);
    bytes.resize(cleave::block_bytes(tensor, {}));
    file.read_block(tensor.name, {}, bytes);
  }
}

void read_metadata(const cleave::GgufMetadata& metadata) {
  for (const auto& [key, value] : metadata.entries()) {
    require(!key.empty() && metadata.find(key) == &value);
    (void)value.text();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cleave::fuzz::MemoryFile input({data, size});
  try {
    const auto file = cleave::Gguf::open(input.path());
    read_metadata(file.metadata());
    read_tensors(file, size);
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
  }
  return 0;
}
