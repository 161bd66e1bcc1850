#include <tuple>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/file/atomic_write.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/model/bert/bert.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::names_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;
using Tensors = std::map<std::string, Tensor>;

Json config(const std::string& architecture, const std::string& more = "") {
  if (architecture.starts_with("Distil")) {
    return Json::parse(str(R"({"model_type": "distilbert", "architectures": [")", architecture,
                           R"("], "vocab_size": 11, "dim": 6, "n_layers": 1, "n_heads": 2,
      "hidden_dim": 8, "max_position_embeddings": 5)",
                           more, "}"),
                       "config.json");
  }
  const char* const type = architecture.starts_with("XLMRoberta")  ? "xlm-roberta"
                           : architecture.starts_with("Camembert") ? "camembert"
                           : architecture.starts_with("Roberta")   ? "roberta"
                                                                   : "bert";
  return Json::parse(str(R"({"model_type": ")", type, R"(", "architectures": [")", architecture,
                         R"("], "vocab_size": 11, "hidden_size": 6, "num_hidden_layers": 1,
      "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 5)",
                         more, "}"),
                     "config.json");
}

/// Random values for every parameter of a model.
Tensors values_of(Model& model) {
  Tensors out;
  uint64_t seed = 0;
  for (const auto& p : model.parameters()) {
    out.emplace(p->name(), test::numbers(p->shape(), ++seed).to(at::kFloat));
  }
  return out;
}

/// A model folder with the names that another program uses.
void write_folder(const TempFolder& folder, const Json& json, const Tensors& tensors) {
  write_atomic(folder / "config.json", json.dump());
  std::vector<TensorInfo> infos;
  for (const auto& [name, t] : tensors) {
    const DType dtype = t.scalar_type() == at::kLong ? DType::kI64 : DType::kF32;
    infos.push_back({.name = name, .dtype = dtype, .shape = t.sizes().vec()});
  }
  const SafetensorsPlan plan(infos);
  FolderWriter writer(folder / "made");
  plan.create_files(writer);
  SafetensorsWriter blocks(writer.path(), plan);
  for (const auto& [name, t] : tensors) blocks.write_block(name, {}, bytes_of(t));
  blocks.finish();
  std::filesystem::copy_file(writer.path() / "model.safetensors", folder / "model.safetensors");
}

/// Loads the folder and expects each parameter to be `want`'s.
void expect_loads(const TempFolder& folder, const Tensors& want) {
  const ModelFolder from = ModelFolder::open(folder.path().string());
  const auto model = make_model(from.config);
  EXPECT_TRUE(load_model(*model, from, at::kFloat).carried.empty());
  for (const auto& p : model->parameters()) {
    EXPECT_TRUE(at::equal(p->leaf(), want.at(p->name()))) << p->name();
  }
}

std::string replaced(std::string name, const std::string& from, const std::string& to) {
  const size_t at = name.find(from);
  return at == std::string::npos ? name : name.replace(at, from.size(), to);
}

TEST(BertNames, GammaAndBetaAndHeadsOfPreTraining_AreTheMaskedLmAsPublished) {
  const TempFolder folder;
  const Json json = config("BertForMaskedLM");
  const Tensors values = values_of(*make_model(json));
  Tensors stored;
  for (const auto& [name, t] : values) {
    stored.emplace(replaced(replaced(name, "LayerNorm.weight", "LayerNorm.gamma"), "LayerNorm.bias",
                            "LayerNorm.beta"),
                   t);
  }
  // Other tensors in bert-base-uncased's file.
  stored.emplace("bert.pooler.dense.weight", at::zeros({6, 6}));
  stored.emplace("bert.pooler.dense.bias", at::zeros({6}));
  stored.emplace("cls.seq_relationship.weight", at::zeros({2, 6}));
  stored.emplace("cls.seq_relationship.bias", at::zeros({2}));
  stored.emplace("bert.embeddings.position_ids", at::arange(5).unsqueeze(0));
  stored.emplace("cls.predictions.decoder.weight",
                 values.at("bert.embeddings.word_embeddings.weight"));
  stored.emplace("cls.predictions.decoder.bias", at::zeros({11}));
  write_folder(folder, json, stored);
  expect_loads(folder, values);
}

