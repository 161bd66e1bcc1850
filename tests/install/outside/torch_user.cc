#include <iostream>

#include "cleave/cleave.h"
#include "cleave/compat/notebook.h"
#include "cleave/compat/nxd.h"
#include "cleave/compat/nxd_checkpoint.h"
#include "cleave/compat/nxd_pipeline.h"
#include "cleave/compat/oslo.h"

int main() {
  cleave::run_ranks(2, [](cleave::World& world) {
    const auto mesh = cleave::Mesh::build(world, {{"tp", 2}});
    const at::Tensor sum = mesh["tp"].all_reduce(at::full({1}, world.rank() + 1.0), "outside");
    if (world.rank() == 0) std::cout << "sum over 2 ranks: " << sum.item<float>() << "\n";
  });
}
