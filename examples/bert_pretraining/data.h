// Data for BERT's two pre-training tasks: pairs of text segments with masked tokens.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/tokenizer/tokenizer.h"

namespace bert_pretraining {

using at::Tensor;

// B sequences of T tokens, each with at most P masked tokens.
struct Batch {
  Tensor ids;               // [B, T] int64
  Tensor token_types;       // [B, T] int64: 0 in segment A, 1 in segment B
  Tensor attention_mask;    // [B, T] bool: false = padding
  Tensor masked_positions;  // [B, P] int64
  Tensor masked_labels;     // [B, P] int64: the original tokens; -100 = unused
  Tensor next_sentence;     // [B] int64: 0 = B follows A, 1 = it does not
};

struct DatasetOptions {
  std::string file;  // text; lines " = Title = " begin documents
  std::shared_ptr<const cleave::Tokenizer> tokenizer;
  int64_t seq_len = 64;
  int64_t max_pred_length = 10;  // most masked tokens per sequence
  int64_t max_documents = 0;     // 0 = all
  uint64_t seed = 0;
};

// Sequences by index. A sequence depends only on its index and the epoch, so that every layout
// trains on the same data.
class PretrainingDataset {
 public:
  explicit PretrainingDataset(const DatasetOptions& options);
  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }
  Batch batch(const std::vector<int64_t>& indices, int64_t epoch) const;

 private:
  using Ids = std::vector<int64_t>;
  struct Pair {
    size_t document;
    Ids a, b;  // b follows a in the text
  };
  struct Sample {
    Ids ids, types, masked_positions, masked_labels;
    int64_t next = 0;
  };
  std::vector<std::vector<Ids>> read() const;
  void pair_up(size_t document, const std::vector<Ids>& sentences);
  Sample sample(int64_t index, int64_t epoch) const;
  void mask_tokens(Sample& out, int64_t index, int64_t epoch) const;

  DatasetOptions options_;
  int64_t cls_, sep_, pad_, mask_;
  std::vector<Pair> pairs_;
};

// The sequences of one data-parallel rank, like torch's DistributedSampler but in blocks: sequence
// i of rank r is sequence r * batch_size + i of the global batch, for any number of ranks.
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
  // Each epoch has its own order of sequences.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  int64_t epoch() const { return epoch_; }
  // Batches per epoch. Sequences that do not fill a batch on every rank are dropped.
  int64_t num_batches() const;
  // Indices of the sequences of one batch.
  std::vector<int64_t> batch(int64_t index) const;

 private:
  Options options_;
  int64_t epoch_ = 0;
};

}  // namespace bert_pretraining
