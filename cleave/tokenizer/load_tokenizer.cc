#include <array>
#include <filesystem>

#include "cleave/base/hash.h"
#include "cleave/file/file.h"
#include "cleave/tokenizer/older_files.h"
#include "cleave/tokenizer/pipeline.h"
#include "cleave/tokenizer/sentence_piece.h"
#include "cleave/tokenizer/special_names.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;

constexpr std::array<const char*, 9> kFiles{"tokenizer.json",
                                            "tokenizer.model",
                                            "vocab.json",
                                            "merges.txt",
                                            "vocab.txt",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "chat_template.jinja"};

bool has_file(const fs::path& folder, const char* name) {
  std::error_code ignored;  // what cannot be looked at is not there
  return fs::is_regular_file(folder / name, ignored);
}

/// Of the contents of all files, which together decide what encode() gives.
uint64_t fingerprint_of(const std::string& folder) {
  Hasher hasher;
  for (const std::string& name : tokenizer_files(folder)) {
    const std::string text = read_file(fs::path(folder) / name, kMaxFileBytes);
    const std::string head = str(name, ":", text.size(), ":");
    hasher.update(std::as_bytes(std::span(head)));
    hasher.update(std::as_bytes(std::span(text)));
  }
  return hasher.digest();
}

PipelineParts read_tokenizer_json(const fs::path& folder, const SpecialNames& names) {
  PipelineParts parts = read_pipeline(Json::parse_file((folder / "tokenizer.json").string()));
  const auto find = [&parts](const std::string& content) -> std::optional<int64_t> {
    for (const AddedToken& token : parts.added) {
      if (token.content == content) return token.id;
    }
    return parts.model->vocab().find(content);
  };
  parts.special = names.ids(find, parts.added);
  if (!parts.special.unk) parts.special.unk = parts.model->unk_id();
  return parts;
}

}  // namespace

bool has_tokenizer(const std::string& folder) {
  return has_file(folder, "tokenizer.json") || has_file(folder, "tokenizer.model") ||
         (has_file(folder, "vocab.json") && has_file(folder, "merges.txt")) ||
         has_file(folder, "vocab.txt");
}

std::vector<std::string> tokenizer_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const char* name : kFiles) {
    if (has_file(folder, name)) names.emplace_back(name);
  }
  return names;
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& folder) {
  CLEAVE_CHECK(has_tokenizer(folder), Code::kIo, folder,
               " holds no tokenizer; expected tokenizer.json, tokenizer.model, vocab.json with "
               "merges.txt, or vocab.txt; put those of the model there");
  const SpecialNames names = SpecialNames::read(folder);
  PipelineParts parts;
  if (has_file(folder, "tokenizer.json")) {
    parts = read_tokenizer_json(folder, names);
  } else if (has_file(folder, "tokenizer.model")) {
    const fs::path path = fs::path(folder) / "tokenizer.model";
    const std::string bytes = read_file(path, kMaxFileBytes);
    if (!is_rank_file(bytes)) return make_sentence_piece(bytes, path.string(), names);
    parts = read_ranks(folder, names);
  } else if (has_file(folder, "vocab.json")) {
    parts = read_vocab_and_merges(folder, names);
  } else {
    parts = read_vocab_txt(folder, names);
  }
  parts.fingerprint = fingerprint_of(folder);
  return make_pipeline(std::move(parts));
}

}  // namespace cleave
