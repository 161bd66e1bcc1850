// What the comparison of a checkpoint with its manifest costs, beside a load of the same bytes from
// the page cache into new memory.
#include <benchmark/benchmark.h>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cleave/format/block.h"
#include "cleave/format/manifest.h"
#include "cleave/format/safetensors.h"
#include "tests/support/temp_folder.h"

namespace cleave {
namespace {

constexpr int64_t kTensors = 16, kRows = 4096, kColumns = 1024;  // of fp32: 256 MiB

/// A checkpoint that one rank wrote.
std::filesystem::path checkpoint() {
  static const test::TempFolder folder;
  const std::filesystem::path target = folder / "step";
  if (std::filesystem::exists(target)) return target;
  std::vector<TensorInfo> tensors;
  for (int64_t i = 0; i < kTensors; ++i) {
    tensors.push_back({"t" + std::to_string(i), DType::kF32, {kRows, kColumns}});
  }
  const SafetensorsPlan plan(tensors);
  FolderWriter writer(target);
  plan.create_files(writer);
  SafetensorsWriter file(writer.path(), plan);
  std::vector<float> values(static_cast<size_t>(kRows * kColumns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 1e-3F;
  for (const TensorInfo& tensor : tensors) {
    file.write_block(tensor.name, {}, std::as_bytes(std::span(values)));
  }
  writer.write_file(kManifestName, make_manifest(writer.path(), file.finish()));
  writer.commit();
  return target;
}

void load(benchmark::State& state) {
  const std::filesystem::path target = checkpoint();
  for (auto _ : state) {
    const Safetensors set = Safetensors::open(target);
    std::vector<std::unique_ptr<std::byte[]>> model;  // all of it at once, as in a program
    for (const StoredTensor& tensor : set.tensors()) {
      const uint64_t bytes = block_bytes(tensor, {});
      model.emplace_back(new std::byte[bytes]);
      set.read_block(tensor, {}, {model.back().get(), bytes});
    }
    benchmark::DoNotOptimize(model.data());
  }
  state.SetBytesProcessed(state.iterations() * kTensors * kRows * kColumns * 4);
}

void verify(benchmark::State& state) {
  const std::filesystem::path target = checkpoint();
  for (auto _ : state) require_intact(target);
  state.SetBytesProcessed(state.iterations() * kTensors * kRows * kColumns * 4);
}

BENCHMARK(load);
BENCHMARK(verify);

}  // namespace
}  // namespace cleave

BENCHMARK_MAIN();
