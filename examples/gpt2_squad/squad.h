// The tutorial's data: the contexts of a file in SQuAD's format.
#pragma once
#include <string>
#include <vector>

#include "cleave/data/batch.h"
#include "cleave/tokenizer/tokenizer.h"

namespace gpt2_squad {

// The context of every paragraph of {"data": [{"paragraphs": [{"context": ...}]}]}, in the order of
// the file. Throws Error(kFormat) naming the key and the byte.
std::vector<std::string> read_contexts(const std::string& path);

struct BatchOptions {
  int64_t seq_len = 64;         // longer texts are truncated
  bool learns_padding = false;  // false: labels of padding are -100
};

// Tokenizes texts and pads them on the right, with the end token, to the longest of them.
cleave::Batch batch_of(const cleave::Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       const BatchOptions& options);

}  // namespace gpt2_squad
