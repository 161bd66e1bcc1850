#include "tutorial.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "cleave/checkpoint/load.h"
#include "cleave/data/order.h"
#include "cleave/nn/cross_entropy.h"
#include "squad.h"

namespace gpt2_squad {
namespace {

namespace oslo = cleave::oslo;
namespace fs = std::filesystem;

// AutoModelForCausalLM.from_pretrained
std::unique_ptr<cleave::Model> from_pretrained(const std::string& path) {
  const auto folder = cleave::ModelFolder::open(path);
  auto model = cleave::make_model(folder.config);
  cleave::load_model(*model, folder, at::kFloat);
  return model;
}

// Mean over the data-parallel ranks.
double mean(const oslo::ParallelModel& model, const at::Tensor& loss) {
  const auto& dp = model.data_parallel();
  return dp.all_reduce(loss.detach(), "loss").item<double>() / dp.size();
}

double loss_of(const cleave::DTensor& logits, const at::Tensor& labels,
               const oslo::ParallelModel& model) {
  const at::NoGradGuard no_grad;
  return mean(model, cleave::cross_entropy(logits, cleave::next_token_labels(labels)).local());
}

void print(int64_t step, const Step& s) {
  std::printf("step %3lld  loss %.4f  with padding %.4f\n", static_cast<long long>(step), s.loss,
              s.loss_with_padding);
  (void)std::fflush(stdout);
}

}  // namespace

std::string continue_text(oslo::ParallelModel& model, const cleave::Tokenizer& tokenizer,
                          const std::string& text) {
  cleave::Ids ids = tokenizer.encode(text);
  const auto& facts = model.model().facts();
  const cleave::Generation generation =
      model.generate({ids}, {.max_new_tokens = 24, .num_beams = 3, .eos_ids = facts.eos_ids});
  const cleave::Ids& new_ids = generation.prompts[0][0].ids;
  ids.insert(ids.end(), new_ids.begin(), new_ids.end());
  return tokenizer.decode(ids, /*skip_special=*/true);
}

std::vector<Step> train(cleave::World& world, const TutorialOptions& o,
                        const std::vector<std::string>& contexts) {
  auto whole = from_pretrained(o.model);
  cleave::Optimizer optimizer(whole->parameters(), {.kind = cleave::OptimizerOptions::Kind::kAdam});
  const auto tokenizer = cleave::load_tokenizer(o.model);
  oslo::ParallelModel model = oslo::initialize(std::move(whole), o.config, world);

  // datasets[: TRAIN_STEP * BATCH_SIZE], distributed over the data-parallel ranks.
  const auto& dp = model.data_parallel();
  const int64_t global_batch = o.batch_size * dp.size();
  CLEAVE_CHECK(global_batch <= std::ssize(contexts), cleave::Code::kUsage,
               "batch_size=", o.batch_size, " on ", dp.size(),
               " data-parallel ranks is more than the ", contexts.size(),
               " contexts of the data; choose a smaller batch_size");
  const cleave::SampleOrder order{
      .num_samples = std::min(std::ssize(contexts), o.train_step * global_batch),
      .batch_size = global_batch,
      .shuffle = o.shuffle,
      .seed = o.seed};
  const bool prints = o.print && world.rank() == 0;
  std::vector<Step> steps;
  for (int64_t step = 0; step < o.train_step; ++step) {
    world.note_step(step + 1);
    std::vector<std::string> texts;
    for (int64_t i = 0; i < o.batch_size; ++i) {
      const int64_t sample = order.at(step, dp.rank() * o.batch_size + i);
      texts.push_back(contexts[static_cast<size_t>(sample)]);
    }
    const auto batch = [&](bool learns_padding) {
      return batch_of(*tokenizer, texts, {.seq_len = o.seq_len, .learns_padding = learns_padding});
    };

    optimizer.zero_grad();
    const oslo::Output output = model(batch(o.learns_padding));
    output.loss.backward();
    Step s;
    s.grad_norm = model.step(optimizer, o.lr);
    s.loss = loss_of(output.logits, batch(false).labels, model);
    s.loss_with_padding = loss_of(output.logits, batch(true).labels, model);
    steps.push_back(s);
    if (prints && (step % 10 == 0 || step + 1 == o.train_step)) print(step, s);

    if (o.output_dir.empty() || step % o.save_interval != 0) continue;
    model.save_parallelized(o.output_dir + "/parallel_ckpt");
    if (prints) std::printf("step %3lld  saved parallel_ckpt\n", static_cast<long long>(step));
  }
  return steps;
}

std::string merge(cleave::World& world, const TutorialOptions& o, const std::string& text) {
  const auto tokenizer = cleave::load_tokenizer(o.model);
  const cleave::Json config = cleave::Json::parse_file(o.model + "/config.json");
  // A model without weights: each rank then loads only its shards.
  oslo::ParallelModel model = oslo::initialize(cleave::make_model(config), o.config, world);
  model.from_parallelized(o.output_dir + "/parallel_ckpt");
  model.save_parallelized(o.output_dir + "/merged_ckpt", {.merge_checkpoints = true});
  if (world.rank() == 0) {  // tokenizer.save_pretrained
    for (const std::string& name : cleave::tokenizer_files(o.model)) {
      fs::copy_file(fs::path(o.model) / name, fs::path(o.output_dir) / "merged_ckpt" / name,
                    fs::copy_options::overwrite_existing);
    }
  }
  return continue_text(model, *tokenizer, text);
}

}  // namespace gpt2_squad
