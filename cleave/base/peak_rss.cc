#include "cleave/base/peak_rss.h"

#include <sys/resource.h>

namespace cleave {

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{1024} * usage.ru_maxrss;
}

}  // namespace cleave
