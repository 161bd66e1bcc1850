#include "cleave/base/address_space.h"

#include <sys/mman.h>

namespace cleave {

bool has_address_space(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const at =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  munmap(at, size);
  return true;
}

}  // namespace cleave
