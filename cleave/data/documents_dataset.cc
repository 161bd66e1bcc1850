#include <algorithm>
#include <span>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/data/dataset_kinds.h"

namespace cleave::inline data {
namespace {

class DocumentsDataset final : public Dataset {
 public:
  DocumentsDataset(std::vector<TokenizedFile> files, int64_t seq_len) : seq_len_(seq_len) {
    std::vector<uint64_t> identity{static_cast<uint64_t>(seq_len)};
    for (TokenizedFile& file : files) {
      for (const Tokens* tokens : {&file.ids, &file.lengths}) {
        identity.push_back(static_cast<uint64_t>(tokens->size()));
        identity.push_back(tokens->checksum());
      }
      add_samples(file);
      ids_.push_back(std::move(file.ids));
    }
    fingerprint_ = hash_bytes(std::as_bytes(std::span(identity)));
  }

  [[nodiscard]] int64_t size() const override { return std::ssize(samples_); }
  [[nodiscard]] bool is_text() const override { return true; }
  [[nodiscard]] uint64_t fingerprint() const override { return fingerprint_; }

  [[nodiscard]] Sample sample(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index,
                 " does not exist; there are ", size());
    const Piece& piece = samples_[static_cast<size_t>(index)];
    Sample sample;
    sample.ids.resize(static_cast<size_t>(piece.count));
    ids_[piece.file].copy(piece.first, sample.ids);
    return sample;
  }

 private:
  /// Ids of a document.
  struct Piece {
    size_t file;
    int64_t first, count;
  };

  void add_samples(const TokenizedFile& file) {
    if (file.lengths.size() == 0) return add_document(0, file.ids.size());
    constexpr int64_t kBlock = 4096;
    int64_t first = 0;
    std::vector<int64_t> lengths;
    for (int64_t at = 0; at < file.lengths.size(); at += std::ssize(lengths)) {
      lengths.resize(static_cast<size_t>(std::min(kBlock, file.lengths.size() - at)));
      file.lengths.copy(at, lengths);
      for (const int64_t length : lengths) {
        add_document(first, length);
        first += length;
      }
    }
  }
  /// A piece begins with the last id of the one before: the end id of a document is never the
  /// first of a piece, which has no target.
  void add_document(int64_t first, int64_t length) {
    for (int64_t at = 0; at + 1 < length; at += seq_len_ - 1) {
      samples_.push_back(
          {.file = ids_.size(), .first = first + at, .count = std::min(seq_len_, length - at)});
    }
  }

  std::vector<Tokens> ids_;  // of each file
  std::vector<Piece> samples_;
  int64_t seq_len_;
  uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> documents_dataset(std::vector<TokenizedFile> files,
                                                 int64_t seq_len) {
  CLEAVE_CHECK(seq_len >= 2, Code::kUsage, "seq_len is ", seq_len, "; expected at least 2");
  return std::make_shared<DocumentsDataset>(std::move(files), seq_len);
}

}  // namespace cleave::inline data
