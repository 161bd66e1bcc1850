#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/comm/world.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "tests/support/golden.h"

namespace cleave {
namespace {

Tensor logits_of(const std::string& folder, const Axis& tp, const Tensor& ids) {
  const ModelFolder opened = ModelFolder::open(folder);
  auto model = make_model(opened.config);
  parallelize_module(*model, tp, model->plan());
  load_model(*model, opened, at::kFloat);
  const at::NoGradGuard no_grad;
  return (*model)(DTensor(ids, tp, Replicate{}), Context()).full_tensor();
}

// Oracle: transformers' logits of the same trained model, recorded; Meta's files hold it with other
// names and another order of rotary rows.
TEST(ModelFolder, MetasNamesAndRowOrder_GiveTheRecordedLogits) {
  CLEAVE_NEEDS_DATA();
  const std::string data = test::data_folder();
  const auto golden = test::read_tensors(data + "/goldens/real-stories260K/logits.safetensors");
  const Tensor ids = golden.at("prompt0.ids").view({1, -1});
  for (const int tp : {1, 2, 4}) {
    run_ranks(tp, [&](World& world) {
      const Mesh mesh = Mesh::build(world, {{"tp", tp}});
      for (const char* folder : {"/models/stories260K-meta", "/models/stories260K"}) {
        const Tensor logits = logits_of(data + folder, mesh["tp"], ids);
        EXPECT_LE(test::largest_difference(logits.view({ids.size(1), -1}),
                                           golden.at("prompt0.logits").view({ids.size(1), -1})),
                  5e-5)
            << folder << " tp " << tp;
      }
    });
  }
}

}  // namespace
}  // namespace cleave
