#include "cleave/compat/parallel_state.h"

#include <numeric>
#include <optional>

namespace cleave::inline compat {
namespace {

// Ranks may be threads, so the state is per thread.
thread_local std::optional<Mesh> current;
thread_local Axis everyone;

const Mesh& mesh() {
  CLEAVE_CHECK(
      current.has_value(), Code::kUsage,
      "model parallelism is not initialised on this rank; call initialize_model_parallel first");
  return *current;
}

int source_rank(const Axis& axis) {
  return axis.ranks().front();
}

int neighbour(const Axis& axis, int step) {
  const int size = axis.size();
  return axis.ranks()[static_cast<size_t>((axis.rank() + step + size) % size)];
}

}  // namespace

void initialize_model_parallel(World& world, const ModelParallelSizes& sizes) {
  CLEAVE_CHECK(!current, Code::kUsage,
               "model parallelism is initialised already; call destroy_model_parallel first");
  const int tp = sizes.tensor_model_parallel_size;
  const int pp = sizes.pipeline_model_parallel_size;
  CLEAVE_CHECK(tp >= 1 && pp >= 1 && world.size() % (tp * pp) == 0, Code::kShape,
               "tensor_model_parallel_size=", tp, " x pipeline_model_parallel_size=", pp,
               " must divide the world size ", world.size());
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  everyone = world.size() == 1 ? Axis() : Axis(world.group(all, "world"));
  current = Mesh::build(world, {{"pp", pp}, {"dp", world.size() / (tp * pp)}, {"tp", tp}});
}

bool model_parallel_is_initialized() {
  return current.has_value();
}
void destroy_model_parallel() {
  current.reset();
  everyone = Axis();
}

const Axis& get_tensor_model_parallel_group() {
  return mesh()["tp"];
}
std::vector<std::vector<int>> get_tensor_model_parallel_group(AsList) {
  return mesh().groups("tp");
}
int get_tensor_model_parallel_size() {
  return mesh()["tp"].size();
}
int get_tensor_model_parallel_rank() {
  return mesh()["tp"].rank();
}
int get_tensor_model_parallel_src_rank() {
  return source_rank(mesh()["tp"]);
}

const Axis& get_data_parallel_group() {
  return mesh()["dp"];
}
std::vector<std::vector<int>> get_data_parallel_group(AsList) {
  return mesh().groups("dp");
}
int get_data_parallel_size() {
  return mesh()["dp"].size();
}
int get_data_parallel_rank() {
  return mesh()["dp"].rank();
}
int get_data_parallel_src_rank() {
  return source_rank(mesh()["dp"]);
}

const Axis& get_pipeline_model_parallel_group() {
  return mesh()["pp"];
}
std::vector<std::vector<int>> get_pipeline_model_parallel_group(AsList) {
  return mesh().groups("pp");
}
int get_pipeline_model_parallel_size() {
  return mesh()["pp"].size();
}
int get_pipeline_model_parallel_rank() {
  return mesh()["pp"].rank();
}
int get_pipeline_model_parallel_next_rank() {
  return neighbour(mesh()["pp"], 1);
}
int get_pipeline_model_parallel_prev_rank() {
  return neighbour(mesh()["pp"], -1);
}

const Axis& get_world_group() {
  (void)mesh();  // throws before initialize_model_parallel
  return everyone;
}

int get_tensor_parallel_size() {
  return get_tensor_model_parallel_size();
}
int get_data_parallel_world_size() {
  return get_data_parallel_size();
}
int tp_rank() {
  return get_tensor_model_parallel_rank();
}
int tp_degree() {
  return get_tensor_model_parallel_size();
}
const Axis& tp_grp() {
  return get_tensor_model_parallel_group();
}
const Axis& dp_grp() {
  return get_data_parallel_group();
}

int64_t divide(int64_t a, int64_t b) {
  CLEAVE_CHECK(b != 0 && a % b == 0, Code::kShape, a, " is not divisible by ", b);
  return a / b;
}

}  // namespace cleave::inline compat
