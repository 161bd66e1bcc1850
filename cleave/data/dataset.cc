#include "cleave/data/dataset.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/resource_limits.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/documents.h"
#include "cleave/data/tokens.h"

namespace cleave::inline data {
namespace {

/// The kind of all files. Throws Error(kUsage) with two files whose kinds differ.
FileKind common_kind(const std::vector<std::string>& files) {
  CLEAVE_CHECK(!files.empty(), Code::kUsage, files.size(), " data files; expected at least one");
  const FileKind first = file_kind(files.front());
  for (size_t i = 1; i < files.size(); ++i) {
    const FileKind kind = file_kind(files[i]);
    CLEAVE_CHECK(kind == first, Code::kUsage, files[i], " is ", name(kind), ", ", files.front(),
                 " is ", name(first), "; all data files must be of one kind");
  }
  return first;
}

/// Refuses tables and JSON documents, whose commas, labels and braces would become part of the
/// text.
void refuse_tables(const DatasetOptions& options) {
  const bool is_lm = options.task == Task::kLm;
  for (const std::string& file : options.files) {
    const bool is_document =
        std::filesystem::path(file).extension() == ".json" && file_kind(file) == FileKind::kText;
    CLEAVE_CHECK(!is_document, Code::kUsage, file,
                 " is a JSON document, which would be read as plain text; write its rows into "
                 "JSONL, one object per line; of an array: jq -c '.[]' ",
                 file, " >rows.jsonl");
    CLEAVE_CHECK(
        !is_table(file), Code::kUsage, file, " is a table, which task ", is_lm ? "lm" : "mlm",
        " would read as plain text; train with --task classify, multilabel or regression to learn "
        "its labels, or put its texts into JSONL with \"text\"");
  }
}

/// The ids of text files.
std::vector<TokenizedFile> tokenized_files(const DatasetOptions& options, FileKind kind) {
  require_tokenizer(options, str("is ", name(kind), ", which needs"));
  // The ids and the lengths of each file stay open.
  reserve_descriptors(2 * std::ssize(options.files),
                      str("data in ", counted(options.files.size(), "file")));
  std::vector<TokenizedFile> out;
  for (const std::string& file : options.files) {
    out.push_back(tokenized_file(file, kind, *options.tokenizer, options.cache_folder));
    check_id(out.back().ids.max_id(), options, file);
  }
  return out;
}

/// Warns of documents that are joined without a token between them.
void warn_of_no_separator(const DatasetOptions& options, const std::vector<TokenizedFile>& files) {
  const auto& around = options.tokenizer->sequence_template().single;
  const bool has_separator = options.tokenizer->special().eos ||
                             std::any_of(around.begin(), around.end(), [](const TemplateStep& s) {
                               return s.what == TemplateStep::What::kToken;
                             });
  int64_t num_documents = 0;
  for (const TokenizedFile& file : files) {
    num_documents += std::max<int64_t>(1, file.lengths.size());
  }
  if (has_separator || num_documents < 2) return;
  log_warning_once("the tokenizer has no end token, so nothing separates the ", num_documents,
                   " documents in ", names_of(options.files),
                   "; name one as \"eos_token\" in tokenizer_config.json, or train with --packing, "
                   "which keeps documents apart");
}

}  // namespace

void require_tokenizer(const DatasetOptions& options, std::string_view need) {
  CLEAVE_CHECK(options.tokenizer != nullptr, Code::kUsage, options.files.front(), " ", need,
               " a tokenizer; the model has none, so give one with --tokenizer DIR or "
               "--tokenizer bytes");
}

void check_id(int64_t id, const DatasetOptions& options, const std::string& place) {
  if (options.vocab_size == 0 || id < options.vocab_size) return;
  using Json = nlohmann::json;  // a token may have control characters, and be no UTF-8
  const std::string token = Json(options.tokenizer->token(id).value_or(""))
                                .dump(-1, ' ', false, Json::error_handler_t::replace);
  throw Error(Code::kFormat,
              str(place, ": the tokenizer (", options.tokenizer->kind(), ") gives id ", id, ", ",
                  token, ", the model's vocabulary has ", options.vocab_size,
                  "; use the tokenizer of the model, or remove this token from the text"));
}

std::vector<int64_t> labels_of(const Sample& sample) {
  if (!sample.labels.empty() || sample.attention_mask.empty()) {
    return sample.labels.empty() ? sample.ids : sample.labels;
  }
  std::vector<int64_t> labels = sample.ids;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (sample.attention_mask[i] == 0) labels[i] = kNoLabel;
  }
  return labels;
}

Task task_from_name(const std::string& name) {
  if (name == "lm") return Task::kLm;
  if (name == "mlm") return Task::kMlm;
  if (name == "classify") return Task::kClassify;
  if (name == "multilabel") return Task::kMultilabel;
  CLEAVE_CHECK(name == "regression", Code::kUsage, "task '", name,
               "' cannot be trained or evaluated; expected lm, mlm, classify, multilabel or "
               "regression");
  return Task::kRegression;
}

bool joins_text(Task task, const std::vector<std::string>& files) {
  const bool has_rows = labels_sequences(task) || task == Task::kDpo;
  return !has_rows && !files.empty() &&
         std::none_of(files.begin(), files.end(), [](const std::string& file) {
           return holds_chats({file}) || file_kind(file) == FileKind::kJsonRows;
         });
}

std::shared_ptr<const Dataset> open_dataset(const DatasetOptions& options) {
  if (labels_sequences(options.task)) return classified_dataset(options);
  refuse_tables(options);
  const FileKind kind = common_kind(options.files);
  if (kind == FileKind::kJsonRows) {
    return rows_dataset(options.files, {.vocab_size = options.vocab_size,
                                        .needs_labels = options.task == Task::kMlm,
                                        .cache_folder = options.cache_folder});
  }
  std::vector<TokenizedFile> files = tokenized_files(options, kind);
  warn_of_no_separator(options, files);
  std::vector<Tokens> parts;
  int64_t num_tokens = 0;
  for (TokenizedFile& file : files) {
    num_tokens += file.ids.size();
    parts.push_back(std::move(file.ids));
  }
  auto data = packed_dataset(std::move(parts), options.seq_len);
  CLEAVE_CHECK(data->size() > 0, Code::kUsage, "the data in ", names_of(options.files), " has ",
               counted(num_tokens, "token"), ", fewer than one sequence of ", options.seq_len,
               "; give more data or a smaller --seq-len");
  return data;
}

std::shared_ptr<const Dataset> open_documents(const DatasetOptions& options) {
  refuse_tables(options);
  const FileKind kind = common_kind(options.files);
  CLEAVE_CHECK(kind != FileKind::kJsonRows, Code::kUsage, options.files.front(), " is ", name(kind),
               "; expected text");
  auto data = documents_dataset(tokenized_files(options, kind), options.seq_len);
  CLEAVE_CHECK(data->size() > 0, Code::kUsage, "the data in ", names_of(options.files),
               " has no document of at least two tokens; give more data");
  return data;
}

}  // namespace cleave::inline data
