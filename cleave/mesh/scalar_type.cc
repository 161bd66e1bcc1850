#include "cleave/mesh/scalar_type.h"

#include <array>
#include <utility>

#include "cleave/base/error.h"

namespace cleave::inline mesh {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 10> kTypes{{{DType::kF32, at::kFloat},
                                                                   {DType::kF64, at::kDouble},
                                                                   {DType::kBf16, at::kBFloat16},
                                                                   {DType::kF16, at::kHalf},
                                                                   {DType::kI64, at::kLong},
                                                                   {DType::kI32, at::kInt},
                                                                   {DType::kI16, at::kShort},
                                                                   {DType::kI8, at::kChar},
                                                                   {DType::kU8, at::kByte},
                                                                   {DType::kBool, at::kBool}}};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  CLEAVE_BUG("no tensor type for dtype ", static_cast<int>(dtype));
}

DType dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw Error(Code::kUsage, str("tensors of type ", toString(type), " are not supported"));
}

}  // namespace cleave::inline mesh
