#include <limits>
#include <span>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/data/class_labels.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/documents.h"
#include "cleave/data/number_lists.h"
#include "cleave/data/reading_progress.h"
#include "cleave/text/jsonl.h"

namespace cleave::inline data {
namespace {

/// The values that one key of a row may hold.
struct Field {
  std::string_view key;
  int64_t low = 0;
  int64_t high = 0;              ///< inclusive
  bool may_be_no_label = false;  ///< -100 is valid too
};

/// The numbers of one key: a list for each row, empty where the row does not have the key.
struct Column {
  Field field;
  NumberLists lists;

  void add_to(Hasher& hasher) const {
    lists.add_starts_to(hasher);
    lists.add_numbers_to(hasher);
  }
};

int32_t number(const Json& value, const Field& field) {
  if (field.may_be_no_label && value.is_int() && value.as_int() == kNoLabel) {
    return static_cast<int32_t>(kNoLabel);
  }
  return static_cast<int32_t>(value.as_int(field.low, field.high));
}

/// The numbers of one key; empty if the row does not have it.
std::vector<int32_t> numbers(const Json& row, const Field& field) {
  if (!row.has(field.key)) return {};
  const Json list = row.at(field.key);
  if (!list.is(Json::Type::kArray)) list.fail("expected an array of integers");
  std::vector<int32_t> values;
  values.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) values.push_back(number(list.at(i), field));
  return values;
}

/// Refuses a row whose positions are not those that the model counts itself.
void check_positions(const Json& row, int64_t high) {
  const std::vector<int32_t> positions = numbers(row, {.key = "position_ids", .high = high});
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] == static_cast<int64_t>(i)) continue;
    row.at("position_ids")
        .fail(
            "expected 0, 1, 2, ... to the end of the row; give each of its texts a row of its own "
            "(--packing puts them into one sequence again)");
  }
}

class RowsDataset final : public Dataset {
 public:
  explicit RowsDataset(const RowsOptions& options)
      : options_(options),
        ids_{{.key = "input_ids", .high = max_id(options)}, NumberLists(options.cache_folder)},
        labels_{{.key = "labels", .high = max_id(options), .may_be_no_label = true},
                NumberLists(options.cache_folder)},
        attention_mask_{{.key = "attention_mask", .high = 1}, NumberLists(options.cache_folder)},
        token_types_{{.key = "token_type_ids", .high = kMax}, NumberLists(options.cache_folder)} {}

  /// `lines` has just read the row. Throws Error(kFormat) for the first invalid value.
  void append(const Json& row, const JsonLines& lines) {
    if (!row.is(Json::Type::kObject)) row.fail("expected an object with \"input_ids\"");
    const std::vector<int32_t> ids = numbers(row, ids_.field);
    if (ids.empty()) row.at("input_ids").fail("expected an array of at least one id");
    check_positions(row, kMax);
    ids_.lists.append(ids);
    if (options_.num_classes > 0) append_class(row);
    if (options_.has_scores) scores_.push_back(score_in(row));
    if (!options_.classes.empty()) append_targets(row, lines.place());
    if (options_.needs_labels &&
        row.at("labels").is(Json::Type::kNull)) {  // at() refuses a missing one
      row.at("labels").fail(
          "expected an array of integers, which task mlm learns: the ids of masked tokens, and "
          "-100 elsewhere");
    }
    for (Column* column : {&labels_, &attention_mask_, &token_types_}) {
      if (column == &labels_ && labels_sequences()) continue;
      const std::vector<int32_t> values = numbers(row, column->field);
      if (row.has(column->field.key) && values.size() != ids.size()) {
        row.at(column->field.key)
            .fail(str("it has ", counted(values.size(), "number"), "; \"input_ids\" has ",
                      ids.size()));
      }
      column->lists.append(values);
    }
  }

  [[nodiscard]] int64_t size() const override { return ids_.lists.size(); }
  [[nodiscard]] bool is_text() const override { return false; }

  [[nodiscard]] Sample sample(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index,
                 " does not exist; there are ", size());
    Sample sample{.ids = ids_.lists.list(index),
                  .labels = {},
                  .attention_mask = attention_mask_.lists.list(index),
                  .token_types = token_types_.lists.list(index)};
    if (options_.has_scores) {
      sample.score = scores_[static_cast<size_t>(index)];
    } else if (!options_.classes.empty()) {
      const auto first = targets_.begin() + index * std::ssize(options_.classes);
      sample.class_targets.assign(first, first + std::ssize(options_.classes));
    } else if (options_.num_classes > 0) {
      sample.label = classes_[static_cast<size_t>(index)];
    } else {
      sample.labels = labels_.lists.list(index);
    }
    return sample;
  }

  [[nodiscard]] uint64_t fingerprint() const override { return fingerprint_; }
  /// Sets the fingerprint of the rows so far: it reads all of them.
  void finish() {
    Hasher hasher;
    for (const Column* column : {&ids_, &labels_, &attention_mask_, &token_types_}) {
      column->add_to(hasher);
    }
    hasher.update(std::as_bytes(std::span(classes_)));
    hasher.update(std::as_bytes(std::span(scores_)));
    hasher.update(std::as_bytes(std::span(targets_)));
    fingerprint_ = hasher.digest();
  }

 private:
  static constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  static int64_t max_id(const RowsOptions& options) {
    return options.vocab_size > 0 ? options.vocab_size - 1 : kMax;
  }
  [[nodiscard]] bool labels_sequences() const {
    return options_.num_classes > 0 || options_.has_scores || !options_.classes.empty();
  }
  void append_class(const Json& row) {
    const int64_t label = label_in(row).as_int(0, options_.num_classes - 1);
    classes_.push_back(static_cast<int32_t>(label));
  }
  void append_targets(const Json& row, const std::string& at) {
    const std::vector<float> targets =
        class_targets(label_set(label_in(row)), options_.classes, at);
    targets_.insert(targets_.end(), targets.begin(), targets.end());
  }

  RowsOptions options_;
  Column ids_, labels_, attention_mask_, token_types_;
  std::vector<int32_t> classes_;
  std::vector<double> scores_;
  std::vector<float> targets_;  // of all rows, a number for each class
  uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> rows_dataset(const std::vector<std::string>& files,
                                            const RowsOptions& options) {
  auto dataset = std::make_shared<RowsDataset>(options);
  ReadingProgress progress = common_progress(files, "read MiB", options.cache_folder);
  for (const std::string& file : files) {
    JsonLines lines(file);
    while (const std::optional<Json> row = lines.next()) {
      dataset->append(*row, lines);
      progress.note(lines.bytes_read());
    }
    progress.end_file();
  }
  CLEAVE_CHECK(dataset->size() > 0, Code::kUsage, "the data in ", names_of(files), " has ",
               dataset->size(), " rows; expected at least one");
  dataset->finish();
  return dataset;
}

}  // namespace cleave::inline data
