// The three parts of OSLO's tutorial: inference, training, merging.
#pragma once
#include <string>
#include <vector>

#include "cleave/compat/oslo.h"

namespace gpt2_squad {

struct TutorialOptions {
  std::string model;            // folder of a GPT-2
  cleave::oslo::Config config;  // how it is sharded
  std::string output_dir;       // for parallel_ckpt and merged_ckpt; empty: nothing is saved
  int64_t batch_size = 4;       // sequences per data-parallel rank
  int64_t seq_len = 64;
  int64_t save_interval = 50;
  int64_t train_step = 100;
  double lr = 3e-5;
  bool learns_padding = false;  // true: as in the tutorial
  bool shuffle = true;
  uint64_t seed = 0;
  bool print = false;  // rank 0 prints progress
};

// Losses of one step before the weights change: means over all data-parallel ranks.
struct Step {
  double loss = 0;               // without padding
  double loss_with_padding = 0;  // padding counts too
  double grad_norm = 0;
};

// Continues a text by beam search with three beams, like `model.generate(**tokens, num_beams=3)`.
std::string continue_text(cleave::oslo::ParallelModel& model, const cleave::Tokenizer& tokenizer,
                          const std::string& text);

// Part 2: trains on the first train_step batches of the contexts and saves every save_interval
// steps. Collective over the world; all ranks return the same.
std::vector<Step> train(cleave::World& world, const TutorialOptions& options,
                        const std::vector<std::string>& contexts);

// Part 3: loads parallel_ckpt into a new model, writes merged_ckpt, and continues `text`.
std::string merge(cleave::World& world, const TutorialOptions& options, const std::string& text);

}  // namespace gpt2_squad
