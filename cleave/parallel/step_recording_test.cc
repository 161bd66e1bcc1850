#include "cleave/parallel/step_recording.h"

#include <fstream>
#include <map>
#include <optional>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/cleave.h"
#include "tests/support/ranks.h"
#include "tests/support/recorded_step.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

// A training loop of a user's own, as docs/library.md shows it, on two tensor-parallel ranks.
namespace cleave::step_recording_test {
namespace {

using json = nlohmann::json;
using test::events_of;
using test::TempFolder;

constexpr int kRanks = 2, kSteps = 3, kRecorded = 2;
constexpr int64_t kRows = 3, kTokens = 5, kWidth = 8, kInner = 12;

const MlpOptions kOptions{.hidden = kWidth,
                          .intermediate = kInner,
                          .init = Init::normal(0.5),
                          .out_init = Init::normal(0.5)};

class TwoMlps : public Layer {
 public:
  TwoMlps() : first_(kOptions), second_(kOptions) {
    add("first", first_);
    add("second", second_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    return second_(first_(x, context), context);
  }

 private:
  Mlp first_, second_;
};

/// The losses of the steps. With a folder, step kRecorded is recorded into it.
std::vector<double> train(World& world, const std::filesystem::path& folder) {
  const Mesh mesh = Mesh::build(world, {{"tp", world.size()}});
  const Axis& tp = mesh["tp"];
  TwoMlps model;
  model.name_tree();
  parallelize_module(model, tp, {{"*.{gate_proj,up_proj}", Colwise{}}, {"*.down_proj", Rowwise{}}});
  materialize(model, {.seed = 1});
  Optimizer optimizer(model.parameters(), {});
  std::vector<double> losses;
  for (int step = 1; step <= kSteps; ++step) {
    std::optional<StepRecording> recording;
    if (step == kRecorded && !folder.empty()) {
      recording.emplace(StepRecording::Subject{
          .mesh = mesh, .everyone = tp, .parameters = model.parameters(), .optimizer = &optimizer});
    }
    const Tensor x = recorded("data", [] {
      return test::numbers({kRows, kTokens, kWidth}, 7).to(at::kFloat).requires_grad_();
    });
    const Tensor loss =
        model(DTensor(x, tp, Replicate{}), Context()).local().sub(1).square().mean();
    loss.backward();
    finish_gradients(model.parameters(), tp);
    optimizer.step(0.01);
    losses.push_back(loss.item<double>());
    if (recording) {
      recording->write(folder, {.title = "two MLPs", .metrics = {.step = kRecorded}});
    }
    optimizer.zero_grad();
  }
  return losses;
}

/// The losses of rank 0 with and without a recording.
std::vector<double> losses_of_run(const std::filesystem::path& folder) {
  std::vector<double> losses;
  test::on_world(kRanks, [&](World& world) {
    const std::vector<double> own = train(world, folder);
    if (world.rank() == 0) losses = own;
  });
  return losses;
}

TEST(StepRecording, OwnLoop_HasTheSameLossesAsWithoutARecording) {
  const TempFolder folder;
  const std::vector<double> wanted = losses_of_run({});
  EXPECT_LT(wanted.back(), wanted.front());
  EXPECT_EQ(losses_of_run(folder / "page"), wanted);
}

// Oracle: Megatron's count. An MLP sums its output once in forward, and the gradient of its input
// once in backward.
TEST(StepRecording, OwnLoop_BytesOfItsSumsAreTheClosedForm) {
  const TempFolder folder;
  losses_of_run(folder.path());
  const json trace = test::trace_of(folder.path());
  constexpr int64_t kBytes = kRows * kTokens * kWidth * static_cast<int64_t>(sizeof(float));
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<json> calls = events_of(trace, "collective", rank);
    EXPECT_EQ(calls.size(), 4U);
    for (const json& call : calls) {
      EXPECT_EQ(call.at("args").at("op"), "all_reduce");
      EXPECT_EQ(call.at("args").at("bytes"), kBytes) << call;
    }
    const json sums = test::rank_summary(trace, rank).at("traffic");
    EXPECT_EQ(sums.at("tp").at("calls"), 4);
    EXPECT_EQ(sums.at("tp").at("sent"), 4 * kBytes);  // 2 b (n - 1) / n of b bytes
  }
  EXPECT_EQ(test::unpaired_collectives(trace), std::set<std::string>());
}

TEST(StepRecording, OwnLoop_EveryRankHasLayersPhasesAndTheOptimizer) {
  const TempFolder folder;
  losses_of_run(folder.path());
  const json trace = test::trace_of(folder.path());
  for (int rank = 0; rank < kRanks; ++rank) {
    std::map<std::string, std::set<std::string>> names;
    for (const char* kind : {"phase", "forward", "backward", "optimizer"}) {
      for (const json& e : events_of(trace, kind, rank)) names[kind].insert(e.at("name"));
    }
    EXPECT_EQ(names["phase"], std::set<std::string>{"data"});
    EXPECT_EQ(names["optimizer"], std::set<std::string>{"optimizer step"});
    for (const char* layer : {"first.gate_proj", "first.down_proj", "second.up_proj"}) {
      EXPECT_TRUE(names["forward"].contains(layer)) << layer;
      EXPECT_TRUE(names["backward"].contains(layer)) << layer;
    }
  }
  EXPECT_EQ(trace.at("otherData").at("replay").at("step"), kRecorded);
}

// Oracle: each rank has half of six matrices, and AdamW two moments of each.
TEST(StepRecording, OwnLoop_MemoryAndRangesAreThoseOfTheShards) {
  const TempFolder folder;
  losses_of_run(folder.path());
  const json trace = test::trace_of(folder.path());
  constexpr int64_t kShards = 6 * kWidth * kInner / kRanks * static_cast<int64_t>(sizeof(float));
  size_t num_samples = 0;
  for (const json& e : trace.at("traceEvents")) {
    if (e.at("ph") != "C") continue;
    ++num_samples;
    EXPECT_EQ(e.at("args").at("weights"), kShards);
    EXPECT_EQ(e.at("args").at("optimizer"), 2 * kShards);
    EXPECT_LE(e.at("args").at("gradients"), kShards);
  }
  EXPECT_GE(num_samples, static_cast<size_t>(kRanks));
  for (int rank = 0; rank < kRanks; ++rank) {
    const json weights = test::rank_summary(trace, rank).at("weights");
    ASSERT_EQ(weights.size(), 6U);
    for (const json& w : weights) {  // [index, dim, ranges, ...]
      constexpr int64_t kHalf = kInner / kRanks;
      EXPECT_EQ(w.at(2), json::array({{rank * kHalf, (rank + 1) * kHalf}})) << w;
    }
  }
}

StepRecording::Subject on_one_rank() {
  const Mesh mesh = Mesh::single({"tp"});
  return {.mesh = mesh, .everyone = mesh["tp"], .parameters = {}};
}

TEST(StepRecording, AxisOfSomeRanks_IsRefused) {
  test::on_world(kRanks, [](World& world) {
    const Mesh mesh = Mesh::build(world, {{"dp", 1}, {"tp", kRanks}});
    const Error error = test::thrown_by(
        [&] { StepRecording({.mesh = mesh, .everyone = mesh["dp"], .parameters = {}}); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_STREQ(error.what(),
                 "a recording needs an axis of all ranks; the mesh dp=1 x tp=2 has 2 and axis dp "
                 "has 1; make one with Mesh::flatten()");
  });
}

TEST(StepRecording, SecondOneOnAThread_IsRefused) {
  const StepRecording first(on_one_rank());
  const Error error = test::thrown_by([] { const StepRecording second(on_one_rank()); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_STREQ(error.what(),
               "a second recording begins on a thread that records a step; end() the first one");
}

TEST(StepRecording, SecondWrite_IsRefused) {
  const TempFolder folder;
  StepRecording recording(on_one_rank());
  recording.write(folder.path(), {});
  const Error error = test::thrown_by([&] { recording.write(folder.path(), {}); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_STREQ(error.what(), "write() of a recording was called twice");
}

TEST(StepRecording, EndInsideAPhase_IsRefused) {
  StepRecording recording(on_one_rank());
  const Error error = test::thrown_by([&] { recorded("data", [&] { recording.end(); }); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_STREQ(error.what(),
               "a recording of a step ends inside one of its layers or phases; end it after them");
}

TEST(StepRecording, FolderThatCannotBeMade_IsAnErrorWithItsPath) {
  const TempFolder folder;
  std::ofstream(folder / "file") << "text";
  StepRecording recording(on_one_rank());
  const Error error = test::thrown_by([&] { recording.write(folder / "file" / "page", {}); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_EQ(error.what(), (folder / "file" / "page").string() + ": Not a directory");
}

}  // namespace
}  // namespace cleave::step_recording_test
