#include "cleave/data/id_rows.h"

#include <algorithm>
#include <array>
#include <span>

#include "cleave/base/hash.h"
#include "cleave/text/jsonl.h"

namespace cleave {
namespace {

constexpr int64_t kNoLabel = -100;
constexpr int64_t kMaxTypeId = 1023;

/// What a row says about each of its ids.
struct Column {
  const char* key;
  int64_t low, high;  // allowed values
  bool present = false;
  std::vector<int32_t> values;
};

enum ColumnNumber : size_t { kIds, kLabels, kMask, kTypes, kNumColumns };

class IdRows final : public Dataset {
 public:
  explicit IdRows(int64_t vocab_size) {
    const int64_t high = vocab_size > 0 ? vocab_size - 1 : INT32_MAX;
    columns_ = {Column{"input_ids", 0, high, true, {}}, Column{"labels", kNoLabel, high, false, {}},
                Column{"attention_mask", 0, 1, false, {}},
                Column{"token_type_ids", 0, kMaxTypeId, false, {}}};
  }

  void append(const Json& row) {
    const bool first = ends_.size() == 1;
    const Json ids = row.at("input_ids");
    for (Column& column : columns_) {
      if (first) column.present = row.has(column.key);
      if (column.present != row.has(column.key)) {
        row.fail(str("expected \"", column.key, "\" in all rows or in none"));
      }
      if (column.present) append_values(row.at(column.key), ids, column);
    }
    ends_.push_back(columns_[kIds].values.size());
  }

  void finish() {
    Hasher hasher;
    for (const Column& column : columns_) {
      const std::array<uint64_t, 2> head{column.present ? 1U : 0U, column.values.size()};
      hasher.update(std::as_bytes(std::span(head)));
      hasher.update(std::as_bytes(std::span(column.values)));
    }
    hasher.update(std::as_bytes(std::span(ends_)));
    fingerprint_ = hasher.digest();
  }

  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(ends_.size()) - 1; }
  [[nodiscard]] bool is_text() const override { return false; }
  [[nodiscard]] uint64_t fingerprint() const override { return fingerprint_; }

  [[nodiscard]] int64_t length(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index, " of ", size());
    const auto row = static_cast<size_t>(index);
    return static_cast<int64_t>(ends_[row + 1] - ends_[row]);
  }

  [[nodiscard]] Sample sample(int64_t index) const override {
    const auto count = static_cast<size_t>(length(index));
    const size_t begin = ends_[static_cast<size_t>(index)];
    const auto part = [&](ColumnNumber number) {
      const Column& column = columns_[number];
      if (!column.present) return std::vector<int64_t>{};
      const std::span<const int32_t> values = std::span(column.values).subspan(begin, count);
      return std::vector<int64_t>(values.begin(), values.end());
    };
    return {.ids = part(kIds),
            .labels = part(kLabels),
            .attention_mask = part(kMask),
            .token_types = part(kTypes)};
  }

 private:
  static void append_values(const Json& values, const Json& ids, Column& column) {
    if (!values.is(Json::Type::kArray)) values.fail("expected an array of integers");
    const size_t count = values.size();
    if (count == 0) values.fail("expected at least one id");
    if (count != ids.size()) {
      values.fail(str("expected ", ids.size(), " values, one for each id, found ", count));
    }
    for (size_t i = 0; i < count; ++i) {
      const int64_t value = values.at(i).as_int(column.low, column.high);
      if (value < 0 && value != kNoLabel) values.at(i).fail("expected an id or -100");
      column.values.push_back(static_cast<int32_t>(value));
    }
  }

  std::array<Column, kNumColumns> columns_;
  std::vector<size_t> ends_{0};  // row i has the values ends_[i] to ends_[i + 1] - 1
  uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> read_id_rows(const std::vector<std::string>& files,
                                            int64_t vocab_size) {
  auto rows = std::make_shared<IdRows>(vocab_size);
  for (const std::string& file : files) {
    JsonLines lines(file);
    while (const std::optional<Json> row = lines.next()) rows->append(*row);
  }
  rows->finish();
  return rows;
}

}  // namespace cleave
