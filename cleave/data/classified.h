#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cleave/data/dataset.h"

namespace cleave {

/// Calls `visit` with each text of a file: CSV (a file named .csv: the column text, review or
/// sentence), JSONL with `text` (named .jsonl), else a text a line. Throws Error(kIo, kFormat)
/// naming file and line.
void for_each_text(const std::string& path, const std::function<void(const std::string&)>& visit);

/// Names of the classes that files of labelled rows name, in order of the alphabet; numbers stand
/// for classes LABEL_0 to the largest. Throws as classified_dataset does, and Error(kFormat) for
/// more classes than a person would name.
std::vector<std::string> class_names(const std::vector<std::string>& files);

/// Rows for a classifier, each with one of options.classes, by name or number:
///
///   CSV    a header with text, review or sentence, and label or sentiment (files named .csv)
///   JSONL  `text` and `label`, or `input_ids` and one whole number, `label` or `labels`
///
/// Texts become ids with the tokenizer's begin and end tokens, cut to seq_len with them; rows of
/// ids are taken as they are. Throws Error(kIo, kFormat) naming file and line; Error(kUsage) when
/// there is not one row, no tokenizer for texts, or rows of both kinds.
std::shared_ptr<const Dataset> classified_dataset(const DatasetOptions& options);

}  // namespace cleave