// Source: BertLMPredictionHead of transformers 5, whose decoder adds its own bias. If the matrix is
// not tied, the two biases are not either, and predictions.bias is in the file but unused.
TEST(BertNames, UntiedDecoder_HasTheDecodersBias) {
  const Json json = config("BertForMaskedLM", R"(, "tie_word_embeddings": false)");
  const Tensors values = values_of(*make_model(json));
  ASSERT_TRUE(values.contains("cls.predictions.decoder.bias"));
  EXPECT_FALSE(values.contains("cls.predictions.bias"));
  Tensors both = values;
  both.emplace("cls.predictions.bias", at::zeros({11}));
  const TempFolder of_transformers_5;
  write_folder(of_transformers_5, json, both);
  expect_loads(of_transformers_5, values);

  // transformers 4 had one bias with both names and wrote it under the other name.
  Tensors older;
  for (const auto& [name, t] : values) older.emplace(replaced(name, "decoder.bias", "bias"), t);
  const TempFolder of_transformers_4;
  write_folder(of_transformers_4, json, older);
  expect_loads(of_transformers_4, values);
}

TEST(BertNames, TrunkFromAMaskedLmsFile_Loads) {
  for (const auto& [architecture, prefix, other_head] :
       {std::tuple("BertModel", "bert.", "cls.predictions.bias"),
        {"RobertaModel", "roberta.", "lm_head.bias"},
        {"DistilBertModel", "distilbert.", "vocab_transform.bias"}}) {
    const Json trunk = config(architecture);
    const Tensors values = values_of(*make_model(trunk));
    EXPECT_TRUE(values.contains("embeddings.word_embeddings.weight"));
    Tensors prefixed;
    for (const auto& [name, t] : values) prefixed.emplace(prefix + name, t);
    prefixed.emplace(other_head, at::zeros({11}));
    const TempFolder folder;
    write_folder(folder, trunk, prefixed);
    expect_loads(folder, values);
  }
}

TEST(BertNames, ClassifierFromAFileWithoutPrefix_Loads) {
  const Json classifier = config("BertForSequenceClassification");
  const Tensors whole = values_of(*make_model(classifier));
  Tensors bare;
  for (const auto& [name, t] : whole) bare.emplace(replaced(name, "bert.", ""), t);
  const TempFolder without_prefix;
  write_folder(without_prefix, classifier, bare);
  expect_loads(without_prefix, whole);
}

// Source: the files of roberta-base, and RobertaForMaskedLM of transformers 5.19.
TEST(RobertaNames, MaskedLmAsPublished_Loads) {
  const Json json = config("RobertaForMaskedLM");
  const Tensors values = values_of(*make_model(json));
  EXPECT_TRUE(values.contains("lm_head.bias"));
  Tensors stored = values;
  stored.emplace("roberta.pooler.dense.weight", at::zeros({6, 6}));
  stored.emplace("roberta.pooler.dense.bias", at::zeros({6}));
  stored.emplace("roberta.embeddings.position_ids", at::arange(5).unsqueeze(0));
  stored.emplace("lm_head.decoder.weight", values.at("roberta.embeddings.word_embeddings.weight"));
  stored.emplace("lm_head.decoder.bias", at::zeros({11}));
  const TempFolder folder;
  write_folder(folder, json, stored);
  expect_loads(folder, values);
}

// Source: the files of xlm-roberta-base and camembert-base.
TEST(RobertaNames, OtherTypesWithItsLayers_ReadItsNames) {
  for (const std::string type : {"XLMRoberta", "Camembert"}) {
    const Tensors values = values_of(*make_model(config("RobertaForMaskedLM")));
    const TempFolder folder;
    const Json json = config(type + "ForMaskedLM");
    write_folder(folder, json, values);
    expect_loads(folder, values);
    const Json with_head = classifier_config(json, {"good", "bad"});
    EXPECT_EQ(with_head.at("architectures").at(0).as_string(), type + "ForSequenceClassification");
    const auto classifier = make_model(with_head);
    EXPECT_TRUE(values_of(*classifier).contains("classifier.out_proj.weight"));
  }
}

