#include "cleave/nn/kv_cache.h"

#include <ATen/ATen.h>

#include "cleave/base/error.h"

namespace cleave::inline nn {

std::pair<Tensor, Tensor> KvCache::extend(std::string_view layer, const Tensor& k, const Tensor& v,
                                          at::ScalarType type) {
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

int64_t KvCache::length(std::string_view layer) const {
  const auto found = entries_.find(layer);
  return found == entries_.end() ? 0 : found->second.length;
}

int64_t KvCache::length() const {
  return entries_.empty() ? 0 : entries_.begin()->second.length;
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

}  // namespace cleave::inline nn
