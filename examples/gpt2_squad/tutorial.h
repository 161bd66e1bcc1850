// The three parts of OSLO's tutorial: inference, training, merging.
#pragma once
#include <string>
#include <vector>

#include "cleave/compat/oslo.h"

namespace gpt2_squad {

struct TutorialOptions {
  std::string model;            // folder of a GPT-2
  cleave::oslo::Config config;  // how it is split
  std::string output_dir;       // gets parallel_ckpt and merged_ckpt; empty: nothing is saved
  int64_t batch_size = 4;       // rows of one data-parallel rank
  int64_t seq_len = 64;
  int64_t save_interval = 50;
  int64_t train_step = 100;
  double lr = 3e-5;
  bool learns_padding = false;  // as the tutorial does
  bool shuffle = true;
  uint64_t seed = 0;
  bool print = false;  // rank 0 tells how it goes
};

// Losses of one step, before it: the mean over all data-parallel ranks.
struct Step {
  double loss = 0;               // of the tokens
  double loss_with_padding = 0;  // of the tokens and of the padding
  double grad_norm = 0;
};

// Continues a text with three beams, as `model.generate(**tokens, num_beams=3)`.
std::string continue_text(cleave::oslo::ParallelModel& model, const cleave::Tokenizer& tokenizer,
                          const std::string& text);

// Part 2: trains on the first train_step batches of the contexts, and saves at each save_interval.
// Every rank of the world calls it. The same on all.
std::vector<Step> train(cleave::World& world, const TutorialOptions& options,
                        const std::vector<std::string>& contexts);

// Part 3: opens parallel_ckpt with a new model, writes merged_ckpt, and continues `text`.
std::string merge(cleave::World& world, const TutorialOptions& options, const std::string& text);

}  // namespace gpt2_squad
