#include "cleave/data/class_labels.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "cleave/base/error.h"

namespace cleave::inline data {
namespace {

constexpr size_t kMostClasses = 1000;
constexpr std::array<std::string_view, 2> kListColumns{"labels", "label"};
constexpr std::array<std::string_view, 2> kOtherColumns{"id", ""};  // pandas' index has no name

/// The label as a whole number; nullopt if it is a name.
std::optional<int64_t> index_in(const std::string& label) {
  int64_t number = 0;
  const char* end = label.data() + label.size();
  const auto [stop, error] = std::from_chars(label.data(), end, number);
  if (error != std::errc() || stop != end || number < 0) return std::nullopt;
  return number;
}

std::string shown(const Label& label) {
  return label.is_index ? label.text : str('\'', label.text, '\'');
}

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t") + 1 - begin));
}

}  // namespace

std::optional<double> number_in(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += str(i == 0 ? "" : ", ", '\'', names[i], '\'');
  }
  return names.size() > kShown ? str(text, " and ", names.size() - kShown, " more") : text;
}

int32_t class_of(const Label& label, const std::vector<std::string>& names, const std::string& at) {
  const auto found = std::find(names.begin(), names.end(), label.text);
  const bool has_name = found != names.end();
  if (has_name && !label.is_index) return static_cast<int32_t>(found - names.begin());
  const bool may_be_index =
      label.is_index || std::none_of(names.begin(), names.end(), [](const std::string& name) {
        return index_in(name).has_value();
      });
  const std::optional<int64_t> number = index_in(label.text);
  CLEAVE_CHECK(may_be_index && number && *number < std::ssize(names), Code::kFormat, at, ": label ",
               shown(label), " is not ", label.is_index ? "the index of " : "",
               "one of the model's ", names.size(), " classes, ", listed(names), "; ",
               has_name ? "write a name as a text, in quotes"
                        : "rename it, or train a model that has no classes yet");
  return static_cast<int32_t>(*number);
}

LabelSet label_set(const Json& list) {
  if (!list.is(Json::Type::kArray)) {
    list.fail(
        "expected an array: names of classes, indexes, or a number with a fraction for each class "
        "(0.0 or 1.0); for one class of each text, give --task classify");
  }
  LabelSet set;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json value = list.at(i);
    if (value.is(Json::Type::kString)) {
      if (value.as_string().empty()) value.fail("expected the name of a class");
      set.classes.push_back({.text = value.as_string()});
    } else if (value.is(Json::Type::kNumber) && !value.is_int()) {
      set.targets.push_back(static_cast<float>(value.as_number(0, 1)));
    } else {
      set.classes.push_back({.text = std::to_string(value.as_int(0)), .is_index = true});
    }
  }
  if (!set.classes.empty() && !set.targets.empty()) {
    list.fail(
        "some numbers have a fraction and are those of each class, others name classes; "
        "write 0.0 and 1.0 for each class, or the classes alone");
  }
  return set;
}

LabelSet label_set(const std::string& field, const std::string& at) {
  if (field.starts_with('[')) {
    return label_set(
        parsed_as("in a CSV file write names or indexes with commas between them, or a "
                  "JSON array, such as [\"joy\", \"anger\"] or [3, 7]",
                  [&] { return Json::parse(field, at); }));
  }
  LabelSet set;
  if (trimmed(field).empty()) return set;
  std::string_view rest = field;
  while (true) {
    const size_t comma = rest.find(',');
    set.classes.push_back({.text = trimmed(rest.substr(0, comma))});
    CLEAVE_CHECK(!set.classes.back().text.empty(), Code::kFormat, at, ": one of the labels '",
                 field, "' is empty; remove its comma");
    if (comma == std::string_view::npos) return set;
    rest.remove_prefix(comma + 1);
  }
}

