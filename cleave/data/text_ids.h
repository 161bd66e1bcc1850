#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline data {

/// Receives the next ids of a text, and the bytes of the file that were tokenized so far.
using TakeIds = std::function<void(std::span<const int64_t> ids, uint64_t done)>;

/// Tokenizes a text file in pieces of about `piece_bytes`: passes on the ids of the whole text
/// after a byte order mark, without added special tokens, with the memory of a few pieces for each
/// thread (at most 8), which encode one piece each at the same time. A piece ends at a blank where
/// the ids of the text before it, a few KiB, do not depend on the text after it. The next piece is
/// encoded with the text before it, so that it is not taken for the beginning of a text. Where
/// there is no such blank, the piece is longer.
///
/// Throws Error(kFormat), with the place, for bytes that are not UTF-8 text, after the ids before
/// them were taken; Error(kIo).
void for_text_ids(const std::string& path, const Tokenizer& tokenizer, size_t piece_bytes,
                  const TakeIds& take);

}  // namespace cleave::inline data
