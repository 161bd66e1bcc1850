#pragma once
#include <ATen/Parallel.h>

namespace cleave::test {

/// Sets at::get_num_threads() for a scope.
class Threads {
 public:
  explicit Threads(int number) : before_(at::get_num_threads()) { at::set_num_threads(number); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace cleave::test
