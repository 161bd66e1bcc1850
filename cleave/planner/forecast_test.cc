#include "cleave/planner/forecast.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/planner/meta_memory.h"

namespace cleave {
namespace {

TEST(MetaMemory, TensorsAndViews_CountTheirStorageOnce) {
  MetaMemory memory;
  EXPECT_EQ(memory.live(), 0);
  {
    const Tensor a = at::empty({3, 5}, at::dtype(at::kFloat).device(at::kMeta));
    const Tensor view = a.t();
    EXPECT_EQ(memory.live(), 60);
    const Tensor b = a + 1;
    EXPECT_EQ(memory.live(), 120);
  }
  EXPECT_EQ(memory.live(), 0);
  EXPECT_EQ(memory.peak(), 120);
  memory.reset_peak();
  EXPECT_EQ(memory.peak(), 0);
}

TEST(Forecast, X) {
  const Json config = preset_config("llama-tiny", 257);
  for (int tp : {1, 2, 4}) {
    const auto model = make_model(config);
    const Forecast f = forecast(config, {.tp = tp, .plan = model->plan()},
                                {.batch_size = 8, .micro_batch_size = 8, .seq_len = 256});
    for (const auto& r : f.ranks) {
      printf("%d w %ld o %ld g %ld a %ld  tp %ld bytes %ld calls\n", tp, r.memory.weights,
             r.memory.optimizer, r.memory.gradients, r.memory.activations, r.tp.bytes,
             r.tp.num_calls);
    }
  }
}

}  // namespace
}  // namespace cleave
