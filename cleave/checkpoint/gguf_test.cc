// Oracle: weights in closed form, so the contents of a GGUF file are known without a reader of its
// names; and the `gguf` package of llama.cpp's authors, if Python has it.
#include "cleave/format/gguf.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/stop.h"
#include "cleave/checkpoint/convert.h"
#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/file/file.h"
#include "cleave/model/gguf/model_config.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/parallel/plan.h"
#include "tests/support/gguf_files.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::gguf_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::changed;
using test::closed_form;
using test::kGpt2Config;
using test::kLlamaConfig;
using test::read_whole;
using test::TempFolder;
using test::tensors_of;
using test::thrown_by;
using test::write_gguf_of;
using testing::ElementsAre;
using testing::HasSubstr;

/// Rows of 256, so that all quantised types fit.
const std::string& wide_config() {
  static const std::string config = changed(kLlamaConfig, {{"hidden_size", 256},
                                                           {"intermediate_size", 512},
                                                           {"num_hidden_layers", 9},
                                                           {"num_attention_heads", 4},
                                                           {"head_dim", 64}});
  return config;
}

// The names and the order of q's rows are written here by hand: rows i and i + 2 of a head of 4 are
// rows 2i and 2i + 1 in the file.
TEST(GgufModel, LlamaFile_HasLlamaCppsNamesAndOrderOfRows) {
  const TempFolder folder;
  const Gguf file = Gguf::open(write_gguf_of(folder, kLlamaConfig));
  EXPECT_EQ(file.tensors().size(), 21U);
  const std::string layer = "model.layers.1.";
  const std::pair<std::string, std::string> same[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"},
      {"blk.1.attn_norm.weight", layer + "input_layernorm.weight"},
      {"blk.1.attn_v.weight", layer + "self_attn.v_proj.weight"},
      {"blk.1.attn_output.weight", layer + "self_attn.o_proj.weight"},
      {"blk.1.ffn_norm.weight", layer + "post_attention_layernorm.weight"},
      {"blk.1.ffn_gate.weight", layer + "mlp.gate_proj.weight"},
      {"blk.1.ffn_up.weight", layer + "mlp.up_proj.weight"},
      {"blk.1.ffn_down.weight", layer + "mlp.down_proj.weight"}};
  for (const auto& [stored, parameter] : same) {
    const Tensor values = read_whole(file, stored);
    EXPECT_TRUE(at::equal(values, closed_form(parameter, values.sizes().vec()))) << stored;
  }
  for (const auto& [stored, parameter, rows] :
       {std::tuple{"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", 24},
        {"blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight", 8}}) {
    std::vector<int64_t> order;
    for (int64_t head = 0; head < rows; head += 4) {
      order.insert(order.end(), {head, head + 2, head + 1, head + 3});
    }
    const Tensor expected =
        closed_form(parameter, {rows, 24}).index_select(0, at::tensor(order, at::kLong));
    EXPECT_TRUE(at::equal(read_whole(file, stored), expected)) << stored;
  }
}

// GPT-2's matrices are [in, out] in its own files and [out, in] in GGUF.
TEST(GgufModel, Gpt2File_HasTransposedMatrices) {
  const TempFolder folder;
  const Gguf file = Gguf::open(write_gguf_of(folder, kGpt2Config));
  const Tensor fused = closed_form("transformer.h.1.attn.c_attn.weight", {24, 72});
  EXPECT_TRUE(at::equal(read_whole(file, "blk.1.attn_qkv.weight"), fused.t()));
  const Tensor up = closed_form("transformer.h.0.mlp.c_fc.weight", {24, 20});
  EXPECT_TRUE(at::equal(read_whole(file, "blk.0.ffn_up.weight"), up.t()));
  EXPECT_TRUE(at::equal(read_whole(file, "position_embd.weight"),
                        closed_form("transformer.wpe.weight", {16, 24})));
  EXPECT_EQ(file.find("output.weight"), nullptr);
}

