#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <thread>

#include "cleave/base/error.h"

namespace cleave::test {

/// Lets a system call fail with `error` from now on in this thread, and in the threads and
/// processes that it starts, as an older kernel or a container does.
inline void forbid_call(int number, int error) {
  const auto call = static_cast<uint32_t>(number);
  std::array<sock_filter, 4> program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{program.size(), program.data()};
  CLEAVE_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0,
               Code::kIo, "seccomp failed");
}

/// Runs `work` in a thread in which the system call fails.
inline void without_call(int number, int error, const std::function<void()>& work) {
  std::thread([&] {
    forbid_call(number, error);
    work();
  }).join();
}

}  // namespace cleave::test
