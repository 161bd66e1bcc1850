#include "cleave/torch_internals/op_clock.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <vector>

#include <ATen/record_function.h>

#include "cleave/base/clock.h"
#include "cleave/base/error.h"

namespace cleave::inline torch_internals {

struct OpTotals {
  std::map<std::string, OpTime, std::less<>> operations;
  ProductCounts products;
};

namespace {

/// For each operation running on this thread, outermost first: the seconds spent in its callees.
thread_local std::vector<double> in_callees;

/// Totals of this thread's OpClock; null without one.
thread_local OpTotals* totals = nullptr;

struct Started : at::ObserverContext {
  double at = monotonic_s();
};

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& /*function*/) {
  in_callees.push_back(0);
  return std::make_unique<Started>();
}

void add(std::string_view name, double seconds) {
  if (totals == nullptr) return;
  auto& operations = totals->operations;
  auto found = operations.find(name);
  if (found == operations.end()) {
    found = operations.emplace(name, OpTime{.name = std::string(name)}).first;
  }
  found->second.seconds += seconds;
  ++found->second.calls;
}

void finish(const at::RecordFunction& function, at::ObserverContext* context) {
  if (in_callees.empty() || context == nullptr) return;
  const double whole = monotonic_s() - static_cast<Started*>(context)->at;
  const double own = whole - in_callees.back();
  in_callees.pop_back();
  if (!in_callees.empty()) in_callees.back() += whole;
  add(function.name(), own);
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return text.find(part) != text.npos; });
}

}  // namespace

std::string_view name(TimeKind kind) {
  constexpr std::array<std::string_view, kNumTimeKinds> kNames{"matrix products", "attention",
                                                               "collectives", "optimizer", "other"};
  return kNames[static_cast<size_t>(kind)];
}

TimeKind time_kind_of(std::string_view operation) {
  if (operation.starts_with("cleave::comm")) return TimeKind::kCollectives;
  if (has_any(operation, {"_fused_adam", "cleave::adam"})) return TimeKind::kOptimizer;
  if (has_any(operation, {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear",
                          "_linear_pointwise", "mkldnn_linear", "cleave::product"})) {
    return TimeKind::kProducts;
  }
  if (has_any(operation, {"attention"})) return TimeKind::kAttention;
  return TimeKind::kOther;
}

void count_product(const ProductShape& shape) {
  if (totals != nullptr) ++totals->products[shape];
}

struct OpClock::State {
  OpTotals totals;
  at::CallbackHandle handle = 0;
  double start = 0;
};

OpClock::OpClock() : state_(std::make_unique<State>()) {
  if (totals != nullptr) CLEAVE_BUG("a second OpClock on a thread");
  in_callees.clear();
  totals = &state_->totals;
  state_->start = monotonic_s();
  state_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(start, finish)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
}

OpClock::~OpClock() {
  at::removeCallback(state_->handle);
  totals = nullptr;
}

std::vector<OpTime> OpClock::operations() const {
  std::vector<OpTime> out;
  for (const auto& [name, time] : state_->totals.operations) out.push_back(time);
  std::sort(out.begin(), out.end(),
            [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return out;
}

const ProductCounts& OpClock::products() const {
  return state_->totals.products;
}

std::array<double, kNumTimeKinds> OpClock::seconds() const {
  std::array<double, kNumTimeKinds> out{};
  double rest = monotonic_s() - state_->start;
  for (const auto& [name, time] : state_->totals.operations) {
    const TimeKind kind = time_kind_of(name);
    if (kind == TimeKind::kOther) continue;
    out[static_cast<size_t>(kind)] += time.seconds;
    rest -= time.seconds;
  }
  out[static_cast<size_t>(TimeKind::kOther)] = rest;
  return out;
}

ProductTime::ProductTime() : start_(totals == nullptr ? 0 : monotonic_s()) {}

ProductTime::~ProductTime() {
  if (totals == nullptr || start_ == 0) return;
  const double seconds = monotonic_s() - start_;
  if (!in_callees.empty()) in_callees.back() += seconds;
  add("cleave::product in attention", seconds);
}

}  // namespace cleave::inline torch_internals