/// Configs of every family and variant that is written.
std::vector<std::string> configs() {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 4.0},
                       {"low_freq_factor", 1.5},
                       {"high_freq_factor", 3.0},
                       {"original_max_position_embeddings", 32}};
  return {
      std::string(kLlamaConfig),
      std::string(kGpt2Config),
      changed(kLlamaConfig, {{"tie_word_embeddings", true}}),
      changed(kLlamaConfig, {{"attention_bias", true}, {"mlp_bias", true}}),
      changed(kLlamaConfig, {{"head_dim", 8}, {"eos_token_id", nullptr}}),
      changed(kLlamaConfig, {{"eos_token_id", {2, 7, 9}}}),
      changed(kLlamaConfig, {{"model_type", "qwen2"},
                             {"architectures", {"Qwen2ForCausalLM"}},
                             {"tie_word_embeddings", true}}),
      changed(kLlamaConfig,
              {{"model_type", "qwen3"}, {"architectures", {"Qwen3ForCausalLM"}}, {"head_dim", 8}}),
      changed(kLlamaConfig, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}}),
      changed(kLlamaConfig, {{"rope_scaling", llama3}, {"rope_theta", 500000.0}})};
}

class GgufFamily : public testing::TestWithParam<std::string> {};

// From a folder to a GGUF file and back: every parameter in closed form, and the same config.
TEST_P(GgufFamily, FileAndBack_IsTheSameModel) {
  const TempFolder folder;
  const fs::path file = write_gguf_of(folder, GetParam());
  convert({.from = file.string(), .to = (folder / "back").string()});
  test::expect_file_is_whole(folder / "back/model.safetensors", tensors_of(GetParam()).size());
  const Json was = Json::parse(GetParam(), "config.json");
  const Json is = Json::parse_file((folder / "back/config.json").string());
  for (const char* key : {"model_type",
                          "vocab_size",
                          "hidden_size",
                          "intermediate_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "num_key_value_heads",
                          "head_dim",
                          "max_position_embeddings",
                          "rms_norm_eps",
                          "tie_word_embeddings",
                          "rope_theta",
                          "rope_scaling",
                          "attention_bias",
                          "mlp_bias",
                          "bos_token_id",
                          "eos_token_id",
                          "n_embd",
                          "n_inner",
                          "n_head",
                          "n_layer",
                          "n_positions",
                          "torch_dtype"}) {
    if (was.has(key)) {
      EXPECT_EQ(json::parse(is.at(key).dump()), json::parse(was.at(key).dump())) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, GgufFamily, testing::ValuesIn(configs()),
                         [](const auto& of) { return str(of.index); });

// transformers: LlamaConfig and MistralConfig end texts with id 2 unless config.json says
// otherwise.
TEST(GgufModel, EndTokenThatConfigJsonLeavesOut_IsTheFamilys) {
  for (const char* family : {"llama", "mistral"}) {
    json config = json::parse(kLlamaConfig);
    config.erase("eos_token_id");
    config["model_type"] = family;
    const TempFolder folder;
    const Gguf file = Gguf::open(write_gguf_of(folder, config.dump()));
    EXPECT_EQ(file.metadata().int_at("tokenizer.ggml.eos_token_id"), 2) << family;
  }
}

// As in Qwen2.5-Instruct: config.json has the end of a turn, generation_config.json also that of a
// text.
TEST(GgufModel, EndTokensOfTheGenerationConfig_AreWritten) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", kLlamaConfig, test::tensors_of(kLlamaConfig));
  std::ofstream(folder / "model/generation_config.json") << R"({"eos_token_id": [5, 3]})";
  const Gguf file = Gguf::open(write_gguf_of(folder, kLlamaConfig));
  EXPECT_EQ(file.metadata().int_at("tokenizer.ggml.eos_token_id"), 5);
  EXPECT_EQ(file.metadata().int_at("tokenizer.ggml.eot_token_id"), 3);
}

// Each rank's blocks of a quantised file are those of the whole tensor.
TEST(GgufModel, ShardsOfAQuantizedFile_AreThoseOfTheWhole) {
  const TempFolder folder;
  const std::string path = write_gguf_of(folder, wide_config(), "q4_k_m").string();
  const ModelFolder from = ModelFolder::open(path);
  const auto whole = open_whole_tensors(from);
  run_ranks(3, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"tp", 3}});
    const auto model = make_model(from.config);
    parallelize_module(*model, mesh["tp"], model->plan());
    load_model(*model, from, at::kFloat);
    for (const auto& p : model->parameters()) {
      EXPECT_TRUE(at::equal(p->leaf(), test::slice_of(*p, read_whole(*whole, p->name()))))
          << p->name();
    }
  });
}

