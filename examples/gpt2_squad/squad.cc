#include "squad.h"

#include <ATen/ATen.h>

#include "cleave/text/json.h"
#include "cleave/tokenizer/tokenizer.h"

namespace gpt2_squad {
namespace {

at::Tensor matrix(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<at::Tensor> out;
  out.reserve(rows.size());
  for (const auto& row : rows) out.push_back(at::tensor(row, at::kLong));
  return at::stack(out);
}

}  // namespace

std::vector<std::string> read_contexts(const std::string& path) {
  const cleave::Json articles = cleave::Json::parse_file(path).at("data");
  std::vector<std::string> contexts;
  for (size_t a = 0; a < articles.size(); ++a) {
    const cleave::Json paragraphs = articles.at(a).at("paragraphs");
    for (size_t p = 0; p < paragraphs.size(); ++p) {
      contexts.push_back(paragraphs.at(p).at("context").as_string());
    }
  }
  return contexts;
}

cleave::Batch batch_of(const cleave::Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       const BatchOptions& options) {
  const auto encoded = cleave::encode_batch(tokenizer, texts, {},
                                            {.padding = cleave::Padding::kLongest,
                                             .truncation = cleave::Truncation::kLongestFirst,
                                             .max_length = options.seq_len,
                                             .pad_id = tokenizer.special().eos});
  cleave::Batch batch;
  batch.ids = matrix(encoded.input_ids);
  batch.attention_mask = matrix(encoded.attention_mask).to(at::kBool);
  batch.labels = options.learns_padding
                     ? batch.ids
                     : batch.ids.masked_fill(batch.attention_mask.logical_not(), -100);
  return batch;
}

}  // namespace gpt2_squad
