// The guide's training script as one call.
#pragma once
#include <string>
#include <vector>

#include "cleave/comm/api/world.h"
#include "data.h"
#include "model.h"

namespace bert_pretraining {

struct PretrainOptions {
  int tensor_parallel_size = 2;
  BertConfig model;
  int64_t batch_size = 8;  // rows of one rank at once
  int64_t grad_accum_usteps = 1;
  int64_t max_steps = 100;
  int64_t warmup_steps = 10;
  double lr = 4e-4;
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;
  uint64_t seed = 0;
  std::string output_dir;        // where the trained model goes; empty: nowhere
  std::string tokenizer_folder;  // whose files go with it
  bool print = false;            // rank 0 prints each tenth step
};

struct Step {
  double loss = 0;       // mean over the global batch: words and next sentences
  double grad_norm = 0;  // before clipping
};

// Trains on this rank's share of the data; every rank of the world calls it. The same on all.
std::vector<Step> pretrain(cleave::World& world, const PretrainOptions& options,
                           const PretrainingDataset& dataset);

}  // namespace bert_pretraining
