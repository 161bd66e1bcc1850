// Which tokenizer a run has, and data that its task cannot use.
#include "cleave/train/setup.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/api/world.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/file.h"
#include "cleave/train/trainer.h"
#include "tests/support/paths.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::setup_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

/// A Llama's config.json with a vocabulary for the byte tokenizer.
std::string llama_config() {
  auto config = nlohmann::json::parse(test::kLlamaConfig);
  config["vocab_size"] = 300;
  return config.dump();
}

class Setup : public testing::Test {
 protected:
  Setup() {
    const std::string config = llama_config();
    test::write_model_folder(folder_ / "m", config, test::tensors_of(config));
    std::ofstream(folder_ / "sizes.json") << config;
    std::ofstream(folder_ / "text.txt") << std::string(200, 'a');
    std::ofstream(folder_ / "rows.jsonl") << "{\"input_ids\": [1, 2, 3, 4]}\n";
    std::ofstream(folder_ / "chats.jsonl") << R"({"messages": [{"role": "user", "content": "a"},)"
                                           << R"( {"role": "assistant", "content": "b"}]})" << '\n';
    std::ofstream(folder_ / "table.csv") << "text,label\n\"a fine film\",1\n\"a dull film\",0\n";
  }

  [[nodiscard]] TrainOptions options(const std::string& model, const std::string& data) const {
    TrainOptions o;
    o.model = folder_ / model;
    o.data = {folder_ / data};
    o.out = folder_ / "out";
    o.seq_len = 8;
    o.batch_size = 1;
    o.steps = 1;
    return o;
  }

  TempFolder folder_;
};