// Converting it once read beyond the heads of q and k.
TEST(GgufModel, OddHeads_AreRefused) {
  for (const char value : {'\1', '\3'}) {
    const TempFolder folder;
    const fs::path path =
        write_gguf_of(folder, changed(kLlamaConfig, {{"num_key_value_heads", 6}}));
    std::ifstream in(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    for (const std::string key : {"llama.attention.key_length", "llama.attention.value_length",
                                  "llama.rope.dimension_count"}) {
      bytes[bytes.find(key) + key.size() + 4] = value;  // after the number of its type
    }
    std::ofstream(path, std::ios::binary) << bytes;
    const Error error =
        thrown_by([&] { convert({.from = path.string(), .to = (folder / "back").string()}); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), HasSubstr(str("model.gguf: heads have ", int{value},
                                            " rows; rotary positions need an even number")));
  }
}

/// The types of the tensors whose names end like this, by layer.
std::string types_of(const Gguf& file, const std::string& end) {
  std::string types;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name.ends_with(end)) types += std::string(block_of(tensor.type).name) + " ";
  }
  return types;
}

// llama.cpp's recipe for 9 layers: more bits for layers 0 (the first eighth), 7, 8 (the last), and
// every third from there: 3 and 6.
TEST(GgufModel, Q4KM_HasLlamaCppsTypes) {
  const TempFolder folder;
  const Gguf file = Gguf::open(write_gguf_of(folder, wide_config(), "q4_k_m"));
  const std::string chosen = "Q6_K Q4_K Q4_K Q6_K Q4_K Q4_K Q6_K Q6_K Q6_K ";
  EXPECT_EQ(types_of(file, "attn_v.weight"), chosen);
  EXPECT_EQ(types_of(file, "ffn_down.weight"), chosen);
  EXPECT_EQ(types_of(file, "0.attn_q.weight") + types_of(file, "0.attn_k.weight") +
                types_of(file, "0.attn_output.weight") + types_of(file, "0.ffn_up.weight") +
                types_of(file, "token_embd.weight"),
            "Q4_K Q4_K Q4_K Q4_K Q4_K ");
  EXPECT_EQ(types_of(file, "output.weight"), "Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q4_K Q6_K ");
  EXPECT_EQ(types_of(file, "0.attn_norm.weight"), "F32 ");
  EXPECT_EQ(file.metadata().int_at("general.file_type"), 15);
  EXPECT_EQ(file.metadata().int_at("general.quantization_version"), 2);
}

TEST(GgufModel, RowsThatFillNoBlock_GetAWiderType) {
  const TempFolder folder;  // rows of 24 and 20
  const Gguf small = Gguf::open(write_gguf_of(folder, kLlamaConfig, "q4_k_m"));
  EXPECT_EQ(types_of(small, "attn_v.weight"), "F16 F16 ");
  const TempFolder other;
  const std::string config = changed(kLlamaConfig, {{"hidden_size", 96}, {"head_dim", 16}});
  const Gguf middle = Gguf::open(write_gguf_of(other, config, "q4_k_m"));
  EXPECT_EQ(types_of(middle, "attn_v.weight"), "Q8_0 Q8_0 ");
  EXPECT_EQ(types_of(middle, "ffn_down.weight"), "F16 F16 ");
}

// 5 of the 21 tensors are norms in fp32. Rows of 96 fit Q8_0, but not those of 20 of ffn_down.
TEST(GgufModel, TensorsWithMoreBitsThanAskedFor_AreCounted) {
  const TempFolder folder;
  const auto num_wider = [&](const std::string& name, std::string_view config) {
    const fs::path model = folder / name;
    test::write_model_folder(model, config, tensors_of(config));
    const auto count = [&](const std::string& dtype) {
      return convert({.from = model.string(),
                      .to = model.string() + dtype + ".gguf",
                      .format = ModelFormat::kGguf,
                      .dtype = dtype})
          .num_wider;
    };
    return std::vector<int64_t>{count("q4_k_m"), count("q8_0"), count("fp16"), count("")};
  };
  EXPECT_THAT(num_wider("small", kLlamaConfig), ElementsAre(16, 16, 0, 0));
  const std::string middle = changed(kLlamaConfig, {{"hidden_size", 96}, {"head_dim", 16}});
  EXPECT_THAT(num_wider("middle", middle), ElementsAre(16, 2, 0, 0));
  EXPECT_THAT(num_wider("wide", wide_config()), ElementsAre(0, 0, 0, 0));
}