std::vector<float> class_targets(const LabelSet& row, const std::vector<std::string>& names,
                                 const std::string& at) {
  if (!row.targets.empty()) {
    CLEAVE_CHECK(row.targets.size() == names.size(), Code::kFormat, at, ": the labels are ",
                 counted(row.targets.size(), "number"), ", the model has ", names.size(),
                 " classes, ", listed(names), "; give one number for each");
    return row.targets;
  }
  std::vector<float> targets(names.size());
  for (const Label& label : row.classes) {
    float& target = targets[static_cast<size_t>(class_of(label, names, at))];
    CLEAVE_CHECK(target == 0, Code::kFormat, at, ": label ", shown(label),
                 " occurs twice; write each class once, or 0.0 or 1.0 for each class of the "
                 "model (0 and 1 are indexes)");
    target = 1;
  }
  return targets;
}

CsvLabelSets::CsvLabelSets(const CsvReader& rows, const std::vector<bool>& is_text,
                           const std::vector<std::string>& classes)
    : header_(rows.header()) {
  const bool has_list = std::any_of(kListColumns.begin(), kListColumns.end(),
                                    [&](const auto& name) { return contains(header_, name); });
  if (has_list) {
    list_ = rows.column(kListColumns);
    return;
  }
  for (const std::string& name : classes) {
    const std::string_view wanted = name;
    columns_.push_back(rows.column(std::span(&wanted, 1)));
  }
  if (!classes.empty()) return;
  for (size_t i = 0; i < header_.size(); ++i) {
    if (!is_text[i] && !contains(kOtherColumns, header_[i])) columns_.push_back(i);
  }
  // Reports the header.
  if (columns_.empty()) list_ = rows.column(kListColumns);
}

std::vector<std::string> CsvLabelSets::columns() const {
  std::vector<std::string> names;
  for (const size_t column : columns_) names.push_back(header_[column]);
  return names;
}

LabelSet CsvLabelSets::of(const std::vector<std::string>& row, const std::string& at) const {
  if (list_) return label_set(row[*list_], at);
  LabelSet set;
  for (const size_t column : columns_) {
    const std::optional<double> number = number_in(row[column]);
    CLEAVE_CHECK(number && *number >= 0 && *number <= 1, Code::kFormat, at, ": '", row[column],
                 "' in the column '", header_[column],
                 "' is not a number from 0 to 1, which says whether the text has this class; "
                 "remove the column if it is no class, or put the names of a text's classes into "
                 "one column, labels");
    set.targets.push_back(static_cast<float>(*number));
  }
  return set;
}

void ClassNames::note(const Label& label, const std::string& at) {
  texts_.insert(label.text);
  const std::optional<int64_t> number = index_in(label.text);
  are_numbers_ = are_numbers_ && number;
  largest_ = std::max(largest_, number.value_or(0));
  if (label.is_index && first_index_.empty()) first_index_ = str(at, ": label ", label.text);
  CLEAVE_CHECK(texts_.size() <= kMostClasses && largest_ < static_cast<int64_t>(kMostClasses),
               Code::kFormat, at, ": label '", label.text, "' makes more than ", kMostClasses,
               " classes; is this the label column? To learn numbers, give --task regression");
}

void ClassNames::note(const LabelSet& row, const std::string& at) {
  for (const Label& label : row.classes) note(label, at);
  if (row.targets.empty()) return;
  note(Label{.text = std::to_string(row.targets.size() - 1), .is_index = true}, at);
}

std::vector<std::string> ClassNames::result() const {
  CLEAVE_CHECK(are_numbers_ || first_index_.empty(), Code::kFormat, first_index_,
               " is a number, and other labels are names; write all labels as names, in quotes, or "
               "all as numbers");
  if (!are_numbers_) return {texts_.begin(), texts_.end()};
  std::vector<std::string> numbered;
  for (int64_t i = 0; i <= largest_; ++i) numbered.push_back(str("LABEL_", i));
  return numbered;
}

}  // namespace cleave::inline data
