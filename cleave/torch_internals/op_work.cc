#include "cleave/torch_internals/op_work.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include "cleave/base/error.h"

namespace cleave::inline torch_internals {

double MatrixWork::flops() const {
  return 2.0 * static_cast<double>(batch) * static_cast<double>(rows) * static_cast<double>(inner) *
         static_cast<double>(columns);
}

namespace {

void add_bytes(BytesByDistance& sum, const BytesByDistance& more, double factor) {
  for (size_t i = 0; i < sum.size(); ++i) sum.at(i) += factor * more.at(i);
}

}  // namespace

OpWork& OpWork::add(const OpWork& other, double factor) {
  for (const auto& [shape, count] : other.products) products[shape] += factor * count;
  for (const auto& [shape, count] : other.attention) attention[shape] += factor * count;
  for (const auto& [shape, bytes] : other.factors) add_bytes(factors[shape], bytes, factor);
  add_bytes(moved, other.moved, factor);
  random_numbers += factor * other.random_numbers;
  operations += factor * other.operations;
  return *this;
}

double OpWork::moved_bytes() const {
  return std::accumulate(moved.begin(), moved.end(), 0.0);
}

/// Memory that an operation touches: a tensor's storage, and how much of it the tensor can reach.
struct Touched {
  const void* storage = nullptr;
  int64_t bytes = 0;
};

struct WorkCounter::State {
  OpWork work;
  at::CallbackHandle handle = 0;
  int64_t clock = int64_t{1} << 45;                  // bytes touched so far; many before the start
  std::unordered_map<const void*, int64_t> touched;  // the clock after the last touch
  std::vector<bool> has_moved;  // for each running operation: whether one inside it moved bytes

  /// CPUs read a line of memory into the cache before they write to it, unless it is there already:
  /// what is written, but not read by the pass, counts twice.
  void pass(const std::vector<Touched>& read, const std::vector<Touched>& written,
            bool is_in_place = false) {
    int64_t farthest = 0;
    for (const Touched& t : read) {
      const int64_t distance = distance_of(t);
      bytes_at(work.moved, distance) += static_cast<double>(t.bytes);
      farthest = std::max(farthest, distance);
    }
    for (const Touched& t : written) {
      bytes_at(work.moved, farthest) += static_cast<double>((is_in_place ? 1 : 2) * t.bytes);
    }
    touch(read, written);
  }

  /// New memory, perhaps where other memory was. A message, which is not counted, may fill it.
  void begin_life(const std::vector<Touched>& allocated) {
    for (const Touched& t : allocated) touched[t.storage] = clock;
  }

  void product(const MatrixWork& shape, const std::array<Touched, 2>& matrices) {
    work.products[shape] += 1;
    BytesByDistance& factors = work.factors[shape];
    for (const Touched& t : matrices) {
      bytes_at(factors, distance_of(t)) += static_cast<double>(t.bytes);
    }
  }

  void touch(const std::vector<Touched>& read, const std::vector<Touched>& written) {
    for (const auto* list : {&read, &written}) {
      for (const Touched& t : *list) clock += t.bytes;
    }
    for (const auto* list : {&read, &written}) {
      for (const Touched& t : *list) touched[t.storage] = clock;
    }
  }

 private:
  /// Bytes used since `t` was.
  [[nodiscard]] int64_t distance_of(const Touched& t) const {
    const auto last = touched.find(t.storage);
    return clock - (last == touched.end() ? 0 : last->second);
  }

  static double& bytes_at(BytesByDistance& bytes, int64_t distance) {
    const auto bucket = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(distance) | 1U));
    return bytes.at(std::min(bucket - 1, bytes.size() - 1));
  }
};

namespace {

thread_local WorkCounter::State* counter = nullptr;

Touched touched_of(const at::Tensor& t) {
  const auto item = static_cast<int64_t>(t.element_size());
  const auto held = static_cast<int64_t>(t.storage().nbytes());
  // An expanded tensor has more elements than its memory.
  return {.storage = t.storage().unsafeGetStorageImpl(), .bytes = std::min(t.numel() * item, held)};
}

void add_tensors(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (t.defined() && t.has_storage()) out.push_back(t);
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(t);
  }
}

template <class Values>
std::vector<at::Tensor> tensors_of(const Values& values) {
  std::vector<at::Tensor> out;
  for (const c10::IValue& value : values) add_tensors(value, out);
  return out;
}

std::vector<Touched> all_touched(const std::vector<at::Tensor>& tensors) {
  std::vector<Touched> out;
  out.reserve(tensors.size());
  for (const at::Tensor& t : tensors) out.push_back(touched_of(t));
  return out;
}

/// Bytes and sizes of an operation's inputs, which its end does not see.
struct Began : at::ObserverContext {
  bool is_counted = false;  // what it reads
  std::vector<Touched> read;
  std::optional<MatrixWork> product;
  std::array<Touched, 2> matrices;  // of the product
};

bool is_transposed(const at::Tensor& matrix) {
  return matrix.size(-1) > 1 && matrix.stride(-1) != 1;
}

