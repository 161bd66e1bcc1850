#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <ATen/Parallel.h>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/data/class_labels.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/documents.h"
#include "cleave/text/csv.h"
#include "cleave/text/jsonl.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline data {
namespace {

namespace fs = std::filesystem;

/// The fields of a row with a text, or with two.
struct TextFields {
  std::string_view first;
  std::string_view second{};  ///< empty: none
  bool operator==(const TextFields&) const = default;
};
// Pairs come first, because a row may have more fields than those that it is about. Source of the
// names: the data sets of GLUE on the Hub.
constexpr std::array<TextFields, 9> kTextFields{{{"text", "text_pair"},
                                                 {"sentence1", "sentence2"},
                                                 {"premise", "hypothesis"},
                                                 {"question1", "question2"},
                                                 {"question", "sentence"},
                                                 {"text"},
                                                 {"review"},
                                                 {"sentence"},
                                                 {"comment_text"}}};
constexpr std::array<std::string_view, 4> kTextColumns{"text", "review", "sentence",
                                                       "comment_text"};
constexpr std::array<std::string_view, 2> kLabelColumns{"label", "sentiment"};
constexpr std::array<std::string_view, 2> kScoreColumns{"label", "score"};  // of a regression

/// Receives a row's texts, its label, and its location (file:line).
using VisitLabelled =
    std::function<void(const Texts& texts, const Label& label, const std::string& at)>;

/// The fields of a row for which has(name) is true; nullopt if it has no text.
template <class Has>
std::optional<TextFields> fields_of(const Has& has) {
  for (const TextFields& fields : kTextFields) {
    if (has(fields.first) && (fields.second.empty() || has(fields.second))) return fields;
  }
  return std::nullopt;
}

/// The texts of the rows of a CSV file.
class CsvTexts {
 public:
  explicit CsvTexts(const CsvReader& rows) {
    const std::vector<std::string>& header = rows.header();
    const auto fields = fields_of([&](std::string_view name) {
      return std::find(header.begin(), header.end(), name) != header.end();
    });
    first_ = rows.column(fields ? std::span(&fields->first, 1) : std::span(kTextColumns));
    if (fields && !fields->second.empty()) second_ = rows.column(std::span(&fields->second, 1));
  }
  [[nodiscard]] Texts of(const std::vector<std::string>& row) const {
    Texts texts{.first = row[first_]};
    if (second_) texts.second = row[*second_];
    return texts;
  }
  /// Which of a row's `num_columns` columns these are.
  [[nodiscard]] std::vector<bool> columns(size_t num_columns) const {
    std::vector<bool> is_text(num_columns);
    is_text[first_] = true;
    if (second_) is_text[*second_] = true;
    return is_text;
  }

 private:
  size_t first_ = 0;
  std::optional<size_t> second_;
};

/// The texts of the rows of a JSONL file.
class JsonTexts {
 public:
  Texts of(const Json& row) {
    const TextFields fields = fields_of([&](std::string_view name) {
                                return row.has(name);
                              }).value_or(TextFields{.first = "text"});
    if (!fields_) fields_ = fields;
    if (fields != *fields_) {
      row.fail(str("it has ", listed(fields), ", the rows before it have ", listed(*fields_),
                   "; give all rows of a file the same"));
    }
    Texts texts{.first = row.at(fields.first).as_string()};
    if (!fields.second.empty()) texts.second = row.at(fields.second).as_string();
    return texts;
  }

