// What a peer may send over the network, as any bytes: refused with an Error, or written into the
// page where it belongs; this rank's own part of the page stays as it was.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/comm/page_copy.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void feed(cleave::PageCopy& copy, const uint8_t* data, size_t size) {
  for (size_t done = 0; done < size;) {
    const auto room = copy.room();
    require(!room.empty());
    const size_t count = std::min(room.size(), size - done);
    std::memcpy(room.data(), data + done, count);
    done += count;
    copy.advance(count);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto page = cleave::JobPage::create_mirror(3, 0);
  const std::vector<int> ranks{0, 1};
  const cleave::GroupEntry& entry = page->group(page->join_group(7, ranks, "tp"));
  page->member(entry, 0).stamp.store(1);
  page->ring(0, 1).head.store(2);
  cleave::PageCopy copy(*page, 0, 1);
  try {
    feed(copy, data, size);
  } catch (const cleave::Error& error) {
    const cleave::Code code = error.code();
    require(code == cleave::Code::kFormat || code == cleave::Code::kDesync ||
            code == cleave::Code::kMemory);
  }
  require(page->member(entry, 0).stamp.load() == 1 && page->ring(0, 1).head.load() == 2);
  require(page->rank(0).num_operations.load() == 0 && page->rank(0).wait_epoch.load() == 0);
  return 0;
}
