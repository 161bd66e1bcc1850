#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cleave/data/dataset.h"

namespace cleave {

/// Calls `visit` with each text of a file: the column text, review or sentence of a .csv file, the
/// key `text` of each line of a .jsonl file, else each non-empty line. Throws Error(kIo, kFormat)
/// with file and line.
void for_each_text(const std::string& path, const std::function<void(const std::string&)>& visit);

/// The class names in the labels of the files, sorted. If all labels are numbers: LABEL_0 to the
/// largest. Throws as classified_dataset does, and Error(kFormat) for more than 1000 classes.
std::vector<std::string> class_names(const std::vector<std::string>& files);

/// Labelled rows for a classifier. A label is one of options.classes, by name or number:
///
///   CSV    a header with text, review or sentence, and label or sentiment (files named .csv)
///   JSONL  `text` and `label`, or `input_ids` and one whole number, `label` or `labels`
///
/// Texts are tokenized with begin and end tokens and truncated to seq_len, these tokens included.
/// Rows of ids are used unchanged. Throws Error(kIo, kFormat) with file and line; Error(kUsage) if
/// there are no rows, texts without a tokenizer, or rows of both kinds.
std::shared_ptr<const Dataset> classified_dataset(const DatasetOptions& options);

}  // namespace cleave