void note_product(std::string_view name, const std::vector<at::Tensor>& in, Began& began) {
  const bool adds = name == "aten::addmm" || name == "aten::baddbmm";
  if (!adds && name != "aten::mm" && name != "aten::bmm") return;
  const size_t first = adds ? 1 : 0;
  if (in.size() < first + 2) return;
  const at::Tensor &a = in[first], &b = in[first + 1];
  if (a.numel() == 0 || b.numel() == 0) return;
  began.product = {.batch = a.dim() == 3 ? a.size(0) : 1,
                   .rows = a.size(-2),
                   .inner = a.size(-1),
                   .columns = b.size(-1),
                   .is_first_transposed = is_transposed(a),
                   .is_second_transposed = is_transposed(b),
                   .type = a.scalar_type()};
  began.matrices = {touched_of(a), touched_of(b)};
}

/// Whether all are on the meta device; numbers may be elsewhere.
bool are_on_meta(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.is_meta() || t.dim() == 0; });
}

std::unique_ptr<at::ObserverContext> begin_operation(const at::RecordFunction& function) {
  auto began = std::make_unique<Began>();
  if (counter == nullptr) return began;
  counter->has_moved.push_back(false);
  if (function.scope() != at::RecordScope::FUNCTION) return began;
  const std::vector<at::Tensor> in = tensors_of(function.inputs());
  began->is_counted = are_on_meta(in);
  if (!began->is_counted) return began;
  began->read = all_touched(in);
  note_product(function.name(), in, *began);
  return began;
}

/// Whether an operation writes to an argument. A RecordFunction copies the schema, which is large.
bool is_mutable(const at::RecordFunction& function) {
  thread_local std::unordered_map<c10::OperatorName, bool> known;
  const std::optional<c10::OperatorName> name = function.operator_name();
  if (!name) return false;
  const auto [entry, is_new] = known.try_emplace(*name, false);
  if (is_new) {
    const auto schema = function.operator_schema();
    entry->second = schema && schema->is_mutable();
  }
  return entry->second;
}

bool is_allocation(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

/// What an operation does with the memory of its results.
enum class Writes : uint8_t { kNothing, kNew, kChanges, kOverwrites };

Writes writes_of(const at::RecordFunction& function, const std::vector<Touched>& read,
                 const std::vector<Touched>& written) {
  const std::string_view name = function.name();
  if (written.empty() || is_allocation(name)) return Writes::kNothing;
  const bool is_alias = std::any_of(written.begin(), written.end(), [&](const Touched& w) {
    return std::any_of(read.begin(), read.end(),
                       [&](const Touched& r) { return r.storage == w.storage; });
  });
  if (!is_alias) return Writes::kNew;
  if (name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_") {
    return Writes::kOverwrites;
  }
  if (name.ends_with('_')) return Writes::kChanges;
  return is_mutable(function) ? Writes::kOverwrites : Writes::kNothing;  // else a view
}

/// Without what is only written.
std::vector<Touched> only_read(std::vector<Touched> read, const std::vector<Touched>& written) {
  std::erase_if(read, [&](const Touched& r) {
    return std::any_of(written.begin(), written.end(),
                       [&](const Touched& w) { return r.storage == w.storage; });
  });
  return read;
}

void end_operation(const at::RecordFunction& function, at::ObserverContext* context) {
  if (counter == nullptr || counter->has_moved.empty() || context == nullptr) return;
  const bool has_inner = counter->has_moved.back();
  counter->has_moved.pop_back();
  counter->work.operations += 1;
  const auto* began = static_cast<const Began*>(context);
  bool has_moved = has_inner;
  const std::vector<at::Tensor> out = tensors_of(function.outputs());
  if (began->is_counted && !has_inner && are_on_meta(out)) {
    const std::vector<Touched> written = all_touched(out);
    if (began->product) {
      counter->product(*began->product, began->matrices);
      counter->touch(began->read, written);
      has_moved = true;
    } else {
      const Writes writes = writes_of(function, began->read, written);
      if (is_allocation(function.name())) counter->begin_life(written);
      if (writes == Writes::kOverwrites) {
        counter->pass(only_read(began->read, written), written);
      } else if (writes != Writes::kNothing) {
        counter->pass(began->read, written, writes == Writes::kChanges);
      }
      has_moved = writes != Writes::kNothing;
    }
  }
  if (has_moved && !counter->has_moved.empty()) counter->has_moved.back() = true;
}

}  // namespace

WorkCounter::WorkCounter() : state_(std::make_unique<State>()) {
  if (counter != nullptr) CLEAVE_BUG("a second WorkCounter on a thread");
  counter = state_.get();
  state_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin_operation, end_operation)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

WorkCounter::~WorkCounter() {
  at::removeCallback(state_->handle);
  counter = nullptr;
}

OpWork WorkCounter::take() {
  return std::exchange(state_->work, OpWork());
}

void count_attention(const AttentionWork& work) {
  if (counter != nullptr) counter->work.attention[work] += 1;
}

void count_pass(std::initializer_list<const at::Tensor*> read,
                std::initializer_list<const at::Tensor*> written) {
  if (counter == nullptr) return;
  const auto of = [](std::initializer_list<const at::Tensor*> list) {
    std::vector<Touched> out;
    for (const at::Tensor* t : list) {
      if (t->defined()) out.push_back(touched_of(*t));
    }
    return out;
  };
  counter->pass(of(read), of(written));
}

void count_random_numbers(int64_t count) {
  if (counter != nullptr) counter->work.random_numbers += static_cast<double>(count);
}

}  // namespace cleave::inline torch_internals