 private:
  static std::string listed(const TextFields& fields) {
    const auto quoted = [](std::string_view name) { return str('"', name, '"'); };
    return fields.second.empty() ? quoted(fields.first)
                                 : str(quoted(fields.first), " and ", quoted(fields.second));
  }
  std::optional<TextFields> fields_;  // of the first row
};

/// The label of a JSONL row: a name, or a whole number.
Label label_of(const Json& row) {
  const Json value = label_in(row);
  if (value.is(Json::Type::kString)) return {.text = value.as_string()};
  if (value.is(Json::Type::kNumber) && !value.is_int()) {
    value.fail("expected the name of a class, or its index; --task regression learns numbers");
  }
  if (value.is(Json::Type::kArray)) {
    value.fail("expected one class; --task multilabel learns several classes of a text");
  }
  return {.text = std::to_string(value.as_int(0)), .is_index = true};
}

void visit_csv(const std::string& path, const VisitLabelled& visit) {
  CsvReader rows(path);
  const CsvTexts texts(rows);
  const size_t label = rows.column(kLabelColumns);
  while (const auto row = rows.next()) {
    visit(texts.of(*row), {.text = (*row)[label]}, rows.place());
  }
}

void visit_jsonl(const std::string& path, const VisitLabelled& visit) {
  JsonLines rows(path);
  JsonTexts texts;
  while (const std::optional<Json> row = rows.next()) {
    visit(texts.of(*row), label_of(*row), rows.place());
  }
}

void for_each_labelled(const std::string& path, const VisitLabelled& visit) {
  // An empty field is a missing value, which must not become a class of its own.
  const VisitLabelled check = [&](const auto& texts, const auto& label, const auto& at) {
    CLEAVE_CHECK(!label.text.empty(), Code::kFormat, at, ": the label is empty; remove the row");
    visit(texts, label, at);
  };
  is_csv(path) ? visit_csv(path, check) : visit_jsonl(path, check);
}

/// Receives a row's texts, its number, and its location (file:line).
using VisitScored = std::function<void(const Texts& texts, double score, const std::string& at)>;

void for_each_scored(const std::string& path, const VisitScored& visit) {
  if (is_csv(path)) {
    CsvReader rows(path);
    const CsvTexts texts(rows);
    const size_t label = rows.column(kScoreColumns);
    while (const auto row = rows.next()) {
      const std::optional<double> score = number_in((*row)[label]);
      CLEAVE_CHECK(score, Code::kFormat, rows.place(), ": label '", (*row)[label],
                   "' is not a number, which a regression learns; correct it, or remove the row");
      visit(texts.of(*row), *score, rows.place());
    }
    return;
  }
  JsonLines rows(path);
  JsonTexts texts;
  while (const std::optional<Json> row = rows.next()) {
    visit(texts.of(*row), score_in(*row), rows.place());
  }
}

/// Receives a row's texts, its classes, and its location (file:line).
using VisitLabelSet =
    std::function<void(const Texts& texts, const LabelSet& labels, const std::string& at)>;

/// `classes`: those of the model, which a file with a column per class must have.
void for_each_label_set(const std::string& path, const std::vector<std::string>& classes,
                        const VisitLabelSet& visit) {
  if (is_csv(path)) {
    CsvReader rows(path);
    const CsvTexts texts(rows);
    const CsvLabelSets labels(rows, texts.columns(rows.header().size()), classes);
    while (const auto row = rows.next()) {
      visit(texts.of(*row), labels.of(*row, rows.place()), rows.place());
    }
    return;
  }
  JsonLines rows(path);
  JsonTexts texts;
  while (const std::optional<Json> row = rows.next()) {
    visit(texts.of(*row), label_set(label_in(*row)), rows.place());
  }
}

/// The classes of which a CSV file has a column each; none of another file.
std::vector<std::string> class_columns(const std::string& path) {
  if (!is_csv(path)) return {};
  const CsvReader rows(path);
  return CsvLabelSets(rows, CsvTexts(rows).columns(rows.header().size()), {}).columns();
}

std::string described(const std::vector<std::string>& class_columns) {
  return class_columns.empty() ? "a list of classes in each row"
                               : str("the columns ", listed(class_columns));
}

/// Whether the file is JSONL whose first row has texts under the names of kTextFields.
bool begins_with_texts(const std::string& path) {
  if (fs::path(path).extension() != ".jsonl") return false;
  const std::optional<Json> row = JsonLines(path).next();
  return row && row->is(Json::Type::kObject) &&
         fields_of([&](std::string_view name) { return row->has(name); });
}

/// Whether the rows of a file hold token ids instead of text.
bool has_rows_of_ids(const std::string& path) {
  if (is_csv(path) || begins_with_texts(path)) return false;
  const FileKind kind = file_kind(path);
  CLEAVE_CHECK(kind != FileKind::kText, Code::kFormat, path, " is ", name(kind),
               ", which has no labels; expected CSV with a header (named .csv), or JSONL with "
               "\"text\" or \"input_ids\" and \"label\"");
  return kind == FileKind::kJsonRows;
}

/// A regression whose task was not given would become a classifier without a word.
void warn_of_fractions(const std::set<std::string>& names) {
  bool have_fractions = false;
  for (const std::string& name : names) {
    const std::optional<double> score = number_in(name);
    if (!score) return;
    have_fractions = have_fractions || *score != std::floor(*score);
  }
  if (!have_fractions) return;
  log_warning_once("the labels are numbers with a fraction, and each of the ", names.size(),
                   " becomes a class; to learn the numbers, give --task regression");
}

class ClassifiedDataset final : public Dataset {
 public:
  explicit ClassifiedDataset(const DatasetOptions& options) : options_(options) {}

