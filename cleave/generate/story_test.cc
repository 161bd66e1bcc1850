#include <fstream>

#include <gtest/gtest.h>

#include "cleave/data/dataset.h"
#include "cleave/generate/evaluate.h"
#include "cleave/generate/generate.h"
#include "cleave/generate/printer.h"
#include "cleave/generate/runnable.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

// Oracle: transformers 5 on the same trained model: stories of 96 ids, losses of windows of a text.
namespace cleave::story_test {
namespace {

Ids ids_of(const Json& json) {
  Ids out;
  for (size_t i = 0; i < json.size(); ++i) out.push_back(json.at(i).as_int());
  return out;
}

struct StoryCase {
  std::string model;
  int tp;
};

class RealStory : public ::testing::TestWithParam<StoryCase> {
 protected:
  void SetUp() override {
    CLEAVE_NEEDS_DATA();
    folder_ = test::data_folder() + "/models/" + GetParam().model;
    golden_.emplace(Json::parse_file(test::data_folder() + "/goldens/real-" + GetParam().model +
                                     "/generate.json"));
  }

  void on_ranks(const std::function<void(Model&, const Axis&)>& body) {
    const Runnable runnable(folder_, "", "cpu");
    test::on_ranks(GetParam().tp, [&](const Axis& tp) {
      const auto model = runnable.load(tp);
      body(*model, tp);
    });
  }

  [[nodiscard]] GenerateSettings settings(int64_t num_beams) const {
    return {.max_new_tokens = golden_->at("max_new_tokens").as_int(),
            .num_beams = num_beams,
            .eos_ids = ids_of(golden_->at("eos_token_ids"))};
  }

  /// Expects all stories, generated as one batch of prompts of unequal length.
  void expect_stories(int64_t num_beams, const std::string& key) {
    const Json prompts = golden_->at("prompts");
    std::vector<Ids> batch;
    for (size_t p = 0; p < prompts.size(); ++p) batch.push_back(ids_of(prompts.at(p).at("ids")));
    const auto tokenizer = load_tokenizer(folder_);
    on_ranks([&](Model& model, const Axis& tp) {
      const Generation got = generate(model, tp, batch, settings(num_beams));
      for (size_t p = 0; p < prompts.size(); ++p) {
        Ids all = batch[p];
        const Ids& ids = got.prompts[p][0].ids;
        all.insert(all.end(), ids.begin(), ids.end());
        EXPECT_EQ(all, ids_of(prompts.at(p).at(key)));
        const std::string text =
            tokenizer->decode(batch[p], true) + continuation(tokenizer, batch[p], ids);
        EXPECT_EQ(text, prompts.at(p).at(key + "_text").as_string());
      }
    });
  }

  std::string folder_;
  std::optional<Json> golden_;
};

TEST_P(RealStory, Greedy_GivesTheRecordedStories) {
  expect_stories(1, "greedy");
}

TEST_P(RealStory, ThreeBeams_GiveTheRecordedStories) {
  expect_stories(3, "beam3");
}

TEST_P(RealStory, LossOfEachWindow_IsThatOfTheReference) {
  const test::TempFolder folder;
  const Ids ids = ids_of(golden_->at("text_ids"));
  const auto window = static_cast<size_t>(golden_->at("window").as_int());
  const Json want = golden_->at("window_mean_loss");
  for (size_t w = 0; w < want.size(); ++w) {
    std::ofstream file(folder / "window.jsonl");
    const char* separator = "{\"input_ids\": [";
    for (size_t i = w * window; i < std::min(ids.size(), (w + 1) * window); ++i) {
      file << separator << ids[i];
      separator = ",";
    }
    file << "]}\n";
    file.close();
    const auto data = open_dataset({.files = {(folder / "window.jsonl").string()},
                                    .tokenizer = nullptr,
                                    .seq_len = 256,
                                    .cache_folder = "",
                                    .vocab_size = load_tokenizer(folder_)->vocab_size()});
    on_ranks([&](Model& model, const Axis& tp) {
      const EvalSum got = evaluate(model, tp, *data, 4);
      EXPECT_NEAR(got.loss(), want.at(w).as_number(), 1e-5) << "window " << w;
    });
  }
}

std::vector<StoryCase> cases_of(const std::string& model) {
  return {{model, 1}, {model, 2}, {model, 4}};
}

std::string case_name(const ::testing::TestParamInfo<StoryCase>& info) {
  return str("tp", info.param.tp);
}

INSTANTIATE_TEST_SUITE_P(Llama, RealStory, ::testing::ValuesIn(cases_of("stories260K")), case_name);
INSTANTIATE_TEST_SUITE_P(Gpt2, RealStory, ::testing::ValuesIn(cases_of("gpt2-shakespeare")),
                         case_name);

}  // namespace
}  // namespace cleave::story_test
