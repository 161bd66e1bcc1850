#include "cleave/nn/kv_cache.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/attention.h"

namespace cleave::inline nn {

Tensor stored_as(const Tensor& t, at::ScalarType type) {
  return type == at::kChar ? to_int8_rows(t) : t.to(type);
}

std::pair<Tensor, Tensor> KvCache::extend(std::string_view layer, const Tensor& new_k,
                                          const Tensor& new_v, at::ScalarType type) {
  // A copy casts by itself.
  const bool is_int8 = type == at::kChar;
  const Tensor k = is_int8 ? to_int8_rows(new_k) : new_k;
  const Tensor v = is_int8 ? to_int8_rows(new_v) : new_v;
  auto found = entries_.find(layer);
  if (found == entries_.end()) found = entries_.emplace(layer, Entry{}).first;
  Entry& entry = found->second;
  if (!entry.k.defined()) {
    entry.k = at::empty({k.size(0), k.size(1), capacity_, k.size(3)}, k.options().dtype(type));
    entry.v = at::empty_like(entry.k);
  }
  const int64_t tokens = k.size(2);
  CLEAVE_CHECK(entry.length + tokens <= capacity_, Code::kShape, "the KV cache holds at most ",
               capacity_, " tokens; it has ", entry.length, " and got ", tokens, " more");
  entry.k.narrow(2, entry.length, tokens).copy_(k);
  entry.v.narrow(2, entry.length, tokens).copy_(v);
  entry.length += tokens;
  return {entry.k.narrow(2, 0, entry.length), entry.v.narrow(2, 0, entry.length)};
}

std::pair<Tensor, Tensor> KvCache::storage(std::string_view layer) const {
  const auto found = entries_.find(layer);
  if (found == entries_.end()) CLEAVE_BUG("the KV cache has no keys of ", layer);
  return {found->second.k, found->second.v};
}

void KvCache::advance() {
  for (auto& [layer, entry] : entries_) {
    CLEAVE_CHECK(entry.length < capacity_, Code::kShape, "the KV cache holds at most ", capacity_,
                 " tokens and is full");
    ++entry.length;
  }
}

int64_t KvCache::length(std::string_view layer) const {
  const auto found = entries_.find(layer);
  return found == entries_.end() ? 0 : found->second.length;
}

int64_t KvCache::length() const {
  return entries_.empty() ? 0 : entries_.begin()->second.length;
}

bool KvCache::is_complete(int64_t num_tokens) const {
  return !entries_.empty() && std::ranges::all_of(entries_, [num_tokens](const auto& entry) {
    return entry.second.length == num_tokens;
  });
}

void KvCache::reorder(const Tensor& rows) {
  for (auto& [layer, entry] : entries_) {
    for (const Tensor& t : {entry.k, entry.v}) {
      const Tensor filled = t.narrow(2, 0, entry.length);
      filled.copy_(filled.index_select(0, rows));
    }
  }
}

void KvCache::repeat_rows(int64_t copies) {
  for (auto& [layer, entry] : entries_) {
    for (Tensor* t : {&entry.k, &entry.v}) {
      auto shape = t->sizes().vec();
      shape[0] *= copies;
      const Tensor repeated = at::empty(shape, t->options());
      const Tensor filled = t->narrow(2, 0, entry.length);
      repeated.narrow(2, 0, entry.length).copy_(filled.repeat_interleave(copies, 0));
      *t = repeated;
    }
  }
}

KvCache KvCache::joined(const std::vector<Part>& parts, int64_t capacity) {
  KvCache out(capacity);
  int64_t num_rows = 0;
  int64_t length = 0;
  for (const Part& part : parts) {
    num_rows += part.rows.size(0);
    length = std::max(length, part.cache.length() - part.skipped);
  }
  for (const auto& [layer, first] : parts.front().cache.entries_) {
    Entry& entry = out.entries_[layer];
    entry.length = length;
    for (Tensor Entry::*side : {&Entry::k, &Entry::v}) {
      const Tensor& like = first.*side;
      entry.*side = at::empty({num_rows, like.size(1), capacity, like.size(3)}, like.options());
      int64_t row = 0;
      for (const Part& part : parts) {
        const Tensor& from = part.cache.entries_.at(layer).*side;
        const int64_t tokens = part.cache.length() - part.skipped;
        const Tensor to = (entry.*side).narrow(0, row, part.rows.size(0));
        // Masked values count with the weight 0, so they must be finite.
        to.narrow(2, 0, length - tokens).zero_();
        to.narrow(2, length - tokens, tokens)
            .copy_(from.narrow(2, part.skipped, tokens).index_select(0, part.rows));
        row += part.rows.size(0);
      }
    }
  }
  return out;
}

}  // namespace cleave::inline nn
