// Oracle: transformers and torch; of the first test if the Python of $CLEAVE_PYTHON has them.
#include <filesystem>
#include <iostream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/checkpoint/save.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/mesh/scalar_type.h"
#include "tests/support/oslo_models.h"
#include "tests/support/paths.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace cleave::oslo::oslo_transformers_test {
namespace {

namespace fs = std::filesystem;
using test::batch_of;
using test::config_of;
using test::golden_folder;
using test::on_world;
using test::TempFolder;
using test::whole_model;
using GoldenTensors = std::map<std::string, Tensor>;

constexpr uint64_t kOneFile = 1'000'000, kManyFiles = 20'000;  // maximum bytes of a file

Tensor as_it_is(const Tensor& t) {
  return t;
}

/// Writes a tensor for Python: NAME.safetensors in `folder`.
void hand_over(const fs::path& folder, const std::string& name, const Tensor& values) {
  const Tensor whole = values.contiguous();
  const SafetensorsPlan plan({{name, dtype_of(whole.scalar_type()), whole.sizes().vec()}},
                             {.stem = name});
  FolderWriter writer(folder / name);
  plan.create_files(writer);
  SafetensorsWriter out(writer.path(), plan);
  out.write_block(name, {}, bytes_of(whole));
  out.finish();
  writer.commit();
}

/// Trains one step on two ranks, so that the weights are new; then writes every format of this
/// library, as folders below `root`, with the logits that the library computes.
void write_all_forms(const fs::path& root, const std::string& golden_name) {
  const std::string source = golden_folder(golden_name);
  const auto golden = test::golden_answers(golden_name);
  fs::create_directory(root);
  on_world(2, [&](World& world) {
    ParallelModel model = initialize(whole_model(source), config_of(2), world);
    Optimizer optimizer(model.parameters(), {});
    const Batch batch = batch_of(golden, "input", as_it_is);
    model(batch).loss.backward();
    model.step(optimizer, 1e-3);
    optimizer.zero_grad();
    const at::NoGradGuard no_grad;
    const Tensor logits = model(batch).logits.full_tensor();
    if (world.rank() == 0) hand_over(root, "logits", logits);
    model.save_parallelized(root / "split");
    model.save_parallelized(root / "merged", {.merge_checkpoints = true});
    model.save_parallelized(root / "merged_parts",
                            {.merge_checkpoints = true, .max_shard_size = "20KB"});
    model.save_parallelized(root / "safe", {.merge_checkpoints = true, .safe_serialization = true});
    model.save_parallelized(
        root / "safe_parts",
        {.merge_checkpoints = true, .max_shard_size = "20KB", .safe_serialization = true});
    const Mesh mesh = Mesh::build(world, {{"world", 2}});
    save_checkpoint(root / "checkpoint",
                    {.model = &model.model(),
                     .optimizer = &optimizer,
                     .carried = {},
                     .state_json = "{}",
                     .files = {}},
                    {.world = mesh["world"], .tp = model.tensor_parallel(), .dp = Axis()});
  });
  const auto converted = [&](const char* name, ModelFormat format, uint64_t max_file_bytes) {
    convert({.from = root / "split",
             .to = root / name,
             .format = format,
             .tp = format == ModelFormat::kOslo ? 3 : 1,
             .pp = format == ModelFormat::kOslo || format == ModelFormat::kNxd ? 2 : 1,
             .max_file_bytes = max_file_bytes});
  };
  converted("converted_safe", ModelFormat::kSafetensors, kOneFile);
  converted("converted_safe_parts", ModelFormat::kSafetensors, kManyFiles);
  converted("converted_bin", ModelFormat::kBin, kOneFile);
  converted("converted_bin_parts", ModelFormat::kBin, kManyFiles);
  converted("split_oslo", ModelFormat::kOslo, kOneFile);
  converted("split_nxd", ModelFormat::kNxd, kOneFile);
  for (const char* form : {"merged_parts", "converted_bin_parts"}) {
    EXPECT_TRUE(fs::exists(root / form / "pytorch_model.bin.index.json")) << form;
  }
  for (const char* form : {"safe_parts", "converted_safe_parts"}) {
    EXPECT_TRUE(fs::exists(root / form / "model.safetensors.index.json")) << form;
  }
}

constexpr const char* kOpenAll = R"(
import json, os, sys, torch, transformers
from safetensors.torch import load_file
transformers.logging.set_verbosity_error()
failed = False
for pair in sys.argv[1:]:
  root, answers = pair.split('=')
  want = load_file(f'{root}/logits/logits.safetensors')['logits']
  golden = load_file(answers)
  names = ('input_ids', 'attention_mask', 'token_type_ids')
  inputs = {n: golden[f'input.{n}'].long() for n in names if f'input.{n}' in golden}
  label = os.path.basename(root)
  for form in sorted(os.listdir(root)):
    folder = f'{root}/{form}'
    if form == 'logits' or form.startswith('.'): continue
    if form.startswith('split'):
      count = 0
      for path, _, files in os.walk(folder):
        for file in files:
          if not file.endswith(('.bin', '.pt')): continue
          value = torch.load(f'{path}/{file}', weights_only=True)
          value = value.get('model', value)
          assert value and all(isinstance(t, torch.Tensor) for t in value.values())
          count += 1
      print(f'{label} {form}: torch.load(weights_only=True) opens {count} files')
      continue
    name = json.load(open(f'{folder}/config.json'))['architectures'][0]
    model, info = getattr(transformers, name).from_pretrained(
        folder, attn_implementation='eager', output_loading_info=True)
    with torch.no_grad(): got = model.eval()(**inputs).logits
    off = (got - want).abs().max().item()
    left = [k for k in ('missing_keys', 'unexpected_keys', 'mismatched_keys') if info.get(k)]
    failed |= off > 5e-5 or bool(left)
    print(f'{label} {form}: {name}, logits differ by {off:.1e}', left or '')
sys.exit(failed)
)";