  void append(const Texts& texts, const Label& label, const std::string& at) {
    labels_.push_back(class_of(label, options_.classes, at));
    append(texts, at);
  }
  void append(const Texts& texts, const LabelSet& labels, const std::string& at) {
    const std::vector<float> targets = class_targets(labels, options_.classes, at);
    targets_.insert(targets_.end(), targets.begin(), targets.end());
    append(texts, at);
  }
  void append(const Texts& texts, double score, const std::string& at) {
    scores_.push_back(score);
    append(texts, at);
  }

  [[nodiscard]] int64_t size() const override { return std::ssize(starts_) - 1; }
  [[nodiscard]] bool is_text() const override { return true; }

  [[nodiscard]] Sample sample(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index,
                 " does not exist; there are ", size());
    const auto at = static_cast<size_t>(index);
    Sample sample{.ids = {ids_.data() + starts_[at], ids_.data() + starts_[at + 1]},
                  .labels = {},
                  .attention_mask = {},
                  .token_types = {}};
    if (!types_.empty()) {
      sample.token_types.assign(types_.data() + starts_[at], types_.data() + starts_[at + 1]);
    }
    if (!labels_.empty()) sample.label = labels_[at];
    if (!scores_.empty()) sample.score = scores_[at];
    if (!targets_.empty()) {
      const auto first = targets_.begin() + index * std::ssize(options_.classes);
      sample.class_targets.assign(first, first + std::ssize(options_.classes));
    }
    return sample;
  }

  [[nodiscard]] uint64_t fingerprint() const override {
    Hasher hasher;
    hasher.update(std::as_bytes(std::span(ids_)));
    if (!types_.empty()) hasher.update(std::as_bytes(std::span(types_)));
    hasher.update(std::as_bytes(std::span(starts_)));
    hasher.update(std::as_bytes(std::span(labels_)));
    hasher.update(std::as_bytes(std::span(scores_)));
    hasher.update(std::as_bytes(std::span(targets_)));
    return hasher.digest();
  }

