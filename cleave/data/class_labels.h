#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cleave/text/csv.h"
#include "cleave/text/json.h"

namespace cleave::inline data {

/// A class as a row writes it.
struct Label {
  std::string text;
  bool is_index = false;  ///< a whole number of a JSONL row: the index of a class
};

/// The classes of a row that may have several, as it writes them.
struct LabelSet {
  std::vector<Label> classes;
  std::vector<float> targets{};  ///< instead: a number in [0, 1] for each class of the model
};

/// The number that a text spells, finite; nullopt if it is none.
std::optional<double> number_in(const std::string& text);

/// The first names of a list, in quotes.
std::string listed(const std::vector<std::string>& names);

/// The index of a label's class in `names`. A text is a name; one that is a number is an index too,
/// unless numbers are names: "1" is then the class of that name, whatever its index is. Throws
/// Error(kFormat) that begins with `at`, the place of the row.
int32_t class_of(const Label& label, const std::vector<std::string>& names, const std::string& at);

/// Reads a JSON array: names of classes, indexes (whole numbers), or a number with a fraction or
/// exponent for each class (0.0 or 1.0). Throws Error(kFormat).
LabelSet label_set(const Json& list);

/// Reads a field of a CSV file: such an array, or names or indexes with commas between them. Empty:
/// no class. Throws Error(kFormat) that begins with `at`.
LabelSet label_set(const std::string& field, const std::string& at);

/// A number for each of the classes `names`: 1 for those of the row, 0 for others, or the row's
/// own. Throws Error(kFormat) that begins with `at`.
std::vector<float> class_targets(const LabelSet& row, const std::vector<std::string>& names,
                                 const std::string& at);

/// The label sets of a CSV file: those of its column `labels` or `label`, or else one column per
/// class with a number in [0, 1].
class CsvLabelSets {
 public:
  /// `is_text` says which columns have the texts. `classes`: those of the model; none for a new
  /// one, whose classes are the columns without text, but not `id` and one without a name.
  CsvLabelSets(const CsvReader& rows, const std::vector<bool>& is_text,
               const std::vector<std::string>& classes);
  /// Names of the classes that have a column; none if a column has lists of classes.
  [[nodiscard]] std::vector<std::string> columns() const;
  /// The classes of a row. Throws Error(kFormat) that begins with `at`.
  [[nodiscard]] LabelSet of(const std::vector<std::string>& row, const std::string& at) const;

 private:
  const std::vector<std::string>& header_;
  std::optional<size_t> list_;
  std::vector<size_t> columns_;
};

/// Collects the classes of a new model from labels.
class ClassNames {
 public:
  /// Throws Error(kFormat) that begins with `at` for more than 1000 classes.
  void note(const Label& label, const std::string& at);
  void note(const LabelSet& row, const std::string& at);
  /// The labels as written, sorted; each once.
  [[nodiscard]] const std::set<std::string>& texts() const { return texts_; }
  [[nodiscard]] bool are_numbers() const { return are_numbers_; }
  /// The names, sorted; if all labels are numbers: LABEL_0 to the largest. Throws Error(kFormat)
  /// for indexes beside names.
  [[nodiscard]] std::vector<std::string> result() const;

 private:
  std::set<std::string> texts_;
  bool are_numbers_ = true;
  int64_t largest_ = 0;
  std::string first_index_;
};

}  // namespace cleave::inline data
