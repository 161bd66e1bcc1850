// An image classifier on two pipeline stages x two tensor-parallel ranks.
#include "classifier.h"

using namespace image_classifier;  // NOLINT(google-build-using-namespace)

int main() {
  run_job(4, [](World& world) {
    const Result result = train(world, {.pp = 2, .tp = 2, .sequence_parallel = true}, 40);
    if (world.rank() != 0) return;
    log_info("first loss ", result.losses.front(), "  last loss ", result.losses.back());
    log_info("right on unseen images: ", 100 * result.accuracy, "%");
  });
}