  /// Tokenizes the rows that are waiting, on all threads; throws the error of the first row that
  /// has one.
  void flush() {
    std::vector<Sample> rows(waiting_.size());
    std::vector<std::exception_ptr> errors(waiting_.size());
    at::parallel_for(0, std::ssize(waiting_), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        try {
          rows[i] = encode_texts(*options_.tokenizer, waiting_[i].texts, options_.seq_len);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      }
    });
    const std::vector<Waiting> done = std::exchange(waiting_, {});
    waiting_bytes_ = 0;
    for (size_t i = 0; i < done.size(); ++i) {
      if (errors[i]) std::rethrow_exception(errors[i]);
      append_ids(rows[i], done[i]);
    }
  }

 private:
  static constexpr size_t kBatchBytes = size_t{256} << 10;
  /// A row whose texts are not tokenized yet.
  struct Waiting {
    Texts texts;
    std::string at;
  };

  void append(const Texts& texts, const std::string& at) {
    waiting_bytes_ += texts.first.size() + texts.second.value_or("").size();
    waiting_.push_back({texts, at});
    if (waiting_bytes_ >= kBatchBytes) flush();
  }
  void append_ids(const Sample& row, const Waiting& from) {
    for (const int64_t id : row.ids) {
      check_id(id, options_, from.at);
      ids_.push_back(static_cast<int32_t>(id));
    }
    // Single texts have type 0.
    if (from.texts.second) types_.resize(static_cast<size_t>(starts_.back()));
    for (const int64_t type : row.token_types) types_.push_back(static_cast<int16_t>(type));
    if (!types_.empty()) types_.resize(ids_.size());
    CLEAVE_CHECK(static_cast<int64_t>(ids_.size()) > starts_.back(), Code::kFormat, from.at,
                 ": the text has no tokens; remove the row");
    starts_.push_back(static_cast<int64_t>(ids_.size()));
  }

  DatasetOptions options_;
  std::vector<int32_t> ids_;        // of all rows, concatenated
  std::vector<int16_t> types_;      // of the ids; empty without pairs of texts
  std::vector<int64_t> starts_{0};  // offset of each row in ids_
  // Those of the task; the others are empty.
  std::vector<int32_t> labels_;
  std::vector<double> scores_;
  std::vector<float> targets_;  // of all rows, a number for each class
  std::vector<Waiting> waiting_;
  size_t waiting_bytes_ = 0;  // of their texts
};

/// Appends the rows of a file. Of several errors, that of the first row is thrown.
void append_file(const std::string& file, const DatasetOptions& options,
                 ClassifiedDataset& dataset) {
  const auto append = [&](const auto&... row) { dataset.append(row...); };
  try {
    if (options.task == Task::kMultilabel) {
      for_each_label_set(file, options.classes, append);
    } else {
      options.task == Task::kRegression ? for_each_scored(file, append)
                                        : for_each_labelled(file, append);
    }
  } catch (const Error&) {
    dataset.flush();  // of the rows before it, an error comes first
    throw;
  }
  dataset.flush();
}

}  // namespace

Json label_in(const Json& row) {
  if (row.has("label")) return row.at("label");
  for (size_t i = 0; i < row.size(); ++i) {
    if (row.key(i) == "labels") return row.at(i);
  }
  return row.at("label");
}

double score_in(const Json& row) {
  const bool has_label = row.has("label") || row.has("labels");
  return (has_label || !row.has("score") ? label_in(row) : row.at("score")).as_number();
}

Sample encode_texts(const Tokenizer& tokenizer, const Texts& texts, int64_t seq_len) {
  const bool is_pair = texts.second.has_value();
  EncodedBatch row =
      encode_batch(tokenizer, std::span(&texts.first, 1),
                   is_pair ? std::span(&*texts.second, 1) : std::span<const std::string>(),
                   {.truncation = is_pair ? Truncation::kLongestFirst : Truncation::kOnlyFirst,
                    .max_length = seq_len});
  Sample sample{.ids = std::move(row.input_ids.front()),
                .labels = {},
                .attention_mask = {},
                .token_types = {}};
  if (is_pair) sample.token_types = std::move(row.token_type_ids.front());
  return sample;
}

void for_each_text(const std::string& path, const std::function<void(const Texts&)>& visit) {
  if (is_csv(path)) {
    CsvReader rows(path);
    const CsvTexts texts(rows);
    while (const auto row = rows.next()) visit(texts.of(*row));
  } else if (fs::path(path).extension() == ".jsonl") {
    JsonLines rows(path);
    JsonTexts texts;
    while (const std::optional<Json> row = rows.next()) visit(texts.of(*row));
  } else {
    CLEAVE_CHECK(!is_table(path), Code::kUsage, path,
                 " is a table with tabs; write it as CSV with a header, or give its texts alone, "
                 "one a line");
    LineReader lines(path);
    while (const auto line = lines.next()) {
      if (line->empty()) continue;
      CLEAVE_CHECK(first_bad_utf8(*line) == line->size(), Code::kFormat, lines.place(),
                   ": the text is not UTF-8; convert the file, for instance with iconv -f LATIN1 "
                   "-t UTF-8");
      visit({.first = std::string(*line)});
    }
  }
}

