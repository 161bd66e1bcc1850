#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/tensor_source.h"

namespace cleave::safetensors_data_test {
namespace {

namespace fs = std::filesystem;

/// CRC-32 of zlib, bit by bit.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  for (const std::byte b : bytes) {
    crc ^= static_cast<uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

/// CRC-32 of "NAME:DTYPE:4,8;" and the bytes of every tensor, in the order of their names.
uint32_t checksum(const Safetensors& set) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : set.tensors()) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  uint32_t crc = 0;
  for (const std::string& name : names) {
    const StoredTensor& tensor = set.at(name);
    std::string head = name + ":" + std::string(file_name(tensor.dtype)) + ":";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      head += str(i == 0 ? "" : ",", tensor.shape[i]);
    }
    head += ";";
    crc = crc32(std::as_bytes(std::span(head)), crc);
    std::vector<std::byte> bytes(block_bytes(tensor, {}));
    set.read_block(tensor, {}, bytes);
    crc = crc32(bytes, crc);
  }
  return crc;
}

struct Expected {
  const char* folder;
  const char* stem;
  size_t num_files, num_tensors;
  uint32_t checksum;  // computed by an independent reader
};

constexpr std::array kModels = {
    Expected{"models/bert-imdb", "model", 1, 41, 0xff956c5b},
    Expected{"models/gpt2-shakespeare", "model", 1, 52, 0xb65ed1d4},
    Expected{"models/stories260K", "model", 1, 47, 0x825d71a5},
    Expected{"models/stories260K-meta", "consolidated", 1, 48, 1092282389},
    Expected{"goldens/llama-gqa-tied", "model", 1, 20, 0xdb87917d},
    Expected{"goldens/llama-mha", "model", 1, 21, 0xfb77dbb4},
    Expected{"goldens/bert-cls", "model", 1, 41, 0xe0a5562b},
    Expected{"goldens/llama-6heads", "model", 1, 21, 0x108cad4e},
    Expected{"goldens/llama-gqa-llama3rope", "model", 3, 21, 1311985423},
};

TEST(RealSafetensors, PublishedModels_GiveTheirNamesShapesAndBytes) {
  const char* data = std::getenv("CLEAVE_DATA");  // NOLINT(concurrency-mt-unsafe)
  if (data == nullptr) GTEST_SKIP() << "CLEAVE_DATA names no folder with test data";
  for (const Expected& model : kModels) {
    SCOPED_TRACE(model.folder);
    const Safetensors set = Safetensors::open(fs::path(data) / model.folder, model.stem);
    EXPECT_EQ(set.files().size(), model.num_files);
    EXPECT_EQ(set.tensors().size(), model.num_tensors);
    EXPECT_EQ(checksum(set), model.checksum);
  }
}

}  // namespace
}  // namespace cleave::safetensors_data_test
