#pragma once
#include <filesystem>

#include "cleave/tokenizer/pipeline.h"
#include "cleave/tokenizer/special_names.h"

namespace cleave {

/// vocab.json and merges.txt: GPT-2's byte-level BPE. Throws Error(kFormat) naming file and line.
PipelineParts read_vocab_and_merges(const std::filesystem::path& folder, const SpecialNames& names);

/// vocab.txt, a token a line: BERT's WordPiece.
PipelineParts read_vocab_txt(const std::filesystem::path& folder, const SpecialNames& names);

/// Whether a tokenizer.model is a list of ranks ("base64 rank" lines) and no SentencePiece model.
bool is_rank_file(std::string_view text);

/// tokenizer.model as a list of ranks: Llama 3's byte-level BPE with its 256 special tokens.
PipelineParts read_ranks(const std::filesystem::path& folder, const SpecialNames& names);

}  // namespace cleave