std::vector<std::string> class_names(const std::vector<std::string>& files) {
  ClassNames names;
  for (const std::string& file : files) {
    if (has_rows_of_ids(file)) {
      JsonLines rows(file);
      while (const std::optional<Json> row = rows.next()) names.note(label_of(*row), rows.place());
    } else {
      for_each_labelled(file, [&](const Texts& /*texts*/, const Label& label,
                                  const std::string& at) { names.note(label, at); });
    }
  }
  CLEAVE_CHECK(!names.texts().empty(), Code::kFormat, files.front(),
               " holds no rows; expected texts with labels");
  std::vector<std::string> result = names.result();
  CLEAVE_CHECK(result.size() > 1, Code::kFormat, "all labels of ", names_of(files), " are '",
               *names.texts().begin(), "'; a classifier needs two classes");
  if (!names.are_numbers()) warn_of_fractions(names.texts());
  return result;
}

std::vector<std::string> multilabel_names(const std::vector<std::string>& files) {
  std::vector<std::string> columns = class_columns(files.front());
  ClassNames names;
  for (const std::string& file : files) {
    const std::vector<std::string> own = class_columns(file);
    CLEAVE_CHECK(own == columns, Code::kFormat, files.front(), " has ", described(columns), ", ",
                 file, " has ", described(own), "; write the classes of all files in one way");
    if (!columns.empty()) continue;
    if (has_rows_of_ids(file)) {
      JsonLines rows(file);
      while (const std::optional<Json> row = rows.next()) {
        names.note(label_set(label_in(*row)), rows.place());
      }
    } else {
      for_each_label_set(
          file, {}, [&](const Texts& /*texts*/, const LabelSet& labels, const std::string& at) {
            names.note(labels, at);
          });
    }
  }
  if (!columns.empty()) return columns;
  CLEAVE_CHECK(!names.texts().empty(), Code::kFormat, "no row of ", names_of(files),
               " has a label; expected rows with classes");
  return names.result();
}

std::shared_ptr<const Dataset> classified_dataset(const DatasetOptions& options) {
  CLEAVE_CHECK(!options.files.empty(), Code::kUsage, options.files.size(),
               " data files; expected at least one");
  const bool has_scores = options.task == Task::kRegression;
  const bool has_sets = options.task == Task::kMultilabel;
  CLEAVE_CHECK(has_scores || has_sets || options.classes.size() != 1, Code::kUsage,
               "the model has one class, ", options.classes.front(),
               ", of which the cross entropy is always 0; to learn ",
               "numbers, set \"problem_type\": \"regression\" in its config.json");
  const bool of_ids = has_rows_of_ids(options.files.front());
  for (const std::string& file : options.files) {
    CLEAVE_CHECK(has_rows_of_ids(file) == of_ids, Code::kUsage, file, " and ",
                 options.files.front(),
                 " are of different kinds; give only texts or only rows of ids");
  }
  if (of_ids) {
    const auto num_classes = static_cast<int64_t>(options.classes.size());
    return rows_dataset(options.files,
                        {.vocab_size = options.vocab_size,
                         .num_classes = has_scores || has_sets ? 0 : num_classes,
                         .has_scores = has_scores,
                         .classes = has_sets ? options.classes : std::vector<std::string>(),
                         .cache_folder = options.cache_folder});
  }
  require_tokenizer(options, "holds texts, which need");
  auto dataset = std::make_shared<ClassifiedDataset>(options);
  for (const std::string& file : options.files) append_file(file, options, *dataset);
  CLEAVE_CHECK(dataset->size() > 0, Code::kUsage, "the data in ", names_of(options.files), " has ",
               dataset->size(), " rows; expected at least one");
  return dataset;
}

}  // namespace cleave::inline data
