#include "cleave/generate/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/base/hash.h"
#include "cleave/base/log.h"
#include "cleave/base/progress.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/data/batch.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/generate/runnable.h"
#include "cleave/mesh/job.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/nn/ids.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline generation {
namespace {

/// Tokens per sequence if neither the flag nor the folder says it; train has the same default.
constexpr int64_t kSeqLen = 256;

std::shared_ptr<const Dataset> data_of(const EvalOptions& options, int64_t seq_len,
                                       const Runnable& runnable,
                                       const std::shared_ptr<const Tokenizer>& tokenizer) {
  const ModelFacts& facts = runnable.facts();
  CLEAVE_CHECK(seq_len >= 2, Code::kShape, "--seq-len ", seq_len,
               " is too short; give at least 2 tokens");
  const DatasetOptions data{.files = options.data,
                            .tokenizer = tokenizer,
                            .seq_len = seq_len,
                            .cache_folder = "",
                            .vocab_size = facts.vocab_size,
                            .task = runnable.task(),
                            .classes = facts.labels};
  if (data.task == Task::kClassify || !holds_chats(options.data)) {
    return open_dataset(data);
  }
  ChatOptions chat;
  if (tokenizer) {
    chat.chat_template = load_model_chat_template("", runnable.tokenizer_folder(options.tokenizer),
                                                  *tokenizer, kTrainingTime);
  }
  ChatCounts counts;
  auto chats = chat_dataset(data, chat, &counts);
  const std::string warning = counts.warning(seq_len);
  const auto environment = read_environment();
  if (!warning.empty() && (!environment || environment->rank == 0)) log_warning(warning);
  return chats;
}

void print_accuracy(const EvalSum& result, bool json) {
  if (json) {
    const nlohmann::ordered_json row = {{"loss", result.loss()},
                                        {"accuracy", result.accuracy()},
                                        {"right", result.num_right},
                                        {"rows", result.num_labels}};
    log_info(row.dump());
  } else {
    log_info("loss ", result.loss(), "  accuracy ", result.accuracy(), "  (", result.num_right,
             " of ", counted(result.num_labels, "sequence"), ")");
  }
}

void print_perplexity(const EvalSum& result, bool json) {
  if (json) {
    nlohmann::ordered_json row;
    row["loss"] = result.loss();
    row["perplexity"] = nullptr;
    if (std::isfinite(result.perplexity())) row["perplexity"] = result.perplexity();
    row["tokens"] = result.num_labels;
    log_info(row.dump());
  } else {
    log_info("loss ", result.loss(), "  perplexity ", result.perplexity(), "  tokens ",
             result.num_labels);
  }
}

}  // namespace

EvalSum evaluate(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                 const BatchRules& rules, const std::function<void(int64_t)>& on_samples) {
  const at::NoGradGuard no_grad;
  const at::Device device = model.parameters().front()->leaf().device();
  const SampleOrder order{.num_samples = data.size(), .batch_size = batch_size, .shuffle = false};
  EvalSum result;
  for (int64_t first = 0, step = 0; first < data.size(); first += batch_size, ++step) {
    const int64_t count = std::min(batch_size, data.size() - first);
    const Batch on_host = rules.make_for_eval(data, order, step, 0, count);
    if (!device.is_cpu()) check_ids(on_host.ids, model.facts().vocab_size, "the data: ");
    const Batch batch = on_host.to(device);
    CLEAVE_CHECK(batch.ids.size(1) <= model.facts().max_positions, Code::kShape,
                 "a sequence of the data has ", batch.ids.size(1), " ids; the model has ",
                 model.facts().max_positions, " positions");
    const DTensor logits = model(DTensor(batch.ids, tp, Replicate{}), context_of(batch));
    const Task task = task_of(model);
    result += eval_of(logits, targets_of(batch, task), task);
    if (on_samples) on_samples(first + count);
  }
  CLEAVE_CHECK(result.num_labels > 0, Code::kUsage, "the data has ", result.num_labels,
               " labels; evaluation needs at least one");
  return result;
}

}  // namespace cleave::inline generation

void cleave_eval(const cleave::EvalOptions& options) {
  cleave::set_plain_kernels(options.plain_kernels);
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  const Runnable runnable(options, {"lm", "mlm", "classify"});
  // Rows of ids need no tokenizer, and the kind of the files is not known yet.
  const auto tokenizer = runnable.tokenizer(options.tokenizer, /*is_needed=*/false);
  const int64_t seq_len = runnable.seq_len(options.seq_len, kSeqLen);
  const auto data = data_of(options, seq_len, runnable, tokenizer);
  CLEAVE_CHECK(options.batch_size >= 1, Code::kUsage, "--batch-size ", options.batch_size,
               " must be at least 1");
  const auto fingerprint = [&] {
    ConfigFingerprint all = runnable.fingerprint(options);
    all.emplace_back("--seq-len", str(seq_len));
    all.emplace_back("--tokenizer with checksum", checksum_of(tokenizer.get()));
    all.emplace_back("--data with checksum", to_hex(data->fingerprint()));
    return all;
  };
  run_on_ranks(options, fingerprint, [&](const Axis& tp) {
    const auto model = runnable.load(tp);
    const BatchRules rules = batch_rules(*model, tokenizer.get(), data->is_text(), 0);
    // Progress is only shown on a terminal; other output is just the result.
    std::optional<Progress> progress;
    if (tp.rank() == 0) {
      progress.emplace(ProgressOptions{.total = data->size(),
                                       .unit = "sequence",
                                       .may_be_live = launched_world_size() == 0,
                                       .line_every_s = INFINITY});
    }
    const EvalSum result =
        evaluate(*model, tp, *data, options.batch_size, rules, [&progress](int64_t done) {
          if (progress) progress->update(done);
        });
    progress.reset();
    if (tp.rank() != 0) return;
    runnable.task() == Task::kClassify ? print_accuracy(result, options.json)
                                       : print_perplexity(result, options.json);
  });
}
