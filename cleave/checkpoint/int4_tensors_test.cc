#include "cleave/checkpoint/int4_tensors.h"

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/model_tensors.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"

namespace cleave::int4_tensors_test {
namespace {

/// Counts the bytes that are read of each tensor.
class CountingSource final : public TensorSource {
 public:
  explicit CountingSource(const TensorSource& source) : source_(source) {}
  [[nodiscard]] std::vector<TensorInfo> list() const override { return source_.list(); }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override {
    return source_.find(name);
  }
  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override {
    bytes_[std::string(name)] += out.size();
    source_.read_block(name, slices, out);
  }
  [[nodiscard]] std::string path() const override { return source_.path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override {
    return source_.file_names();
  }
  [[nodiscard]] size_t bytes_of(const std::string& name) const { return bytes_[name]; }

 private:
  const TensorSource& source_;
  mutable std::map<std::string, size_t> bytes_;
};

std::vector<std::byte> read(const TensorSource& source, const std::string& name, Range rows) {
  const std::vector<Slice> slices{{0, {rows}}};
  std::vector<std::byte> out(block_bytes(source.at(name), slices));
  source.read_block(name, slices, out);
  return out;
}

constexpr std::string_view kLlama =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "vocab_size":50,"hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,
  "num_attention_heads":2,"max_position_embeddings":64})";

// Oracle: the bytes of the matrices; and sources of which only the one part is read.
TEST(Int4Source, PartsOfAMatrix_AreReadFromItOnce) {
  const test::TempFolder root;
  const std::string folder = root / "model";
  test::write_model_folder(folder, kLlama, test::tensors_of(kLlama), 0.05);
  const ModelFolder from = ModelFolder::open(folder);
  const auto model = make_model(from.config);
  model->name_tree();
  const ModelTensors whole(from, *model);
  const CountingSource counting(whole);
  const Int4Source source(counting, *model, /*has_mins=*/true);
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  const std::string down = "model.layers.0.mlp.down_proj.weight";
  // As a writer of pieces does: the boundaries of the parts differ.
  for (const std::string& name : {up, down, up}) {
    const int64_t rows = whole.at(name).shape[0];
    const size_t before = counting.bytes_of(name);
    for (const Range& part : {Range{0, 7}, Range{7, rows}}) read(source, name + ".int4", part);
    for (const char* part : {".int4_scales", ".int4_mins"}) {
      const Int4Source fresh(whole, *model, /*has_mins=*/true);
      EXPECT_EQ(read(source, name + part, {0, rows}), read(fresh, name + part, {0, rows})) << part;
      EXPECT_EQ(read(source, name + part, {3, 9}), read(fresh, name + part, {3, 9})) << part;
    }
    EXPECT_EQ(counting.bytes_of(name) - before, block_bytes(whole.at(name), {})) << name;
  }
}

}  // namespace
}  // namespace cleave::int4_tensors_test
