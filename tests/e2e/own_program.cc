// A user's program for own_program_test: its main catches nothing.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

#include "cleave/base/error.h"
#include "cleave/comm/launch/failure.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"

namespace {

void work(cleave::World& world, const std::string& what) {
  std::printf("rank %d works\n", world.rank());
  const cleave::Mesh mesh = cleave::Mesh::build(world, {{"dp", world.size()}});
  mesh["dp"].barrier("start");
  if (world.rank() == 1 && what == "error") {
    throw cleave::Error(cleave::Code::kNumerics, "the loss is nan");
  }
  if (world.rank() == 1 && what == "exception") throw std::runtime_error("no more rows");
  if (world.rank() == 1 && what == "thread") {
    std::thread([] { throw cleave::Error(cleave::Code::kIo, "the reader stopped"); }).join();
  }
  mesh["dp"].barrier("end");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "flag") {
    return cleave::run_main(
        []() -> int { throw cleave::Error(cleave::Code::kUsage, "--rows has no value"); });
  }
  cleave::run_job(2, [&](cleave::World& world) { work(world, what == "second" ? "" : what); });
  if (what == "twice") cleave::run_job(2, [&](cleave::World& world) { work(world, what); });
  if (what == "second") cleave::run_job(2, [&](cleave::World& world) { work(world, "error"); });
}