// Closed form: llama3's scaling leaves short wavelengths and divides long ones by the factor.
TEST(GgufModel, Llama3Scaling_IsWrittenAsFactors) {
  const Json config = Json::parse(configs().back(), "config.json");
  const auto tensors = gguf_rope_factors(config);
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].name, "rope_freqs.weight");
  // head_dim 4: wavelengths 2 pi and 2 pi sqrt(500000) = 4443; 32 / 3 and 32 / 1.5 bound them.
  EXPECT_THAT(tensors[0].values, ElementsAre(1.0F, 4.0F));
}

TEST(GgufModel, FactorsOfAnotherProgram_AreLlama31sOrRefused) {
  const TempFolder folder;
  const json released = {{"rope_type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 8192}};
  for (const bool is_known : {true, false}) {
    json scaling = released;
    if (!is_known) scaling["low_freq_factor"] = 2.0;
    const TempFolder own;
    const fs::path path = write_gguf_of(
        own, changed(kLlamaConfig,
                     {{"rope_scaling", scaling}, {"rope_theta", 500000.0}, {"head_dim", 64}}));
    std::ifstream in(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    bytes.replace(bytes.find("cleave.rope_scaling"), 19, "another.keyscaling_");
    std::ofstream(path, std::ios::binary) << bytes;
    if (is_known) {
      const Json config = config_from_gguf(Gguf::open(path));
      EXPECT_EQ(json::parse(config.at("rope_scaling").dump()), released);
    } else {
      EXPECT_THAT(thrown_by([&] { config_from_gguf(Gguf::open(path)); }).what(),
                  HasSubstr("factors of an unknown rotary scaling"));
    }
  }
}

TEST(GgufModel, ModelsThatLlamaCppLacks_AreRefusedAndLeaveNothing) {
  const auto refusal = [](std::string_view config) {
    const TempFolder folder;
    const Error error = thrown_by([&] { write_gguf_of(folder, config); });
    EXPECT_THAT(test::names_below(folder.path()), ElementsAre("model"));
    return std::string(error.what());
  };
  EXPECT_THAT(refusal(test::kBertConfig), HasSubstr("a model of type bert cannot be written"));
  EXPECT_THAT(refusal(changed(kLlamaConfig, {{"hidden_act", "gelu"}})), HasSubstr("hidden_act"));
  EXPECT_THAT(refusal(changed(kLlamaConfig, {{"model_type", "qwen3"},
                                             {"architectures", {"Qwen3ForCausalLM"}},
                                             {"attention_bias", true}})),
              HasSubstr("attention_bias true, which llama.cpp does not compute"));
  EXPECT_THAT(refusal(changed(kGpt2Config, {{"scale_attn_weights", false}})),
              HasSubstr("scale_attn_weights"));
}

TEST(GgufModel, ExistingFile_IsNotOverwritten) {
  const TempFolder folder;
  const fs::path path = write_gguf_of(folder, kLlamaConfig);
  EXPECT_THAT(thrown_by([&] { write_gguf_of(folder, kLlamaConfig); }).what(),
              HasSubstr("already exists"));
  EXPECT_THAT(test::names_below(folder.path()), ElementsAre("model", "model.gguf"));
}

TEST(GgufModel, NanInAQuantizedFile_IsRefusedAndLeavesNothing) {
  const TempFolder folder;
  write_gguf_of(folder, wide_config(), "q8_0");
  fs::remove(folder / "modelq8_0.gguf");
  const fs::path weights = folder / "model/model.safetensors";
  std::fstream file(weights, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-4, std::ios::end);  // the last tensor is lm_head
  file.write("\xff\xff\xff\x7f", 4);
  file.close();
  EXPECT_THAT(thrown_by([&] { write_gguf_of(folder, wide_config(), "q8_0"); }).what(),
              HasSubstr("tensor 'output.weight' has NaN"));
  EXPECT_THAT(test::names_below(folder.path()), ElementsAre("model"));
}

// Oracle: the gguf package dequantises our blocks to the values that we read, and its reader reads
// our metadata and shapes.
TEST(GgufModel, PythonsReader_ReadsTheSame) {
  if (!test::python_has("gguf")) GTEST_SKIP() << "python3 or $CLEAVE_PYTHON has no gguf";
  const TempFolder folder;
  for (const char* dtype : {"q4_k_m", "q8_0", "fp16", "bf16"}) {
    SCOPED_TRACE(dtype);
    const fs::path path = write_gguf_of(folder, wide_config(), dtype);
    const fs::path back = folder / (std::string(dtype) + ".bin");
    const auto result = test::run_python(R"(
import sys, numpy as np, gguf
from gguf.quants import dequantize
reader = gguf.GGUFReader(sys.argv[1])
assert reader.get_field('llama.attention.head_count').contents() == 4
assert reader.get_field('general.architecture').contents() == 'llama'
assert abs(reader.get_field('llama.attention.layer_norm_rms_epsilon').contents() - 1e-5) < 1e-12
with open(sys.argv[2], 'wb') as out:
    for t in reader.tensors:
        values = dequantize(t.data, t.tensor_type).astype(np.float32)
        out.write(values.reshape(tuple(reversed(t.shape.tolist()))).tobytes())
)",
                                         {path.string(), back.string()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::ifstream in(back, std::ios::binary);
    const Gguf file = Gguf::open(path);
    for (const GgufTensor& tensor : file.tensors()) {
      const Tensor ours = read_whole(file, tensor.name).to(at::kFloat).contiguous();
      Tensor theirs = at::empty_like(ours);
      in.read(static_cast<char*>(theirs.mutable_data_ptr()),
              static_cast<std::streamsize>(theirs.nbytes()));
      EXPECT_TRUE(at::equal(ours, theirs)) << tensor.name;
    }
    EXPECT_EQ(in.peek(), std::ifstream::traits_type::eof());
  }
}

// Oracle: the gguf package's own Q8_0, bit for bit.
TEST(GgufModel, Q8Blocks_AreThoseOfPython) {
  if (!test::python_has("gguf")) GTEST_SKIP() << "python3 or $CLEAVE_PYTHON has no gguf";
  const TempFolder folder;
  const fs::path wide = write_gguf_of(folder, wide_config()),
                 q8 = write_gguf_of(folder, wide_config(), "q8_0");
  const auto result = test::run_python(R"(
import sys, numpy as np, gguf
from gguf.quants import quantize
plain = {t.name: t for t in gguf.GGUFReader(sys.argv[1]).tensors}
num_compared = 0
for t in gguf.GGUFReader(sys.argv[2]).tensors:
    if t.tensor_type != gguf.GGMLQuantizationType.Q8_0: continue
    assert np.array_equal(quantize(plain[t.name].data, t.tensor_type), t.data), t.name
    num_compared += 1
assert num_compared == 2 + 9 * 7, num_compared
)",
                                       {wide.string(), q8.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

/// A folder with a tokenizer of the golden data and a model of its size.
fs::path folder_with(const TempFolder& folder, const std::string& tokenizer, int64_t vocab_size) {
  const std::string config = changed(kLlamaConfig, {{"vocab_size", vocab_size}});
  test::write_model_folder(folder / "model", config, tensors_of(config));
  for (const auto& [name, text] : model_tokenizer_files(tokenizer)) {
    fs::create_directories((folder / ("model/" + name)).parent_path());
    std::ofstream(folder / ("model/" + name)) << text;
  }
  return write_gguf_of(folder, config);
}

const char* const kTexts[] = {"Once upon a time, there was a little girl named Lily.",
                              "A naive cafe: na\xC3\xAFve caf\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD!",
                              "numbers 1234567 and 3.14, don't SHOUT'S",
                              " two  spaces\n\nlines\tand tabs ",
                              "<s> is text</s>",
                              ""};

/// Published vocabularies of CLEAVE_DATA.
class RealGguf : public testing::TestWithParam<std::string> {};

TEST_P(RealGguf, TokenizerOfTheFile_GivesTheSameIds) {
  const std::string data = test::data_folder();
  if (data.empty()) GTEST_SKIP() << "CLEAVE_DATA is not set";
  const std::string source = data + "/tokenizers/" + GetParam();
  const TempFolder folder;
  const auto original = load_tokenizer(source);
  const fs::path path = folder_with(folder, source, original->vocab_size() + 3);
  const auto read = load_model_tokenizer(path.string());
  for (const char* text : kTexts) {
    EXPECT_EQ(read->encode(text), original->encode(text)) << text;
    EXPECT_EQ(read->decode(read->encode(text), true),
              original->decode(original->encode(text), true));
  }
  EXPECT_EQ(read->special().bos, original->special().bos);
  EXPECT_EQ(read->special().eos, original->special().eos);
  const Gguf file = Gguf::open(path);
  const auto& tokens = file.metadata().strings_at("tokenizer.ggml.tokens");
  EXPECT_EQ(static_cast<int64_t>(tokens.size()), original->vocab_size() + 3);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, RealGguf,
                         testing::Values("llama2", "llama3", "gpt2", "stories260K-tok512"),
                         [](const auto& of) { return str("n", of.index); });

TEST(GgufModel, ByteTokenizerAndChatTemplate_AreInTheFile) {
  const TempFolder folder, tokenizer;
  for (const NamedFile& file : byte_tokenizer_files()) {
    std::ofstream(tokenizer / file.name) << file.text;
  }
  std::ofstream(tokenizer / "chat_template.jinja") << "{{ messages }}";
  const fs::path path = folder_with(folder, tokenizer.path().string(), 257);
  const Gguf file = Gguf::open(path);
  const GgufMetadata& metadata = file.metadata();
  EXPECT_EQ(metadata.string_at("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(metadata.string_at("tokenizer.ggml.pre"), "gpt-2");
  EXPECT_EQ(metadata.int_at("tokenizer.ggml.eos_token_id"), 256);
  EXPECT_EQ(metadata.ints_at("tokenizer.ggml.token_type").back(), 3);
  EXPECT_EQ(metadata.string_at("tokenizer.chat_template"), "{{ messages }}");
  const auto read = load_model_tokenizer(path.string());
  for (const char* text : kTexts) {
    EXPECT_EQ(read->encode(text), byte_tokenizer()->encode(text)) << text;
  }
}

TEST(GgufModel, OfAFolderWhoseNameIsNotUtf8_HasANameThatIs) {
  const TempFolder folder;
  const fs::path model = folder / "a\xffz";
  test::write_model_folder(model, kLlamaConfig, test::tensors_of(kLlamaConfig));
  const std::string path = folder / "model.gguf";
  (void)convert({.from = model.string(), .to = path, .format = ModelFormat::kGguf});
  EXPECT_EQ(Gguf::open(path).metadata().string_at("general.name"), "a\xEF\xBF\xBDz");
}

// Keys: those of gguf-py's add_chat_template().
TEST(GgufModel, SeveralChatTemplates_AreInTheFileAndReadBack) {
  const TempFolder tokenizer, with_files;
  for (const fs::path& each : {tokenizer.path(), with_files.path()}) {
    for (const auto& [name, text] : byte_tokenizer_files()) std::ofstream(each / name) << text;
  }
  json config = json::parse(read_file(tokenizer / "tokenizer_config.json"));
  config["chat_template"] = {{{"name", "tool_use"}, {"template", "a"}},
                             {{"name", "of-others"}, {"template", "b"}},
                             {{"name", "default"}, {"template", "{{ messages }}"}}};
  std::ofstream(tokenizer / "tokenizer_config.json") << config.dump();
  std::ofstream(with_files / "chat_template.jinja") << "{{ messages }}";
  fs::create_directory(with_files / "additional_chat_templates");
  std::ofstream(with_files / "additional_chat_templates/tool_use.jinja") << "a";
  std::ofstream(with_files / "additional_chat_templates/of-others.jinja") << "b";
  for (const fs::path& source : {tokenizer.path(), with_files.path()}) {
    const TempFolder folder;
    const fs::path path = folder_with(folder, source.string(), 257);
    const Gguf file = Gguf::open(path);
    EXPECT_EQ(file.metadata().string_at("tokenizer.chat_template"), "{{ messages }}");
    EXPECT_EQ(file.metadata().string_at("tokenizer.chat_template.tool_use"), "a");
    EXPECT_EQ(file.metadata().string_at("tokenizer.chat_template.of_others"), "b");
    EXPECT_THAT(file.metadata().strings_at("tokenizer.chat_templates"),
                testing::UnorderedElementsAre("tool_use", "of_others"));
    const auto reader = load_model_tokenizer(path.string());
    const auto chat = load_model_chat_template("", path.string(), *reader, kTrainingTime);
    const TemplateVariables tools{{"tools", jinja::Value::list({})}};
    EXPECT_EQ(chat->render({}, false), "[]");
    EXPECT_EQ(chat->render({}, false, tools), "a");
    const std::string written = tokenizer_from_gguf(file).at(1).text;
    EXPECT_EQ(json::parse(written)["chat_template"].size(), 3U);
  }
}

TEST(GgufModel, TokenizerThatMergesSpaces_IsWrittenWithAWarning) {
  const std::string source = test::source_file("tests/golden/tokenizer/small/llama2");
  const int64_t vocab_size = load_model_tokenizer(source)->vocab_size();
  for (const bool merges : {false, true}) {
    const TempFolder folder, tokenizer;
    json all = json::parse(read_file(fs::path(source) / "tokenizer.json"));
    const json step = {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}};
    json& steps = all["normalizer"]["normalizers"];
    if (merges) steps.insert(steps.begin(), step);
    std::ofstream(tokenizer / "tokenizer.json") << all.dump();
    testing::internal::CaptureStderr();
    const fs::path file = folder_with(folder, tokenizer.path().string(), vocab_size);
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_EQ(warnings.find("llama.cpp keeps them") != std::string::npos, merges) << warnings;
    const GgufMetadata metadata = Gguf::open(file).metadata();
    EXPECT_EQ(metadata.bool_or("tokenizer.ggml.remove_extra_whitespaces", !merges), merges);
  }
}

// llama.cpp knows the pattern of Llama 3 under two names: words that are tokens become them without
// merges, or not (OLMo 2).
TEST(GgufModel, PreTokenizersOfOnePattern_DifferInIgnoringMerges) {
  for (const auto& [name, ignores_merges] : {std::pair("llama-bpe", true), {"dbrx", false}}) {
    const TempFolder folder, tokenizer;
    const std::string pattern =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    const json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    const json bytes = {{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", false}};
    for (const NamedFile& file : byte_tokenizer_files()) {
      std::string text = file.text;
      if (file.name == "tokenizer.json") {
        json all = json::parse(text);
        all["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
        all["model"]["ignore_merges"] = ignores_merges;
        text = all.dump();
      }
      std::ofstream(tokenizer / file.name) << text;
    }
    const fs::path path = folder_with(folder, tokenizer.path().string(), 257);
    EXPECT_EQ(Gguf::open(path).metadata().string_at("tokenizer.ggml.pre"), name);
    const json back = json::parse(tokenizer_from_gguf(Gguf::open(path)).at(0).text);
    EXPECT_EQ(back["model"]["ignore_merges"], ignores_merges);
  }
}

TEST(GgufModel, TokenizerThatLlamaCppLacks_IsRefused) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", kLlamaConfig, tensors_of(kLlamaConfig));
  std::ofstream(folder / "model/vocab.txt") << "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n";
  EXPECT_THAT(thrown_by([&] { write_gguf_of(folder, kLlamaConfig); }).what(),
              HasSubstr("the tokenizer cannot be written as GGUF"));
  fs::remove(folder / "model/vocab.txt");
  for (const NamedFile& file : byte_tokenizer_files()) {
    std::ofstream(folder / ("model/" + file.name)) << file.text;
  }
  EXPECT_THAT(thrown_by([&] { write_gguf_of(folder, kLlamaConfig); }).what(),
              HasSubstr("it has 257 ids; the model's vocab_size is 50"));
}

}  // namespace
}  // namespace cleave::gguf_test
