#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline torch_internals {

/// Categories of a rank's time. Matrix products inside attention count as kProducts.
enum class TimeKind : uint8_t { kProducts, kAttention, kCollectives, kOptimizer, kOther };
inline constexpr int kNumTimeKinds = 5;

/// "matrix products", "attention", "collectives", "optimizer", "other".
std::string_view name(TimeKind kind);

/// Category of a libtorch operation or an autograd node of Cleave, by its name.
TimeKind time_kind_of(std::string_view operation);

/// Self time of one operation, without the operations that it called.
struct OpTime {
  std::string name;
  double seconds = 0;
  int64_t calls = 0;
};

/// The sizes of a matrix product: [rows, inner] times [inner, columns].
struct ProductShape {
  int64_t rows = 0, inner = 0, columns = 0;
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

/// How often each product occurred.
using ProductCounts = std::map<ProductShape, int64_t>;

/// Counts a product on a thread with an OpClock.
void count_product(const ProductShape& shape);

/// Profiler of this thread while it is alive: sums the time of every libtorch operation and every
/// node's backward, at a cost of about a microsecond each. Backward of CPU tensors runs on the
/// thread that calls backward(), so a rank thread sees its whole step. A second one on the same
/// thread is Error(kBug).
class OpClock {
 public:
  OpClock();
  ~OpClock();
  OpClock(const OpClock&) = delete;
  OpClock& operator=(const OpClock&) = delete;

  /// Operations since the start, longest first.
  [[nodiscard]] std::vector<OpTime> operations() const;
  /// Products of linear layers since the start. Those of backward are counted in forward.
  [[nodiscard]] const ProductCounts& products() const;
  /// Seconds of each TimeKind since the start; kOther is the rest of the wall time.
  [[nodiscard]] std::array<double, kNumTimeKinds> seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Scope of a matrix product inside another operation: on a thread with an OpClock, its time counts
/// as kProducts instead of that operation's.
class ProductTime {
 public:
  ProductTime();
  ~ProductTime();
  ProductTime(const ProductTime&) = delete;
  ProductTime& operator=(const ProductTime&) = delete;

 private:
  double start_ = 0;
};

}  // namespace cleave::inline torch_internals
