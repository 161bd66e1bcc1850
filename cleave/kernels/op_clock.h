#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

/// What a rank's time is spent on; products inside of Cleave's attention are products.
enum class TimeKind : uint8_t { kProducts, kAttention, kCollectives, kOptimizer, kOther };
inline constexpr int kNumTimeKinds = 5;

/// "matrix products", "attention", "collectives", "optimizer", "other".
std::string_view name(TimeKind kind);

/// What an operation of libtorch or a node of Cleave's counts as, by its name.
TimeKind time_kind_of(std::string_view operation);

/// One operation's share of a stretch of time; what it called is not in it.
struct OpTime {
  std::string name;
  double seconds = 0;
  int64_t calls = 0;
};

/// From its making to its end, adds up where this thread's time goes: every operation of libtorch
/// and every node's backward, at about a microsecond each. Backward of tensors on the processor
/// runs on the thread that asks for it, so a rank thread sees its own step. A thread has at most
/// one at a time: a second one is Error(kBug).
class OpClock {
 public:
  OpClock();
  ~OpClock();
  OpClock(const OpClock&) = delete;
  OpClock& operator=(const OpClock&) = delete;

  /// Since the start, longest first.
  [[nodiscard]] std::vector<OpTime> operations() const;
  /// Seconds of each TimeKind since the start; kOther is what all the rest leaves of the wall time.
  [[nodiscard]] std::array<double, kNumTimeKinds> seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Beside a matrix product inside an operation of another kind: the time until its end counts as
/// kProducts, not as that operation's, on a thread that has a clock.
class ProductTime {
 public:
  ProductTime();
  ~ProductTime();
  ProductTime(const ProductTime&) = delete;
  ProductTime& operator=(const ProductTime&) = delete;

 private:
  double start_ = 0;
};

}  // namespace cleave