TEST(Transformers, EveryWrittenFormat_IsOpenedAndGivesTheSameLogits) {
  if (!test::python_has("transformers")) {
    GTEST_SKIP() << "python3 or $CLEAVE_PYTHON has no transformers";
  }
  const TempFolder folder;
  std::vector<std::string> pairs;
  for (const char* name :
       {"gpt2-6heads", "llama-gqa-tied", "llama-6heads", "bert-mlm", "bert-cls"}) {
    write_all_forms(folder / name, name);
    pairs.push_back((folder / name).string() + "=" + test::source_file("tests/golden/models/") +
                    name + ".safetensors");
  }
  const auto result = test::run_python(kOpenAll, pairs);
  std::cout << result.out;
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// Oracle: files that torch.save wrote as OSLO 2 does on two ranks, and transformers' logits.
TEST(Transformers, FilesThatTorchWroteAsOslo_AreLoadedOnAnyNumberOfRanks) {
  const fs::path stored = test::source_file("tests/golden/oslo");
  const auto answers = test::read_tensors(stored / "answers.safetensors");
  Batch batch;
  batch.ids = answers.at("input_ids").to(at::kLong);
  const TempFolder folder;
  for (const std::string ending : {"", "_ep_0"}) {
    const fs::path saved = folder / ("oslo" + ending);
    fs::create_directory(saved);
    fs::copy_file(stored / "config.json", saved / "config.json");
    for (const std::string rank : {"0", "1"}) {
      const std::string name = "pytorch_model_tp_" + rank + "_pp_0";
      fs::copy_file(stored / (name + ".bin"), saved / (name + ending + ".bin"));
    }
    for (const int tp : {1, 2, 3}) {
      on_world(tp, [&](World& world) {
        const Json config = Json::parse_file(saved / "config.json");
        ParallelModel model = initialize(make_model(config), config_of(tp), world);
        model.from_parallelized(saved);
        const at::NoGradGuard no_grad;
        const Tensor logits = model(batch).logits.full_tensor();
        EXPECT_LE(test::largest_difference(logits, answers.at("logits")), 5e-5) << tp;
      });
    }
  }
}

}  // namespace
}  // namespace cleave::oslo::oslo_transformers_test
