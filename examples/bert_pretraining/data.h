// Text as BERT's two tasks see it: pairs of segments, some words hidden.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/tokenizer/tokenizer.h"

namespace bert_pretraining {

using at::Tensor;

// B rows of T tokens, P hidden words each at most.
struct Batch {
  Tensor ids;             // [B, T] int64
  Tensor token_types;     // [B, T] int64: 0 in segment A, 1 in segment B
  Tensor attention_mask;  // [B, T] bool: true = real
  Tensor masked_places;   // [B, P] int64
  Tensor masked_words;    // [B, P] int64; -100 = there is no such word
  Tensor next_sentence;   // [B] int64: 0 = B follows A, 1 = it does not
};

struct DatasetOptions {
  std::string file;  // text; lines " = Title = " begin documents
  std::shared_ptr<const cleave::Tokenizer> tokenizer;
  int64_t seq_len = 64;
  int64_t max_pred_length = 10;  // hidden words a row
  int64_t max_documents = 0;     // 0 = all
  uint64_t seed = 0;
};

// Rows by number. What a row is depends on its number and the epoch alone, so every layout trains
// on the same.
class PretrainingDataset {
 public:
  explicit PretrainingDataset(const DatasetOptions& options);
  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }
  Batch batch(const std::vector<int64_t>& rows, int64_t epoch) const;

 private:
  using Ids = std::vector<int64_t>;
  struct Pair {
    size_t document;
    Ids a, b;  // b follows a in the text
  };
  struct Row {
    Ids ids, types, places, words;
    int64_t next = 0;
  };
  std::vector<std::vector<Ids>> read() const;
  void pair_up(size_t document, const std::vector<Ids>& sentences);
  Row row(int64_t index, int64_t epoch) const;
  void hide_words(Row& row, int64_t index, int64_t epoch) const;

  DatasetOptions options_;
  int64_t cls_, sep_, pad_, mask_;
  std::vector<Pair> pairs_;
};

// The rows of one data-parallel rank, as torch's DistributedSampler hands them out, but in blocks:
// row i of rank r is place r * batch_size + i of the global batch, whatever the number of ranks.
class DistributedSampler {
 public:
  struct Options {
    int64_t dataset_size = 0;
    int num_replicas = 1;
    int rank = 0;
    int64_t batch_size = 1;  // of one rank
    uint64_t seed = 0;
  };
  explicit DistributedSampler(const Options& options) : options_(options) {}
  // Another order of rows for each epoch.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  int64_t epoch() const { return epoch_; }
  // Batches an epoch; rows that do not fill one on every rank are dropped.
  int64_t num_batches() const;
  std::vector<int64_t> batch(int64_t index) const;

 private:
  Options options_;
  int64_t epoch_ = 0;
};

}  // namespace bert_pretraining
