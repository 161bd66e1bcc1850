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
  int64_t batch_size = 8;  // sequences per data-parallel rank and micro-batch
  int64_t grad_accum_usteps = 1;
  int64_t max_steps = 100;
  int64_t warmup_steps = 10;
  double lr = 4e-4;
  double weight_decay = 0.01;
  double max_grad_norm = 1.0;
  uint64_t seed = 0;
  std::string output_dir;        // for the trained model; empty: nothing is saved
  std::string tokenizer_folder;  // its files are copied to output_dir
  bool print = false;            // rank 0 prints every tenth step
};

struct Step {
  double loss = 0;       // sum of both tasks' means over the global batch
  double grad_norm = 0;  // before clipping
};

// Trains on this rank's share of the data. Collective over the world; all ranks return the same.
std::vector<Step> pretrain(cleave::World& world, const PretrainOptions& options,
                           const PretrainingDataset& dataset);

}  // namespace bert_pretraining
