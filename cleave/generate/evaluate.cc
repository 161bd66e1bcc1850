#include "cleave/generate/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/base/hash.h"
#include "cleave/base/log.h"
#include "cleave/base/progress.h"
#include "cleave/chat/pair_reader.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/data/batch.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/packing.h"
#include "cleave/file/model_path.h"
#include "cleave/generate/evaluate_pairs.h"
#include "cleave/generate/runnable.h"
#include "cleave/mesh/job.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/nn/head_loss.h"
#include "cleave/nn/ids.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline generation {
namespace {

/// What an evaluation reads.
struct EvalInput {
  const EvalOptions& options;
  const Runnable& runnable;
  Task task;
  std::shared_ptr<const Tokenizer> tokenizer;
  int64_t seq_len;
};

/// The template of chats; null without a tokenizer, which the dataset refuses.
std::shared_ptr<const ChatTemplate> chat_template_of(const EvalInput& input) {
  if (!input.tokenizer) return nullptr;
  return load_model_chat_template("", input.runnable.tokenizer_folder(input.options.tokenizer),
                                  *input.tokenizer, kTrainingTime);
}

/// Shows what did not fit into the sequences.
void warn_of(const std::string& what_was_cut) {
  if (!what_was_cut.empty()) log_warning_once(what_was_cut);
}

std::shared_ptr<const Dataset> data_of(const EvalInput& input) {
  const ModelFacts& facts = input.runnable.facts();
  const std::vector<std::string>& files = input.options.data;
  const int64_t seq_len = input.seq_len;
  CLEAVE_CHECK(seq_len >= 2, Code::kShape, "--seq-len ", seq_len,
               " is too short; give at least 2 tokens");
  const DatasetOptions data{.files = files,
                            .tokenizer = input.tokenizer,
                            .seq_len = seq_len,
                            .cache_folder = "",
                            .vocab_size = facts.vocab_size,
                            .task = input.task,
                            .classes = facts.labels};
  if (data.task == Task::kDpo) {
    PairCounts counts;
    auto pairs =
        pair_dataset(data, holds_message_pairs(files) ? chat_template_of(input) : nullptr, &counts);
    warn_of(counts.warning(seq_len));
    return pairs;
  }
  if (labels_sequences(data.task) || !holds_chats(files)) {
    // The loss of rows of ids is the same with packing, so they are not packed.
    if (!input.runnable.is_packing() || !joins_text(data.task, files)) return open_dataset(data);
    return packed_samples(open_documents(data), {.seq_len = seq_len, .shuffle = false});
  }
  ChatCounts counts;
  auto chats = chat_dataset(data, {.chat_template = chat_template_of(input)}, &counts);
  warn_of(counts.warning(seq_len));
  return chats;
}

void print_preferences(const PreferenceScore& score, bool json) {
  const double accuracy = static_cast<double>(score.right) / static_cast<double>(score.pairs);
  if (json) {
    const nlohmann::ordered_json row = {{"loss", score.loss},
                                        {"reward_margin", score.reward_margin},
                                        {"reward_accuracy", accuracy},
                                        {"right", score.right},
                                        {"pairs", score.pairs}};
    log_info(row.dump());
  } else {
    log_info("loss ", score.loss, "  reward margin ", score.reward_margin, "  reward accuracy ",
             accuracy, "  (", score.right, " of ", counted(score.pairs, "pair"), ")");
  }
}

void print_classes(const ClassScore& score, int64_t rows, bool json) {
  const double accuracy = static_cast<double>(score.right) / static_cast<double>(rows);
  if (json) {
    const nlohmann::ordered_json row = {{"loss", score.loss},
                                        {"accuracy", accuracy},
                                        {"macro_f1", score.macro_f1},
                                        {"right", score.right},
                                        {"rows", rows}};
    log_info(row.dump());
  } else {
    log_info("loss ", score.loss, "  accuracy ", accuracy, "  macro F1 ", score.macro_f1, "  (",
             score.right, " of ", counted(rows, "sequence"), ")");
  }
}

void print_errors(const ScoreErrors& errors, int64_t rows, bool json) {
  if (json) {
    nlohmann::ordered_json row = {{"loss", errors.mean_squared}, {"mae", errors.mean_absolute}};
    row["pearson"] = nullptr;
    if (std::isfinite(errors.pearson)) row["pearson"] = errors.pearson;
    row["rows"] = rows;
    log_info(row.dump());
  } else {
    log_info("loss ", errors.mean_squared, "  mean absolute error ", errors.mean_absolute,
             "  Pearson correlation ", errors.pearson, "  (", counted(rows, "sequence"), ")");
  }
}

void print_multilabel(const MultilabelScore& score, int64_t rows, bool json) {
  if (json) {
    const nlohmann::ordered_json row = {{"loss", score.loss},
                                        {"micro_f1", score.micro_f1},
                                        {"macro_f1", score.macro_f1},
                                        {"exact_match", score.exact_match},
                                        {"rows", rows}};
    log_info(row.dump());
  } else {
    log_info("loss ", score.loss, "  micro F1 ", score.micro_f1, "  macro F1 ", score.macro_f1,
             "  exact match ", score.exact_match, "  (", counted(rows, "sequence"), ")");
  }
}

void print_perplexity(const EvalSum& result, int64_t /*rows*/, bool json) {
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

/// Progress of an evaluation, shown by rank 0 on a terminal; other output is just the result.
class EvalProgress {
 public:
  EvalProgress(const RunAxes& axes, int64_t total, const std::string& unit) {
    if (!axes.is_first()) return;
    progress_.emplace(ProgressOptions{.total = total,
                                      .unit = unit,
                                      .may_be_live = launched_world_size() == 0,
                                      .line_every_s = INFINITY});
  }
  void update(int64_t done) {
    if (progress_) progress_->update(done);
  }
  /// Removes it, so that the result can be printed.
  void end() { progress_.reset(); }

 private:
  std::optional<Progress> progress_;
};

/// The model, whose head computes the loss in parts if its logits are large.
std::unique_ptr<Model> loaded(const Runnable& runnable, const RunAxes& axes) {
  auto model = runnable.load(axes.tp, axes.ep);
  if (auto* head = dynamic_cast<Linear*>(model->sequence().back())) compute_loss_in_parts(*head);
  return model;
}

void evaluate_and_print(const EvalInput& input, const Dataset& data, const RunAxes& axes) {
  const auto model = loaded(input.runnable, axes);
  const BatchRules rules = batch_rules(*model, input.tokenizer.get(), data.is_text(), kEvalSeed);
  EvalProgress progress(axes, data.size(), "sequence");
  const auto on_samples = [&](int64_t done) { progress.update(done); };
  const auto run = [&](auto evaluate_model, auto print) {
    const auto result =
        evaluate_model(*model, axes.tp, data, input.options.batch_size, rules, on_samples);
    progress.end();
    if (axes.is_first()) print(result, data.size(), input.options.json);
  };
  switch (input.task) {
    case Task::kClassify:
      return run(evaluate_classes, print_classes);
    case Task::kRegression:
      return run(evaluate_scores, print_errors);
    case Task::kMultilabel:
      return run(evaluate_multilabel, print_multilabel);
    default:
      return run(evaluate, print_perplexity);
  }
}

void require_finite(double loss) {
  CLEAVE_CHECK(std::isfinite(loss), Code::kNumerics,
               "the loss is not finite; check the weights of the model");
}

/// The logits of all sequences in fp64, and their targets.
std::pair<Tensor, Tensor> predictions_of(Model& model, const Axis& tp, const Dataset& data,
                                         int64_t batch_size, const BatchRules& rules,
                                         const std::function<void(int64_t)>& on_samples) {
  std::vector<Tensor> predicted, wanted;
  for_batches(model, data, batch_size, rules, [&](const Batch& batch, int64_t first) {
    const DTensor output = model(DTensor(batch.ids, tp, Replicate{}), context_of(batch));
    predicted.push_back(output.full_tensor().to(at::kDouble));
    wanted.push_back(targets_of(batch, task_of(model)));
    if (on_samples) on_samples(first + batch.ids.size(0));
  });
  return {at::cat(predicted), at::cat(wanted)};
}

/// F1 of bools along dim 0; 0 where nothing is wanted or predicted, as in scikit-learn.
Tensor f1_of(const Tensor& predicted, const Tensor& wanted) {
  const Tensor right = (predicted * wanted).sum(0).to(at::kDouble);
  const Tensor both = predicted.sum(0) + wanted.sum(0);
  return 2 * right / both.clamp_min(1);
}

/// One model after the other, so that the memory of one is enough.
void evaluate_and_print_pairs(const EvalInput& input, const Runnable& reference,
                              const Dataset& pairs, const RunAxes& axes) {
  EvalProgress progress(axes, 2 * pairs.size(), "pair");
  int64_t before = 0;
  const auto log_probs_of = [&](const Runnable& runnable) {
    const auto model = loaded(runnable, axes);
    Tensor all = pair_log_probs(*model, axes.tp, pairs, input.options.batch_size,
                                [&](int64_t done) { progress.update(before + done); });
    before += pairs.size();
    return all;
  };
  const Tensor log_probs = log_probs_of(input.runnable);
  const PreferenceScore score =
      preference_score(log_probs, log_probs_of(reference), input.options.dpo_beta);
  progress.end();
  if (axes.is_first()) print_preferences(score, input.options.json);
}

void evaluate_and_print(const EvalOptions& options) {
  const Runnable runnable(options, {"lm", "mlm", "classify", "multilabel", "regression"});
  std::optional<Runnable> reference;
  if (evaluates_pairs(options, runnable)) reference = reference_of(options, runnable);
  // Rows of ids need no tokenizer, and the kind of the files is not known yet.
  const EvalInput input{.options = options,
                        .runnable = runnable,
                        .task = reference ? Task::kDpo : runnable.task(),
                        .tokenizer = runnable.tokenizer(options.tokenizer, /*is_needed=*/false),
                        .seq_len = runnable.seq_len(options.seq_len, kDefaultSeqLen)};
  const auto data = data_of(input);
  CLEAVE_CHECK(options.batch_size >= 1, Code::kUsage, "--batch-size ", options.batch_size,
               " must be at least 1");
  const auto fingerprint = [&] {
    ConfigFingerprint all = runnable.fingerprint(options);
    all.emplace_back("--seq-len", str(input.seq_len));
    all.emplace_back("--tokenizer with checksum", checksum_of(input.tokenizer.get()));
    all.emplace_back("--data with checksum", to_hex(data->fingerprint()));
    if (!reference) return all;
    for (auto& [name, value] : reference->fingerprint(options)) {
      all.emplace_back("--reference: " + name, std::move(value));
    }
    return all;
  };
  run_on_ranks(options, fingerprint, [&](const RunAxes& axes) {
    reference ? evaluate_and_print_pairs(input, *reference, *data, axes)
              : evaluate_and_print(input, *data, axes);
  });
}

}  // namespace

void for_batches(Model& model, const Dataset& data, int64_t batch_size, const BatchRules& rules,
                 const std::function<void(const Batch& batch, int64_t first)>& visit) {
  const at::NoGradGuard no_grad;
  const at::Device device = model.parameters().front()->leaf().device();
  const SampleOrder order{.num_samples = data.size(), .batch_size = batch_size, .shuffle = false};
  for (int64_t first = 0, step = 0; first < data.size(); first += batch_size, ++step) {
    const int64_t count = std::min(batch_size, data.size() - first);
    const Batch on_host = rules.make_for_eval(data, order, step, 0, count);
    if (!device.is_cpu()) check_ids(on_host.ids, model.facts().vocab_size, "the data: ");
    const Batch batch = on_host.to(device);
    CLEAVE_CHECK(batch.ids.size(1) <= model.facts().max_positions, Code::kShape,
                 "a sequence of the data has ", batch.ids.size(1), " ids; the model has ",
                 model.facts().max_positions, " positions");
    visit(batch, first);
  }
}

EvalSum evaluate(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                 const BatchRules& rules, const std::function<void(int64_t)>& on_samples) {
  const Task task = task_of(model);
  EvalSum result;
  for_batches(model, data, batch_size, rules, [&](const Batch& batch, int64_t first) {
    const Tensor targets = targets_of(batch, task);
    Context context = context_of(batch);
    if (task == Task::kLm) {
      context.head_loss = std::make_shared<const HeadLoss>(HeadLoss{.labels = targets});
    }
    const DTensor output = model(DTensor(batch.ids, tp, Replicate{}), context);
    result += eval_of(output, targets, task);
    if (on_samples) on_samples(first + batch.ids.size(0));
  });
  CLEAVE_CHECK(result.num_labels > 0, Code::kUsage, "the data has ", result.num_labels,
               " labels; evaluation needs at least one");
  require_finite(result.loss());
  return result;
}

ClassScore class_score(const Tensor& logits, const Tensor& classes) {
  const Tensor predicted = logits.argmax(1);
  const Tensor guessed = at::one_hot(predicted, logits.size(1));
  const Tensor wanted = at::one_hot(classes, logits.size(1));
  const Tensor occurs = (guessed + wanted).gt(0).any(0);
  return {.loss = at::cross_entropy_loss(logits, classes).item<double>(),
          .right = predicted.eq(classes).sum().item<int64_t>(),
          .macro_f1 = f1_of(guessed, wanted).masked_select(occurs).mean().item<double>()};
}

ClassScore evaluate_classes(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                            const BatchRules& rules,
                            const std::function<void(int64_t)>& on_samples) {
  const auto [logits, classes] = predictions_of(model, tp, data, batch_size, rules, on_samples);
  const ClassScore score = class_score(logits, classes);
  require_finite(score.loss);
  return score;
}

ScoreErrors score_errors(const Tensor& predicted, const Tensor& wanted) {
  const Tensor errors = predicted - wanted;
  const auto is_constant = [](const Tensor& t) { return t.min().equal(t.max()); };
  ScoreErrors out{.mean_squared = errors.square().mean().item<double>(),
                  .mean_absolute = errors.abs().mean().item<double>(),
                  .pearson = NAN};
  if (is_constant(predicted) || is_constant(wanted)) return out;
  const Tensor a = predicted - predicted.mean(), b = wanted - wanted.mean();
  out.pearson = (a.dot(b) / (a.norm() * b.norm())).item<double>();
  return out;
}

ScoreErrors evaluate_scores(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                            const BatchRules& rules,
                            const std::function<void(int64_t)>& on_samples) {
  const auto [predicted, wanted] = predictions_of(model, tp, data, batch_size, rules, on_samples);
  const ScoreErrors errors = score_errors(predicted.squeeze(1), wanted);
  require_finite(errors.mean_squared);
  return errors;
}

MultilabelScore multilabel_score(const Tensor& logits, const Tensor& targets) {
  const Tensor predicted = logits.ge(0), wanted = targets.ge(0.5);  // a logit of 0: probability 0.5
  return {.loss = at::binary_cross_entropy_with_logits(logits, targets).item<double>(),
          .micro_f1 = f1_of(predicted.flatten(), wanted.flatten()).item<double>(),
          .macro_f1 = f1_of(predicted, wanted).mean().item<double>(),
          .exact_match = predicted.eq(wanted).all(1).to(at::kDouble).mean().item<double>()};
}

MultilabelScore evaluate_multilabel(Model& model, const Axis& tp, const Dataset& data,
                                    int64_t batch_size, const BatchRules& rules,
                                    const std::function<void(int64_t)>& on_samples) {
  const auto [logits, targets] = predictions_of(model, tp, data, batch_size, rules, on_samples);
  const MultilabelScore score = multilabel_score(logits, targets);
  require_finite(score.loss);
  return score;
}

}  // namespace cleave::inline generation

void cleave_eval(const cleave::EvalOptions& options) {
  cleave::set_plain_kernels(options.plain_kernels);
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  read_from(folders_of({options.model, options.adapter, options.tokenizer, options.reference}),
            [&] { evaluate_and_print(options); });
}
