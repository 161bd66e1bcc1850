#include "cleave/runtime/kernel_switches.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/runtime/plain_kernels.h"

namespace cleave::inline runtime {
namespace {

constexpr std::array<std::string_view, kNumKernels> kNames{
    "attention", "norm", "gate", "rotary", "loss", "few-rows", "panels", "adam", "random"};
std::array<std::atomic<bool>, kNumKernels> off{};
std::atomic<Gemm> chosen{Gemm::kMkl};

std::string all_names() {
  std::string text;
  for (const std::string_view name : kNames) text.append(name).append(", ");
  return text;
}

}  // namespace

std::string_view name(Gemm gemm) {
  return gemm == Gemm::kMkl ? "mkl" : "onednn";
}

void set_gemm(Gemm gemm) {
  chosen = gemm;
}

Gemm gemm() {
  return chosen;
}

bool is_on(Kernel kernel) {
  return !off[static_cast<size_t>(kernel)].load(std::memory_order_relaxed);
}

void set_plain_kernels(const std::string& names) {
  std::array<bool, kNumKernels> plain{};
  if (names == "all") plain.fill(true);
  for (size_t begin = 0; begin < names.size() && names != "all";) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    CLEAVE_CHECK(found != kNames.end(), Code::kUsage, "there is no kernel '", name,
                 "'; choose from ", all_names(), "or all");
    plain[static_cast<size_t>(found - kNames.begin())] = true;
    begin = end + 1;
  }
  for (size_t i = 0; i < plain.size(); ++i) off[i] = plain[i];
}

PlainKernels::PlainKernels() {
  for (size_t i = 0; i < off.size(); ++i) was_off_[i] = off[i].exchange(true);
}

PlainKernels::~PlainKernels() {
  for (size_t i = 0; i < off.size(); ++i) off[i] = was_off_[i];
}

}  // namespace cleave::inline runtime
