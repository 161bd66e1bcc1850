// Saves the trained model as a folder that `cleave predict` and other programs read.
#pragma once
#include <string>

#include "model.h"

namespace bert_pretraining {

struct SaveOptions {
  std::string folder;            // must not exist
  std::string tokenizer_folder;  // its files are copied into `folder`
  int64_t step = 0;
};

// Writes config.json, weights, moments and the tokenizer. Collective: every rank writes its shards.
void save(const SaveOptions& options, cleave::World& world, BertForPreTraining& model,
          const cleave::Optimizer& optimizer);

}  // namespace bert_pretraining
