#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ranges>
#include <span>

#include <ATen/ATen.h>

#include "cleave/base/log.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/file/model_path.h"
#include "cleave/generate/evaluate.h"
#include "cleave/generate/runnable.h"
#include "cleave/model/label_task.h"
#include "cleave/nn/ids.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline generation {
namespace {

using nlohmann::ordered_json;
using Rows = std::vector<std::vector<int64_t>>;

/// The input of a run, shared by all ranks of a process.
struct Prediction {
  const PredictOptions& options;
  Runnable runnable;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<Texts> texts;
  int64_t seq_len;
  Rows rows{};   ///< token ids of each text or pair, at most seq_len
  Rows types{};  ///< token types; empty without pairs
};

std::vector<Texts> texts_of(const PredictOptions& options) {
  const std::vector<std::string>& second = options.second_texts;
  CLEAVE_CHECK(second.empty() || second.size() == options.texts.size(), Code::kUsage, "there are ",
               options.texts.size(), " --text and ", second.size(),
               " --text-pair; give one --text-pair for each --text");
  std::vector<Texts> texts;
  for (size_t i = 0; i < options.texts.size(); ++i) {
    texts.push_back({.first = options.texts[i]});
    if (!second.empty()) texts.back().second = second[i];
  }
  if (!options.text_file.empty()) {
    for_each_text(options.text_file, [&](const Texts& row) { texts.push_back(row); });
  }
  CLEAVE_CHECK(!texts.empty(), Code::kUsage, "there are ", texts.size(),
               " texts; give --text TEXT or --text-file FILE");
  return texts;
}

/// A text for the terminal: with line breaks and other control characters as a JSON text.
std::string shown(const std::string& text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  const bool has_control = std::any_of(text.begin(), text.end(), is_control);
  if (!has_control) return text;
  const bool has_del = text.find('\x7f') != std::string::npos;  // escaped only beside all non-ASCII
  return nlohmann::json(text).dump(-1, ' ', has_del, nlohmann::json::error_handler_t::replace);
}

/// Fills in the rows and types of the texts.
void encode(Prediction& p) {
  const bool has_pairs = std::any_of(p.texts.begin(), p.texts.end(),
                                     [](const Texts& texts) { return texts.second.has_value(); });
  for (const Texts& texts : p.texts) {
    Sample row = encode_texts(*p.tokenizer, texts, p.seq_len);
    CLEAVE_CHECK(!row.ids.empty(), Code::kUsage, "text ", p.rows.size() + 1,
                 " has no tokens; give some text");
    const int64_t largest = *std::max_element(row.ids.begin(), row.ids.end());
    CLEAVE_CHECK(largest < p.runnable.facts().vocab_size, Code::kShape, "text ", p.rows.size() + 1,
                 " has id ", largest, ", '", shown(p.tokenizer->token(largest).value_or("")),
                 "'; the model's ids are 0 to ", p.runnable.facts().vocab_size - 1,
                 "; leave this token out, or give the model's tokenizer with --tokenizer");
    row.token_types.resize(row.ids.size());
    if (has_pairs) p.types.push_back(std::move(row.token_types));
    p.rows.push_back(std::move(row.ids));
  }
}

/// The output for one text, as JSON and as plain text.
struct Output {
  ordered_json json;
  std::string text;
};

std::string line_of(const std::string& name, double probability) {
  return str("  ", fixed_text(probability, 4), "  ", shown(name), '\n');
}

/// Classes with their probabilities.
Output labels_of(const Prediction& p, const std::vector<std::pair<int64_t, double>>& classes) {
  Output out;
  out.json["labels"] = ordered_json::array();
  for (const auto& [number, probability] : classes) {
    const std::string& label = p.runnable.facts().labels[static_cast<size_t>(number)];
    out.json["labels"].push_back({{"label", label}, {"probability", probability}});
    out.text += line_of(label, probability);
  }
  return out;
}

/// The score of a model with one label, as in the pipelines of transformers: its logit in a
/// regression, else a probability.
Output score_of(const Prediction& p, const Tensor& logit) {
  const bool is_regression =
      p.runnable.folder().config.string_or("problem_type", "") == kRegression;
  const Tensor wide = logit.to(at::kDouble);
  const double score = (is_regression ? wide : wide.sigmoid()).item<double>();
  CLEAVE_CHECK(std::isfinite(score), Code::kNumerics,
               "the score is not finite; check the weights of the model");
  const std::string& label = p.runnable.facts().labels.front();
  return {.json = {{"label", label}, {"score", score}}, .text = line_of(label, score)};
}

Output classes_of(const Prediction& p, const Tensor& scores) {
  if (p.runnable.task() == Task::kMultilabel) return labels_of(p, ranked_sigmoids(scores));
  if (p.runnable.facts().labels.size() == 1) return score_of(p, scores);
  return labels_of(p, ranked(scores, 0));
}

/// A token as text; one of WordPiece with the mark ## of the rest of a word.
std::string word_of(const Tokenizer& tokenizer, int64_t id) {
  if (tokenizer.kind() == "WordPiece") return tokenizer.token(id).value_or("");
  return tokenizer.decode(std::array{id});
}

Output words_of(const Prediction& p, const std::vector<int64_t>& ids, const Tensor& scores) {
  const int64_t mask = *p.tokenizer->special().mask;
  Output out;
  out.json["masks"] = ordered_json::array();
  const auto count = std::count(ids.begin(), ids.end(), mask);
  for (size_t at = 0; at < ids.size(); ++at) {
    if (ids[at] != mask) continue;
    ordered_json words = ordered_json::array();
    if (count > 1) out.text += str("  token ", at, ":\n");
    for (const auto& [id, probability] :
         ranked(scores[static_cast<int64_t>(at)], p.options.top_k)) {
      const std::string word = word_of(*p.tokenizer, id);
      words.push_back({{"word", word}, {"id", id}, {"probability", probability}});
      out.text += line_of(word, probability);
    }
    out.json["masks"].push_back({{"token", at}, {"words", words}});
  }
  return out;
}

/// What is printed for one text, without the last line break.
std::string result_of(const Prediction& p, size_t index, const Tensor& scores) {
  const auto& [text, second] = p.texts[index];
  const Output output = labels_sequences(p.runnable.task()) ? classes_of(p, scores)
                                                            : words_of(p, p.rows[index], scores);
  if (p.options.json) {
    ordered_json row = {{"text", text}};
    if (second) row["text_pair"] = *second;
    row.update(output.json);
    return row.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
  std::string lines = shown(text) + '\n' + (second ? shown(*second) + '\n' : "") + output.text;
  lines.pop_back();
  return lines;
}

/// The rows of a batch; none of no rows.
Rows rows_of(const Rows& all, std::span<const size_t> batch) {
  Rows rows;
  if (all.empty()) return rows;
  rows.reserve(batch.size());
  for (const size_t index : batch) rows.push_back(all[index]);
  return rows;
}

/// Runs the texts in batches. Only rank 0 prints.
void run_rank(const Prediction& p, const Axis& tp) {
  const auto model = p.runnable.load(tp);
  for (const BatchWindow& window : windows_of(p.rows, p.options.batch_size)) {
    std::vector<std::string> results(window.rows.size());
    for (const std::span<const size_t> batch : window.batches()) {
      const Tensor scores = scores_of(*model, tp, rows_of(p.rows, batch), rows_of(p.types, batch));
      if (tp.rank() != 0) continue;
      for (size_t i = 0; i < batch.size(); ++i) {
        results[batch[i] - window.first] = result_of(p, batch[i], scores[static_cast<int64_t>(i)]);
      }
    }
    if (tp.rank() != 0) continue;
    for (const std::string& result : results) log_info(result);
  }
}

ConfigFingerprint fingerprint_of(const Prediction& p) {
  ConfigFingerprint fingerprint = p.runnable.fingerprint(p.options);
  fingerprint.emplace_back("--tokenizer with checksum", checksum_of(p.tokenizer.get()));
  fingerprint.emplace_back("texts with checksum", checksum_of(p.rows));
  fingerprint.emplace_back("pairs of texts with checksum", checksum_of(p.types));
  return fingerprint;
}

void check_masks(const Prediction& p) {
  if (labels_sequences(p.runnable.task())) return;
  const std::optional<int64_t> mask = p.tokenizer->special().mask;
  CLEAVE_CHECK(mask, Code::kUsage, "the ", p.tokenizer->kind(),
               " tokenizer has no mask token; give --tokenizer a folder that has one");
  for (size_t i = 0; i < p.rows.size(); ++i) {
    const auto size = static_cast<int64_t>(p.rows[i].size());
    const bool is_full = size == p.seq_len;
    CLEAVE_CHECK(
        std::find(p.rows[i].begin(), p.rows[i].end(), *mask) != p.rows[i].end(), Code::kUsage,
        "text ", i + 1, " has no ", *p.tokenizer->token(*mask), " in its ", is_full ? "first " : "",
        size, " tokens; put it where a word is to be predicted",
        is_full && size < p.runnable.facts().max_positions ? ", or give a larger --seq-len" : "");
  }
}

void predict_and_print(const PredictOptions& options) {
  CLEAVE_CHECK(options.batch_size >= 1, Code::kUsage, "--batch-size ", options.batch_size,
               " must be at least 1");
  Runnable runnable(options, {"mlm", "classify", "multilabel", "regression"});
  const auto tokenizer = runnable.tokenizer(options.tokenizer, /*is_needed=*/true);
  const int64_t seq_len = runnable.seq_len(options.seq_len, runnable.facts().max_positions);
  Prediction prediction{.options = options,
                        .runnable = std::move(runnable),
                        .tokenizer = tokenizer,
                        .texts = texts_of(options),
                        .seq_len = seq_len};
  encode(prediction);
  check_masks(prediction);
  run_on_ranks(
      options, [&] { return fingerprint_of(prediction); },
      [&](const RunAxes& axes) { run_rank(prediction, axes.tp); });
}

}  // namespace

namespace {

/// The `count` largest of [N] probabilities with their indexes, largest first.
std::vector<std::pair<int64_t, double>> largest(const Tensor& probabilities, int64_t count) {
  const auto [values, places] = probabilities.topk(count);
  CLEAVE_CHECK(values.isfinite().all().item<bool>(), Code::kNumerics,
               "the scores are not finite; check the weights of the model");
  std::vector<std::pair<int64_t, double>> out;
  for (int64_t i = 0; i < count; ++i) {
    out.emplace_back(places[i].item<int64_t>(), values[i].item<double>());
  }
  return out;
}

}  // namespace

std::vector<std::pair<int64_t, double>> ranked(const Tensor& scores, int64_t top_k) {
  const int64_t count = top_k > 0 ? std::min(top_k, scores.size(0)) : scores.size(0);
  return largest(scores.to(at::kDouble).softmax(0), count);
}

std::vector<std::pair<int64_t, double>> ranked_sigmoids(const Tensor& scores) {
  return largest(scores.to(at::kDouble).sigmoid(), scores.size(0));
}

std::vector<std::span<const size_t>> BatchWindow::batches() const {
  std::vector<std::span<const size_t>> out;
  for (size_t begin = 0; begin < rows.size(); begin += batch_size) {
    out.push_back(std::span(rows).subspan(begin, std::min(batch_size, rows.size() - begin)));
  }
  return out;
}

std::vector<BatchWindow> windows_of(const Rows& rows, int64_t batch_size) {
  constexpr size_t kBatches = 16;
  const size_t most = std::min(static_cast<size_t>(batch_size), rows.size());
  std::vector<BatchWindow> out;
  for (size_t first = 0; first < rows.size(); first += kBatches * most) {
    BatchWindow window{.first = first, .batch_size = most};
    window.rows.resize(std::min(kBatches * most, rows.size() - first));
    std::iota(window.rows.begin(), window.rows.end(), first);
    std::ranges::stable_sort(window.rows, {}, [&](size_t row) { return rows[row].size(); });
    out.push_back(std::move(window));
  }
  return out;
}

Tensor scores_of(Model& model, const Axis& tp, const Rows& rows, const Rows& types) {
  const at::NoGradGuard no_grad;
  size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  const std::vector<int64_t> shape{static_cast<int64_t>(rows.size()),
                                   static_cast<int64_t>(longest)};
  const int64_t pad = std::max<int64_t>(model.facts().pad_id.value_or(0), 0);
  const Tensor ids = at::full(shape, pad, at::kLong);
  const Tensor mask = at::zeros(shape, at::kBool);
  const Tensor token_types = at::zeros(types.empty() ? std::vector<int64_t>{0} : shape, at::kLong);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const auto length = static_cast<int64_t>(rows[i].size());
    ids[row].narrow(0, 0, length).copy_(at::tensor(rows[i], at::kLong));
    mask[row].narrow(0, 0, length).fill_(true);
    if (types.empty()) continue;
    token_types[row].narrow(0, 0, length).copy_(at::tensor(types[i], at::kLong));
  }
  Context context;
  const at::Device device = model.parameters().front()->leaf().device();
  if (!device.is_cpu()) check_ids(ids, model.facts().vocab_size, "the text: ");
  if (!mask.all().item<bool>()) context.key_mask = mask.to(device);
  if (!types.empty()) context.token_types = token_types.to(device);
  const DTensor y = model(DTensor(ids.to(device), tp, Replicate{}), context);
  const Tensor scores = y.full_tensor().to(at::kCPU);
  return scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat);
}

}  // namespace cleave::inline generation

void cleave_predict(const cleave::PredictOptions& options) {
  cleave::set_plain_kernels(options.plain_kernels);
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  read_from(folders_of({options.model, options.adapter, options.tokenizer}),
            [&] { predict_and_print(options); });
}
