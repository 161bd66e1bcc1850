#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <ATen/Parallel.h>

#include "cleave/data/reading_progress.h"
#include "cleave/data/text_ids.h"
#include "cleave/data/token_cache.h"
#include "cleave/data/tokens.h"

namespace cleave::inline data {
namespace {

constexpr uint64_t kCacheVersion = 2;                  // of the rule that turns documents into ids
constexpr size_t kTextPieceBytes = size_t{256} << 10;  // of a text that is tokenized

/// Passes on the ids of a document.
class Ids {
 public:
  Ids(const Tokenizer& tokenizer, const TakeNumbers& take) : tokenizer_(tokenizer), take_(take) {}

  void put(std::span<const int64_t> ids) {
    if (ids.empty()) return;
    last_ = ids.back();
    length_ += static_cast<int64_t>(ids.size());
    take_(ids);
  }
  /// The special tokens that encode() adds before or after a text.
  void put_special(bool before) {
    bool is_before = true;
    for (const TemplateStep& step : tokenizer_.sequence_template().single) {
      if (step.what != TemplateStep::What::kToken) {
        is_before = false;
      } else if (is_before == before) {
        put(std::array{step.id});
      }
    }
  }
  /// Puts the end id after a document that has ids. Returns how many ids it has.
  int64_t end() {
    const std::optional<int64_t> end = tokenizer_.special().eos;
    if (length_ > 0 && end && last_ != end) put(std::array{*end});
    return length_;
  }

 private:
  const Tokenizer& tokenizer_;
  const TakeNumbers& take_;
  std::optional<int64_t> last_;
  int64_t length_ = 0;
};

/// Documents that are tokenized together, on all threads.
class TextBatch {
 public:
  TextBatch(const Tokenizer& tokenizer, ReadingProgress& progress, const TakeDocuments& take)
      : tokenizer_(tokenizer), progress_(progress), take_(take) {}

  /// `bytes_read`: of the file, up to the end of the document.
  void add(std::string_view text, uint64_t bytes_read) {
    bytes_ += text.size();
    texts_.emplace_back(text);
    bytes_read_ = bytes_read;
    if (bytes_ >= kBatchBytes) flush();
  }
  /// Passes on the ids of the documents, in order.
  void flush() {
    std::vector<std::vector<int64_t>> encoded(texts_.size());
    at::parallel_for(0, std::ssize(texts_), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        encoded[i] = tokenizer_.encode(texts_[i]);
      }
    });
    progress_.note(bytes_read_);
    for (const std::vector<int64_t>& own : encoded) {
      Ids ids(tokenizer_, take_.ids);
      ids.put(own);
      const int64_t length = ids.end();
      if (length > 0) take_.lengths(std::array{length});
    }
    texts_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kBatchBytes = size_t{1} << 20;  // each has up to 8 bytes of ids
  const Tokenizer& tokenizer_;
  ReadingProgress& progress_;
  const TakeDocuments& take_;
  std::vector<std::string> texts_;
  size_t bytes_ = 0;         // of texts_
  uint64_t bytes_read_ = 0;  // of the file
};

void tokenize(const std::string& path, FileKind kind, const Tokenizer& tokenizer,
              ReadingProgress& progress, const TakeDocuments& take) {
  if (kind == FileKind::kJsonTexts) {
    TextBatch batch(tokenizer, progress, take);
    for_each_json_text(path, [&](std::string_view text, uint64_t bytes_read) {
      if (!text.empty()) batch.add(text, bytes_read);
    });
    batch.flush();
    return;
  }
  Ids ids(tokenizer, take.ids);
  bool has_begun = false;
  for_text_ids(path, tokenizer, kTextPieceBytes, [&](std::span<const int64_t> part, uint64_t done) {
    if (!has_begun) ids.put_special(/*before=*/true);
    has_begun = true;
    ids.put(part);
    progress.note(done);
  });
  if (!has_begun) return;  // an empty file
  ids.put_special(/*before=*/false);
  ids.end();
}

}  // namespace

TokenizedFile tokenized_file(const std::string& path, FileKind kind, const Tokenizer& tokenizer,
                             const std::string& cache_folder) {
  const TokenSource source{
      .files = {path},
      .settings = {kCacheVersion, static_cast<uint64_t>(kind), tokenizer.fingerprint(),
                   static_cast<uint64_t>(tokenizer.special().eos.value_or(-1))},
      .vocab_size = tokenizer.vocab_size(),
      .has_lengths = kind == FileKind::kJsonTexts,
      .tokenize = [&](ReadingProgress& progress, const TakeDocuments& take) {
        tokenize(path, kind, tokenizer, progress, take);
      }};
  if (!cache_folder.empty()) {
    std::optional<TokenizedFile> cached = cached_tokens(source, cache_folder);
    if (cached) return std::move(*cached);
  }
  ReadingProgress progress = common_progress({path}, kTokenized, "");
  TokenizedFile file{.ids = Tokens(tokenizer.vocab_size()), .lengths = Tokens(kLongestDocument)};
  source.tokenize(progress, {.ids = [&](auto part) { file.ids.append(part); },
                             .lengths = [&](auto part) { file.lengths.append(part); }});
  return file;
}

}  // namespace cleave::inline data
