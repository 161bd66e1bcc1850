#include "cleave/kernels/cpu/embedding.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cleave/kernels/cpu/rows.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline kernels {
namespace {

/// The ids of some tokens, each once, and which of them each token has (-1: none).
struct Found {
  std::vector<int64_t> ids, of_token;

  Found(const Tensor& tokens, int64_t num_ids, int64_t padding) {
    const Tensor flat = tokens.to(at::kLong).flatten().contiguous();
    const auto* id = flat.const_data_ptr<int64_t>();
    std::vector<int64_t> place(static_cast<size_t>(num_ids), -1);
    of_token.reserve(static_cast<size_t>(flat.numel()));
    for (int64_t t = 0; t < flat.numel(); ++t) {
      int64_t& own = place[static_cast<size_t>(id[t])];
      if (own < 0 && id[t] != padding) {
        own = std::ssize(ids);
        ids.push_back(id[t]);
      }
      of_token.push_back(own);
    }
  }
};

/// Adds columns [begin, end) of a row of gradients to a sum.
void add_row(const uint16_t* row, int64_t begin, int64_t end, float* sum) {
  sum_range({.is_sum_bf16 = false, .sum = sum, .x = row, .y = sum}, begin, end);
}
void add_row(const float* row, int64_t begin, int64_t end, float* sum) {
  for (int64_t i = begin; i < end; ++i) sum[i] += row[i];
}

/// Adds each token's row to the sum of its id, in the order of the tokens. Threads divide the
/// columns.
template <class T>
void add_rows(const Tensor& rows, const std::vector<int64_t>& of_token, const Tensor& sums) {
  constexpr int64_t kColumns = 64, kGrain = 65536;
  const int64_t width = rows.size(1);
  const auto* from = static_cast<const T*>(rows.const_data_ptr());
  auto* to = sums.mutable_data_ptr<float>();
  const int64_t grain = 1 + kGrain / (kColumns * std::max<int64_t>(rows.size(0), 1));
  at::parallel_for(0, (width + kColumns - 1) / kColumns, grain, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kColumns, end = std::min(width, last * kColumns);
    for (size_t t = 0; t < of_token.size(); ++t) {
      if (of_token[t] < 0) continue;
      add_row(from + static_cast<int64_t>(t) * width, begin, end, to + of_token[t] * width);
    }
  });
}

Tensor gradient_of_table(const Tensor& gradient, const Tensor& ids, int64_t num_ids,
                         int64_t padding) {
  if (gradient.is_meta()) {
    return at::embedding_dense_backward(gradient, ids, num_ids, padding, false);
  }
  const Found found(ids, num_ids, padding);
  const Tensor rows = gradient.flatten(0, -2).contiguous();
  const Tensor sums = at::zeros({std::ssize(found.ids), rows.size(1)}, at::kFloat);
  if (rows.scalar_type() == at::kBFloat16) {
    add_rows<uint16_t>(rows, found.of_token, sums);
  } else {
    add_rows<float>(rows.to(at::kFloat), found.of_token, sums);
  }
  return at::zeros({num_ids, rows.size(1)}, rows.options())
      .index_copy_(0, at::tensor(found.ids, at::kLong), sums.to(rows.scalar_type()));
}

}  // namespace

Tensor embedding_rows(const Tensor& table, const Tensor& ids, int64_t padding) {
  const at::ScalarType type = table.scalar_type();
  const bool is_narrow = type == at::kBFloat16 || type == at::kHalf;
  if (!is_narrow || !(table.is_cpu() || table.is_meta())) return at::embedding(table, ids, padding);
  return differentiable(
      "embedding", table, [&](const Tensor& t) { return at::embedding(t, ids, padding); },
      [ids = SavedInput("embedding", ids), num_ids = table.size(0),
       padding](const Tensor& gradient) {
        return gradient_of_table(gradient, ids.get(), num_ids, padding);
      });
}

}  // namespace cleave::inline kernels