// Source: the names of distilbert-base-uncased's file.
TEST(DistilBertNames, MaskedLmAsPublished_Loads) {
  const Json json = config("DistilBertForMaskedLM");
  Tensors stored;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    stored.emplace(name, test::numbers(shape, stored.size()).to(at::kFloat));
  };
  const auto add_both = [&](const std::string& name, int64_t out, int64_t in) {
    in == 0 ? add(name + ".weight", {out}) : add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  };
  add("distilbert.embeddings.word_embeddings.weight", {11, 6});
  add("distilbert.embeddings.position_embeddings.weight", {5, 6});
  add_both("distilbert.embeddings.LayerNorm", 6, 0);
  const std::string layer = "distilbert.transformer.layer.0.";
  for (const char* name : {"q_lin", "k_lin", "v_lin", "out_lin"}) {
    add_both(layer + "attention." + name, 6, 6);
  }
  add_both(layer + "sa_layer_norm", 6, 0);
  add_both(layer + "ffn.lin1", 8, 6);
  add_both(layer + "ffn.lin2", 6, 8);
  add_both(layer + "output_layer_norm", 6, 0);
  add_both("vocab_transform", 6, 6);
  add_both("vocab_layer_norm", 6, 0);
  add("vocab_projector.bias", {11});
  const Tensors values = stored;
  stored.emplace("vocab_projector.weight",
                 values.at("distilbert.embeddings.word_embeddings.weight"));
  const TempFolder folder;
  write_folder(folder, json, stored);
  expect_loads(folder, values);
}