TEST_F(Setup, JitterOfARouter_IsRefusedByName) {
  auto config = nlohmann::json::parse(llama_config());
  config.update({{"model_type", "mixtral"}, {"router_jitter_noise", 0.1}});
  std::ofstream(folder_ / "experts.json") << config;
  const Error error = thrown_by([&] { make_setup(options("experts.json", "text.txt"), 0); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("\"router_jitter_noise\" is 0.1"));
}

TEST_F(Setup, TextForWeightsWithoutATokenizer_IsRefusedWithTheFlag) {
  const Error error = thrown_by([&] { make_setup(options("m", "text.txt"), 0); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(),
              HasSubstr("text.txt is text, which needs a tokenizer; the model has none, so give "
                        "one with --tokenizer DIR or --tokenizer bytes"));
}

TEST_F(Setup, WeightsWithoutATokenizer_TrainOnIdsOrOnBytesByRequest) {
  EXPECT_EQ(make_setup(options("m", "rows.jsonl"), 0).tokenizer, nullptr);
  TrainOptions bytes = options("m", "text.txt");
  bytes.tokenizer = "bytes";
  EXPECT_EQ(make_setup(bytes, 0).tokenizer->kind(), "bytes");
}

// Gemma 3's tokenizer has an id for images that is no row of its embedding.
TEST_F(Setup, TokenizerOfTheModelsFolder_MayHaveMoreIds) {
  const std::string source = test::source_file("tests/golden/tokenizer/small/llama3");
  auto config = nlohmann::json::parse(test::kLlamaConfig);
  const int64_t size = load_tokenizer(source)->vocab_size();
  config["vocab_size"] = size;
  const std::string text = config.dump();
  test::write_model_folder(folder_ / "own", text, test::tensors_of(text));
  test::write_model_folder(folder_ / "bare", text, test::tensors_of(text));
  auto tokenizer = nlohmann::json::parse(read_file(source + "/tokenizer.json"));
  tokenizer["added_tokens"].push_back({{"id", size}, {"content", "<image>"}, {"special", true}});
  std::ofstream(folder_ / "own/tokenizer.json") << tokenizer;
  TrainOptions named = options("own", "text.txt");
  EXPECT_GT(make_setup(named, 0).data->size(), 0);
  // Also if the flag names it, and of another folder with the same files, as a checkpoint is.
  std::filesystem::create_directories(folder_ / "copy");
  std::ofstream(folder_ / "copy/tokenizer.json") << tokenizer;
  named.tokenizer = folder_ / "copy";
  EXPECT_GT(make_setup(named, 0).data->size(), 0);
  TrainOptions given = options("bare", "text.txt");
  given.tokenizer = folder_ / "own";
  const Error error = thrown_by([&] { make_setup(given, 0); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_THAT(error.what(), HasSubstr("more than the model's vocab_size="));
}

// Oracle: `eval`, which refuses them too. Rotary positions of type dynamic would change there.
TEST_F(Setup, RowsLongerThanThePositions_AreRefused) {
  constexpr size_t kPositions = 64;
  const auto rows = [&](const std::string& name, size_t length) {
    std::ofstream(folder_ / name) << nlohmann::json{{"input_ids", std::vector<int>(length, 3)}};
  };
  rows("most.jsonl", kPositions);
  rows("more.jsonl", kPositions + 1);
  (void)make_setup(options("m", "most.jsonl"), 0);
  TrainOptions evaluates = options("m", "rows.jsonl");
  evaluates.eval_data = {folder_ / "more.jsonl"};
  for (const auto& [o, flag] :
       {std::pair(options("m", "more.jsonl"), "--data"), std::pair(evaluates, "--eval-data")}) {
    const Error error = thrown_by([&, wanted = o] { make_setup(wanted, 0); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_THAT(error.what(),
                HasSubstr(str(flag, " has a sequence of 65 ids; the model has 64 positions")));
  }
}

// The model of `m` has 64 positions; rows of ids have their own length.
TEST_F(Setup, WithoutSeqLen_ModelOfFewPositionsTakesAsManyTokens) {
  TrainOptions o = options("m", "rows.jsonl");
  o.seq_len = 0;
  EXPECT_EQ(make_setup(o, 0).data->sample(0).ids.size(), 4U);
  o = options("sizes.json", "text.txt");
  o.seq_len = 0;
  EXPECT_EQ(make_setup(o, 0).data->sample(0).ids.size(), 64U);
  o.model = "llama-tiny";  // of more positions than the default
  o.data = {test::source_file("LICENSE")};
  EXPECT_EQ(make_setup(o, 0).data->sample(0).ids.size(), 256U);
  o.seq_len = 65;
  o.model = folder_ / "sizes.json";
  EXPECT_THAT(thrown_by([&] { make_setup(o, 0); }).what(), HasSubstr("; choose up to 64"));
}

// As a run with --keep-last does with an old checkpoint that another run starts from.
TEST_F(Setup, ModelThatIsRemovedBeforeItsWeightsAreRead_IsNamedInTheError) {
  const TrainSetup setup = make_setup(options("m", "rows.jsonl"), 0);
  std::filesystem::remove_all(folder_ / "m");
  const Error error =
      thrown_by([&] { run_ranks(1, [&](World& world) { (void)Trainer(setup, world).run(); }); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(),
              HasSubstr((folder_ / "m").string() + " was removed while it was read, as a run"));
}

TEST_F(Setup, ModelThatIsRemovedWhileDataIsRead_IsNamedInTheError) {
  TrainOptions o = options("m", "text.txt");
  o.tokenizer = "bytes";
  const ScopedFileHook hook([&](FileCall /*call*/, const std::string& path) {
    if (!path.ends_with(".tokens.partial")) return 0;
    std::filesystem::remove_all(folder_ / "m");
    return EIO;
  });
  const Error error = thrown_by([&] { cleave_train(o); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(),
              HasSubstr((folder_ / "m").string() + " was removed while it was read, as a run"));
}

TEST_F(Setup, NewModels_ReadBytes) {
  EXPECT_EQ(make_setup(options("sizes.json", "text.txt"), 0).tokenizer->kind(), "bytes");
  TrainOptions preset = options("m", "text.txt");
  preset.model = "llama-tiny";
  EXPECT_EQ(make_setup(preset, 0).tokenizer->kind(), "bytes");
}

TEST_F(Setup, SizesWithFewerIdsThanTheTokenizer_AreRefusedByTheNameOfTheFile) {
  auto config = nlohmann::json::parse(llama_config());
  config["vocab_size"] = 100;
  const std::string path = folder_ / "few.json";
  std::ofstream(path) << config.dump();
  for (const char* data : {"text.txt", "rows.jsonl"}) {
    const Error error = thrown_by([&, data] { make_setup(options("few.json", data), 0); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_EQ(error.what(), path +
                                ": vocab_size is 100, and the tokenizer (bytes) has 257 ids; "
                                "leave vocab_size out, or raise it");
  }
}

// The default padding id of the family, 1, would keep a byte's row of the embedding at zero.
TEST_F(Setup, NewModelWithoutPaddingToken_HasNone) {
  auto config = nlohmann::json::parse(llama_config());
  config["model_type"] = "olmo2";
  config.erase("pad_token_id");
  std::ofstream(folder_ / "olmo2.json") << config.dump();
  const TrainSetup setup = make_setup(options("olmo2.json", "text.txt"), 0);
  EXPECT_EQ(make_model(setup.config)->facts().pad_id, std::nullopt);
}

// The first position of RoBERTa is that after the padding id, by default 1.
TEST_F(Setup, NewRobertaWithoutPaddingToken_HasTheDefaultOne) {
  std::ofstream(folder_ / "roberta.json")
      << R"({"architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "hidden_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
        "max_position_embeddings": 34})";
  TrainOptions o = options("roberta.json", "rows.jsonl");
  std::ofstream(folder_ / "rows.jsonl") << R"({"input_ids": [5, 6], "labels": [5, -100]})"
                                        << "\n";
  const TrainSetup setup = make_setup(o, 0);
  EXPECT_EQ(make_model(setup.config)->facts().pad_id, 1);
  EXPECT_EQ(make_model(setup.config)->facts().max_positions, 32);
}

// A run folder as --tokenizer means its newest checkpoint.
TEST_F(Setup, TokenizerOfARunFolder_IsThatOfItsNewestCheckpoint) {
  std::filesystem::create_directories(folder_ / "run/step_00000001");
  std::ofstream(folder_ / "run/latest") << "step_00000001\n";
  for (const NamedFile& file : byte_tokenizer_files()) {
    std::ofstream(folder_ / ("run/step_00000001/" + file.name)) << file.text;
  }
  TrainOptions o = options("m", "text.txt");
  o.tokenizer = folder_ / "run";
  EXPECT_EQ(make_setup(o, 0).tokenizer_folder, folder_ / "run/step_00000001");
}

TEST_F(Setup, Chats_NeedATokenizerAndATemplate) {
  TrainOptions o = options("m", "chats.jsonl");
  o.seq_len = 64;
  o.chat_template = "chatml";
  const Error error = thrown_by([&] { make_setup(o, 0); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("chats.jsonl holds conversations, which need a tokenizer"));
  o.tokenizer = "bytes";
  const Sample sample = make_setup(o, 0).data->sample(0);
  const std::string text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
  EXPECT_EQ(sample.ids.size(), std::min<size_t>(text.size(), 64));
  EXPECT_EQ(sample.ids[17], 'a');
  o.chat_template.clear();
  EXPECT_THAT(thrown_by([&] { make_setup(o, 0); }).what(), HasSubstr("has no chat template"));
}

TEST_F(Setup, Packing_IsForTheTextsOfLanguageModels) {
  std::ofstream(folder_ / "rows.jsonl") << "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5]}\n"
                                        << "{\"input_ids\": [6, 7, 8, 9]}\n";
  TrainOptions o = options("m", "rows.jsonl");
  o.shuffle = false;
  EXPECT_EQ(make_setup(o, 0).data->size(), 3);
  o.packing = true;
  o.eval_data = o.data;
  const TrainSetup packed = make_setup(o, 0);
  EXPECT_EQ(packed.data->size(), 2);  // 3 + 2 and 4 of 8 tokens
  EXPECT_EQ(packed.data->sample(0).positions, (std::vector<int64_t>{0, 1, 2, 0, 1}));
  EXPECT_EQ(packed.eval_data->size(), 2);
  EXPECT_EQ(packed.order.num_samples, 2);
  o.tokenizer = "bytes";
  o.eval_data = {folder_ / "text.txt"};
  // A document of 200 characters and the end id: 200 targets, 7 in each sequence of 8 tokens.
  EXPECT_EQ(make_setup(o, 0).eval_data->size(), 29);
  o.data = {folder_ / "text.txt"};
  EXPECT_FALSE(make_setup(o, 0).fills_sequences);
  o.packing = false;
  EXPECT_TRUE(make_setup(o, 0).fills_sequences);
  o.packing = true;
  o.data = {folder_ / "rows.jsonl"};
  o.model = "bert-tiny";
  const Error bert = thrown_by([&] { make_setup(o, 0); });
  EXPECT_EQ(bert.code(), Code::kUsage);
  EXPECT_THAT(bert.what(), HasSubstr("--packing needs task lm"));
  EXPECT_THAT(bert.what(), HasSubstr("this run is for task mlm; leave out --packing"));
}

TEST_F(Setup, WeightsOfFiles_AreDividedFromTheirNames) {
  const std::string text = folder_ / "text.txt", chats = folder_ / "chats.jsonl";
  TrainOptions o = options("sizes.json", "text.txt");
  o.data = {text + ":1", chats + ":3"};
  o.chat_template = "chatml";
  o.seq_len = 64;
  const TrainSetup mixed = make_setup(o, 0);
  EXPECT_EQ(mixed.options.data, (std::vector{text, chats}));
  EXPECT_EQ(mixed.weights, (std::vector<double>{1, 3}));
  ASSERT_NE(mixed.order.mix, nullptr);
  EXPECT_EQ(mixed.data->size(), 200 / 64 + 1);
  EXPECT_FALSE(mixed.fills_sequences);  // the chat is shorter
  o.data = {text + ":1", text + ":2"};
  EXPECT_TRUE(make_setup(o, 0).fills_sequences);
}

TEST_F(Setup, TemplateThatDoesNotParse_IsOnlyReadForChats) {
  const std::string folder = folder_ / "tokenizer";
  std::filesystem::create_directories(folder);
  for (const NamedFile& file : byte_tokenizer_files()) {
    std::ofstream(folder + "/" + file.name) << file.text;
  }
  std::ofstream(folder + "/chat_template.jinja") << "{% include 'a' %}";
  TrainOptions o = options("m", "text.txt");
  o.tokenizer = folder;
  const TrainSetup setup = make_setup(o, 0);
  EXPECT_EQ(setup.chat_template, nullptr);
  EXPECT_EQ(setup.tokenizer->kind(), "bytes");  // a template changes no token
  EXPECT_EQ(setup.tokenizer->fingerprint(), byte_tokenizer()->fingerprint());
  o.eval_data = {folder_ / "chats.jsonl"};
  EXPECT_THAT(thrown_by([&] { make_setup(o, 0); }).what(), HasSubstr("{% include %} is unknown"));
}

// Oracle: the files of the tokenizer's folder. transformers keeps all templates but one in a
// folder.
TEST_F(Setup, FolderOfChatTemplates_IsInTheCheckpointsAndInTheRun) {
  const std::filesystem::path folder = folder_ / "tokenizer";
  const std::string name = "additional_chat_templates/tool_use.jinja";
  std::filesystem::create_directories(folder / "additional_chat_templates");
  for (const NamedFile& file : byte_tokenizer_files()) {
    std::ofstream(folder / file.name) << file.text;
  }
  std::ofstream(folder / name) << "a template";
  TrainOptions o = options("sizes.json", "text.txt");
  o.tokenizer = folder;
  cleave_train(o);
  EXPECT_EQ(read_file(folder_ / "out" / name), "a template");  // a link
  std::filesystem::remove_all(folder);
  o.tokenizer.clear();
  o.resume = true;
  o.steps = 2;
  cleave_train(o);
  EXPECT_EQ(read_file(folder_ / "out/step_00000002" / name), "a template");
}

// Otherwise conversations with tools would be evaluated with another template than in training.
TEST_F(Setup, GivenChatTemplate_ReplacesThoseOfTheFolder) {
  const std::filesystem::path folder = folder_ / "tokenizer";
  std::filesystem::create_directories(folder / "additional_chat_templates");
  for (const NamedFile& file : byte_tokenizer_files()) {
    std::ofstream(folder / file.name) << file.text;
  }
  std::ofstream(folder / "additional_chat_templates/tool_use.jinja") << "a template";
  TrainOptions o = options("sizes.json", "text.txt");
  o.tokenizer = folder;
  o.chat_template = "chatml";
  cleave_train(o);
  EXPECT_EQ(read_file(folder_ / "out/chat_template.jinja"), kChatMl);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/additional_chat_templates"));
}

TEST_F(Setup, ResumeWithoutLatestAndWithADamagedNewestCheckpoint_IsRefused) {
  for (const char* step : {"out/step_00000001", "out/step_00000002"}) {
    std::filesystem::create_directories(folder_ / step);
    std::ofstream(folder_ / (std::string(step) + "/manifest.json")) << "damaged";
  }
  TrainOptions o = options("sizes.json", "text.txt");
  o.resume = true;
  const Error error = thrown_by([&] { make_setup(o, 0); });
  EXPECT_EQ(error.code(), Code::kFormat);
  std::filesystem::remove_all(folder_ / "out/step_00000002");
  const Error only = thrown_by([&] { make_setup(o, 0); });
  EXPECT_EQ(only.code(), Code::kFormat);
  EXPECT_EQ(std::string(only.what()),
            (folder_ / "out/step_00000001").string() +
                ", the only checkpoint, is damaged; restore it, or start again in another folder");
  EXPECT_THAT(error.what(), HasSubstr("has checkpoints and no file `latest`, and the newest is "
                                      "damaged; write the name of an intact one into"));
}

// The second row would be refused when it is read.
TEST_F(Setup, WeightsThatDoNotFitIntoMemory_AreRefusedBeforeTheDataIsRead) {
  auto config = nlohmann::json::parse(llama_config());
  config["hidden_size"] = 1 << 19;
  config["intermediate_size"] = 1 << 20;  // 2 layers with 6 TB of weights each
  std::ofstream(folder_ / "huge.json") << config.dump();
  std::ofstream(folder_ / "rows.jsonl") << "{\"input_ids\": [1, 2]}\n{\"input_ids\": 1}\n";
  EXPECT_EQ(thrown_by([&] { make_setup(options("sizes.json", "rows.jsonl"), 0); }).code(),
            Code::kFormat);
  EXPECT_EQ(thrown_by([&] { make_setup(options("huge.json", "rows.jsonl"), 0); }).code(),
            Code::kMemory);
}

// The classes are those of the data, whose second row has no label.
TEST_F(Setup, NewClassifierThatDoesNotFitIntoMemory_IsRefusedBeforeItsClassesAreRead) {
  auto config = nlohmann::json::parse(test::kBertConfig);
  config["vocab_size"] = 300;
  std::ofstream(folder_ / "small.json") << config.dump();
  config["num_attention_heads"] = 8;
  config["hidden_size"] = 1 << 19;
  config["intermediate_size"] = 1 << 20;
  std::ofstream(folder_ / "huge.json") << config.dump();
  std::ofstream(folder_ / "rows.jsonl") << "{\"input_ids\": [1, 2], \"label\": 0}\n"
                                        << "{\"input_ids\": [1]}\n";
  const auto code_of = [&](const std::string& model) {
    TrainOptions o = options(model, "rows.jsonl");
    o.task = "classify";
    return thrown_by([&] { make_setup(o, 0); }).code();
  };
  EXPECT_EQ(code_of("small.json"), Code::kFormat);
  EXPECT_EQ(code_of("huge.json"), Code::kMemory);
}

TEST_F(Setup, NewClassifier_HasTheClassesOfTheDataAlone) {
  auto config = nlohmann::json::parse(test::kBertConfig);
  config["vocab_size"] = 300;
  std::ofstream(folder_ / "small.json") << config.dump();
  TrainOptions o = options("small.json", "table.csv");
  o.task = "classify";
  o.dtype = "bf16";
  const TrainSetup setup = make_setup(o, 0);
  EXPECT_EQ(make_model(setup.config)->facts().labels,
            (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(setup.config.string_or("torch_dtype", setup.config.string_or("dtype", "")), "bfloat16");
  EXPECT_FALSE(setup.changes_task);
}

TEST_F(Setup, ChatsWithOtherFiles_AreRefusedByNameInAnyOrder) {
  TrainOptions o = options("sizes.json", "text.txt");
  const std::string text = folder_ / "text.txt", chats = folder_ / "chats.jsonl";
  for (const auto& files : {std::vector{text, chats}, std::vector{chats, text}}) {
    o.data = files;
    const Error error = thrown_by([&] { make_setup(o, 0); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_EQ(error.what(), str(chats, " holds conversations, ", text,
                                " does not; to train on both, give each a weight (FILE:WEIGHT); "
                                "otherwise use one command for each"));
  }
}

// Text gets masks, rows have labels: whatever the other data are.
TEST_F(Setup, EvaluationDataOfAnotherKind_AreMaskedByTheirOwn) {
  const std::string text = test::source_file("README.md");
  const std::string rows = folder_ / "labelled.jsonl";
  std::ofstream(rows) << R"({"input_ids": [5, 6, 7], "labels": [-100, 9, -100]})";
  TrainOptions o;
  o.model = "bert-tiny";
  o.tokenizer = test::source_file("tests/golden/tokenizer/small/bert");
  o.out = folder_ / "mixed";
  o.seq_len = 16;
  for (const bool trains_text : {true, false}) {
    o.data = {trains_text ? text : rows};
    o.eval_data = {trains_text ? rows : text};
    const TrainSetup setup = make_setup(o, 0);
    EXPECT_EQ(setup.batches.masking.has_value(), trains_text);
    EXPECT_EQ(setup.eval_batches.masking.has_value(), !trains_text);
  }
}

TEST_F(Setup, TableForALanguageModel_IsRefusedWithTheRemedy) {
  const Error lm = thrown_by([&] { make_setup(options("sizes.json", "table.csv"), 0); });
  EXPECT_EQ(lm.code(), Code::kUsage);
  EXPECT_THAT(lm.what(), HasSubstr("table.csv is a table, which task lm would read as plain text; "
                                   "train with --task classify, multilabel or regression to learn "
                                   "its labels, or put its texts into JSONL with \"text\""));
  TrainOptions o = options("m", "table.csv");
  o.model = "bert-tiny";
  const Error mlm = thrown_by([&] { make_setup(o, 0); });
  EXPECT_EQ(mlm.code(), Code::kUsage);
  EXPECT_THAT(
      mlm.what(),
      HasSubstr("task mlm would read as plain text; train with --task classify, "
                "multilabel or regression to learn its labels, or put its texts into JSONL"));
  o.task = "classify";
  EXPECT_EQ(make_setup(o, 0).data->sample(0).label, 1);
}

}  // namespace
}  // namespace cleave::setup_test
