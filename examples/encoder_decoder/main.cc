// Learns to write sequences backwards, on two pipeline stages x two tensor-parallel ranks.
#include "t5.h"

using namespace encoder_decoder;  // NOLINT(google-build-using-namespace)

int main() {
  run_job(4, [](World& world) {
    const std::vector<double> losses = train(world, {.pp = 2, .tp = 2}, 100);
    if (world.rank() == 0) log_info("first loss ", losses[0], "  last loss ", losses.back());
  });
}