TEST(BertNames, AMissingHead_IsAnErrorThatNamesIt) {
  const TempFolder folder;
  const Json json = config("BertForSequenceClassification");
  Tensors values = values_of(*make_model(json));
  values.erase("classifier.weight");
  values.emplace("bert.stray", at::zeros({1}));
  write_folder(folder, json, values);
  const Error error = thrown_by([&] { expect_loads(folder, values); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("1 missing: classifier.weight"));
  EXPECT_THAT(error.what(), HasSubstr("does not use: bert.stray"));
}

TEST(BertPreTraining, TheHeadsOnHiddenStates_AreTheFoldAndTheNextSentence) {
  const auto model = make_model(config("BertForPreTraining"));
  materialize(*model, {.dtype = at::kDouble});
  auto& bert = dynamic_cast<Bert&>(*model);
  const DTensor ids(test::ids({2, 5}, 11, 1), Axis(), Replicate{});
  const DTensor hidden = bert.hidden(ids, {});
  EXPECT_TRUE(at::equal((*bert.predictions())(hidden, {}).local(), bert(ids, {}).local()));
  const DTensor pooled = (*bert.pooler())(hidden, {});
  EXPECT_EQ((*bert.seq_relationship())(pooled, {}).local().sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(bert.seq_relationship()->path(), "cls.seq_relationship");
}

TEST(BertConfig, UnsupportedValues_AreRefusedByKey) {
  const auto refusal = [](const std::string& architecture, const std::string& more) {
    const Error error = thrown_by([&] { make_model(config(architecture, more)); });
    EXPECT_EQ(error.code(), Code::kFormat);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal("BertForQuestionAnswering", ""), HasSubstr("expected BertModel"));
  EXPECT_THAT(refusal("BertModel", R"(, "is_decoder": true)"), HasSubstr("is_decoder"));
  EXPECT_THAT(refusal("BertModel", R"(, "position_embedding_type": "relative_key")"),
              HasSubstr("expected \"absolute\""));
  EXPECT_THAT(
      refusal("BertForSequenceClassification", R"(, "problem_type": "regression")"),
      HasSubstr("expected \"single_label_classification\", \"multi_label_classification\", or "
                "\"regression\" with one"));
  const auto scorer = config("BertForSequenceClassification",
                             R"(, "problem_type": "regression", "id2label": {"0": "score"})");
  EXPECT_THAT(make_model(scorer)->facts().labels, testing::ElementsAre("score"));
  // As in transformers: a model with one label learns numbers unless its config says otherwise.
  EXPECT_EQ(make_model(scorer)->task(), "regression");
  const auto task_of = [](const std::string& more) {
    return make_model(config("BertForSequenceClassification", more))->task();
  };
  EXPECT_EQ(task_of(R"(, "num_labels": 1)"), "regression");
  EXPECT_EQ(task_of(R"(, "num_labels": 2)"), "classify");
  EXPECT_EQ(task_of(R"(, "num_labels": 1, "problem_type": "single_label_classification")"),
            "classify");
  const std::string several = R"(, "problem_type": "multi_label_classification")";
  EXPECT_EQ(task_of(several), "multilabel");
  EXPECT_EQ(task_of(several + R"(, "num_labels": 1)"), "multilabel");
  EXPECT_THAT(refusal("BertForSequenceClassification", R"(, "problem_type": "multilabel")"),
              HasSubstr("\"problem_type\" is \"multilabel\"; expected"));
  EXPECT_THAT(refusal("BertModel", R"(, "hidden_dropout_prob": 1.0)"), HasSubstr("[0, 1)"));
  EXPECT_THAT(refusal("BertModel", R"(, "hidden_act": "mish")"), HasSubstr("mish"));
  EXPECT_THAT(refusal("RobertaForPreTraining", ""), HasSubstr("expected RobertaModel, Roberta"));
  EXPECT_THAT(refusal("DistilBertForTokenClassification", ""),
              HasSubstr("expected DistilBertModel, DistilBertForMaskedLM or DistilBert"));
  EXPECT_THAT(refusal("DistilBertModel", R"(, "activation": "mish")"), HasSubstr("mish"));
  EXPECT_THAT(refusal("RobertaModel", R"(, "pad_token_id": null)"), HasSubstr("pad_token_id"));
  EXPECT_THAT(refusal("RobertaModel", R"(, "pad_token_id": 4)"),
              HasSubstr("none is left for tokens"));
}

TEST(BertEmbeddings, MoreTokensThanPositions_AreRefused) {
  const auto model = make_model(config("BertForMaskedLM"));
  materialize(*model);
  const DTensor ids(at::zeros({1, 6}, at::kLong), Axis(), Replicate{});
  const Error error = thrown_by([&] { (*model)(ids, {}); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_THAT(error.what(), HasSubstr("bert.embeddings: sequences of 6 ids"));
}

// Two of the five positions are not used by tokens: that of padding and the one before it.
TEST(RobertaEmbeddings, MoreTokensThanPositions_AreRefused) {
  const auto model = make_model(config("RobertaForMaskedLM"));
  EXPECT_EQ(model->facts().max_positions, 3);
  materialize(*model);
  const Error error = thrown_by([&] {
    (*model)(DTensor(at::zeros({1, 4}, at::kLong), Axis(), Replicate{}), {});
  });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_THAT(error.what(), HasSubstr("max_position_embeddings=5, for 3 tokens; shorten them"));
}

// Oracle: one rank. All dropouts are active, so a mask that depends on the layout is found.
TEST(BertDropout, MasksOfTheWholeModel_AreTheSameOnEveryLayout) {
  const Json json = config("BertForMaskedLM", R"(, "hidden_dropout_prob": 0.3,
      "attention_probs_dropout_prob": 0.3)");
  Context context;
  context.training = true;
  context.seed = 5;
  const Tensor ids = test::ids({3, 5}, 11, 1);
  const auto logits_on = [&](const Axis& axis, bool sequence_parallel) {
    const auto model = make_model(json);
    parallelize_module(*model, axis, model->plan(sequence_parallel));
    materialize(*model, {.dtype = at::kDouble});
    return (*model)(DTensor(ids, axis, Replicate{}), context).full_tensor().detach();
  };
  const Tensor want = logits_on(Axis(), false);
  for (const bool sequence_parallel : {false, true}) {
    test::on_ranks(2, [&](const Axis& axis) {
      EXPECT_LE(test::largest_difference(logits_on(axis, sequence_parallel), want), 1e-12);
    });
  }
}

}  // namespace
}  // namespace cleave::names_test
