// Rows that may have several classes each.
#include "cleave/data/class_labels.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/data/batch.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/file/atomic_write.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::class_labels_test {
namespace {

using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Multilabel : public ::testing::Test {
 protected:
  std::string file(const std::string& name, std::string_view text) {
    write_atomic(folder_ / name, text);
    return (folder_ / name).string();
  }
  /// The targets of a file's rows.
  std::vector<std::vector<float>> targets(const std::string& name, std::string_view text,
                                          std::vector<std::string> classes = {"anger", "fear",
                                                                              "joy"}) {
    const auto data = open_dataset(options(file(name, text), std::move(classes)));
    std::vector<std::vector<float>> out;
    for (int64_t i = 0; i < data->size(); ++i) {
      const Sample sample = data->sample(i);
      EXPECT_FALSE(sample.label || sample.score) << i;
      EXPECT_THAT(sample.labels, IsEmpty());
      out.push_back(sample.class_targets);
    }
    return out;
  }
  std::string refusal(const std::string& name, std::string_view text,
                      const std::vector<std::string>& classes = {"anger", "fear", "joy"}) {
    const Error error = thrown_by([&] { targets(name, text, classes); });
    EXPECT_EQ(error.code(), Code::kFormat);
    return error.what();
  }
  std::string names_refusal(const std::vector<std::string>& files) {
    return thrown_by([&] { multilabel_names(files); }).what();
  }
  static DatasetOptions options(const std::string& path, std::vector<std::string> classes) {
    return {.files = {path},
            .tokenizer = byte_tokenizer(),
            .seq_len = 4,
            .cache_folder = "",
            .task = Task::kMultilabel,
            .classes = std::move(classes)};
  }

  test::TempFolder folder_;
};

/// A JSONL file with these labels, as JSON, of single texts.
std::string rows(const std::vector<std::string>& labels) {
  std::string text;
  for (const std::string& list : labels) text += R"({"text": "a", "labels": )" + list + "}\n";
  return text;
}

TEST_F(Multilabel, Jsonl_HasNamesIndexesOrANumberForEachClass) {
  EXPECT_THAT(targets("a.jsonl", rows({R"(["joy", "anger"])", "[]", "[1]", "[2, 0]"})),
              ElementsAre(ElementsAre(1, 0, 1), ElementsAre(0, 0, 0), ElementsAre(0, 1, 0),
                          ElementsAre(1, 0, 1)));
  EXPECT_THAT(targets("b.jsonl", rows({"[0.0, 1.0, 0.25]", "[1e0, 0.0, 0.0]"})),
              ElementsAre(ElementsAre(0, 1, 0.25), ElementsAre(1, 0, 0)));
  EXPECT_THAT(targets("c.jsonl", R"({"input_ids": [1, 2], "labels": [2]})"
                                 "\n"
                                 R"({"input_ids": [1], "labels": ["fear", "joy"]})"
                                 "\n"
                                 R"({"input_ids": [1, 2, 3], "label": [0.5, 0.0, 1.0]})"),
              ElementsAre(ElementsAre(0, 0, 1), ElementsAre(0, 1, 1), ElementsAre(0.5, 0, 1)));
  // A name that is a number is that class, whatever its index.
  EXPECT_THAT(targets("d.jsonl", rows({R"(["1"])", "[1]"}), {"1", "0"}),
              ElementsAre(ElementsAre(1, 0), ElementsAre(0, 1)));
}

TEST_F(Multilabel, Csv_HasAListOrAColumnForEachClass) {
  EXPECT_THAT(targets("a.csv",
                      "text,labels\na,\"joy, anger\"\nb,\nc,fear\nd,\"[0, 2]\"\n"
                      "e,\"[\"\"joy\"\"]\"\nf,\"0,1\"\n"),
              ElementsAre(ElementsAre(1, 0, 1), ElementsAre(0, 0, 0), ElementsAre(0, 1, 0),
                          ElementsAre(1, 0, 1), ElementsAre(0, 0, 1), ElementsAre(1, 1, 0)));
  // As the comments of Jigsaw's toxicity challenge; the model's classes are in another order.
  const std::string toxic = "id,comment_text,toxic,insult\n7,a,1,0\n9,b,0.25,1.0\n";
  EXPECT_THAT(targets("b.csv", toxic, {"insult", "toxic"}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(1, 0.25)));
  EXPECT_THAT(targets("c.csv", toxic, {"insult"}), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(targets("d.csv", "text,text_pair,x\na,b,1\n", {"x"}), ElementsAre(ElementsAre(1)));
}

TEST_F(Multilabel, NamesOfANewModel_AreThoseOfTheData) {
  const auto names = [&](const std::string& name, std::string_view text) {
    return multilabel_names({file(name, text)});
  };
  EXPECT_THAT(names("a.jsonl", rows({R"(["joy"])", "[]", R"(["fear", "anger"])"})),
              ElementsAre("anger", "fear", "joy"));
  EXPECT_THAT(names("b.jsonl", rows({"[2]", "[0]"})), ElementsAre("LABEL_0", "LABEL_1", "LABEL_2"));
  EXPECT_THAT(names("c.jsonl", rows({"[0.0, 1.0]"})), ElementsAre("LABEL_0", "LABEL_1"));
  EXPECT_THAT(names("d.jsonl", R"({"input_ids": [1], "labels": ["only"]})"), ElementsAre("only"));
  EXPECT_THAT(names("e.csv", "text,labels\na,\"y,x\"\n"), ElementsAre("x", "y"));
  EXPECT_THAT(names("f.csv", ",comment_text,toxic,insult,id\n0,a,1,0,7\n"),
              ElementsAre("toxic", "insult"));
}

TEST_F(Multilabel, ABatch_HasARowOfTargetsPerSequence) {
  const auto data =
      open_dataset(options(file("a.csv", "text,x,y\nab,0,1\nc,0.5,0\nd,1,1\n"), {"x", "y"}));
  const SampleOrder order{.num_samples = 3, .batch_size = 3, .shuffle = false};
  const Batch batch = make_batch(*data, order, 0, 1, 3);
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({0.5F, 0.0F, 1.0F, 1.0F}).view({2, 2})));
  const auto other =
      open_dataset(options(file("b.csv", "text,x,y\nab,0,1\nc,0,0\nd,1,1\n"), {"x", "y"}));
  EXPECT_NE(other->fingerprint(), data->fingerprint());
}

TEST_F(Multilabel, OtherLabels_AreRefusedWithTheirPlace) {
  const auto jsonl = [&](const std::string& list) {
    return refusal("a.jsonl", rows({"[]", list}));
  };
  EXPECT_THAT(jsonl("\"joy\""), HasSubstr("a.jsonl:2: \"labels\" is \"joy\"; expected an array"));
  EXPECT_THAT(jsonl("1"), HasSubstr("for one class of each text, give --task classify"));
  EXPECT_THAT(jsonl("null"), HasSubstr("a.jsonl:2: \"labels\" is null; expected an array"));
  EXPECT_THAT(jsonl(R"(["joy", 0.5])"), HasSubstr("some numbers have a fraction"));
  EXPECT_THAT(jsonl("[0.0, 1]"), HasSubstr("some numbers have a fraction"));
  EXPECT_THAT(jsonl("[true]"), HasSubstr("expected an integer"));
  EXPECT_THAT(jsonl(R"([""])"), HasSubstr("expected the name of a class"));
  EXPECT_THAT(jsonl("[1.5, 0.0, 0.0]"), HasSubstr("\"labels[0]\" is 1.5; expected a number in [0"));
  EXPECT_THAT(jsonl("[-0.5, 0.0, 0.0]"), HasSubstr("expected a number in [0"));
  EXPECT_THAT(jsonl("[-1]"), HasSubstr("expected an integer of at least 0"));
  EXPECT_THAT(jsonl("[0.0, 1.0]"),
              HasSubstr("a.jsonl:2: the labels are 2 numbers, the model has 3"));
  EXPECT_THAT(jsonl("[3]"),
              HasSubstr("a.jsonl:2: label 3 is not the index of one of the model's 3"));
  EXPECT_THAT(jsonl(R"(["hope"])"), HasSubstr("label 'hope' is not one of the model's 3 classes"));
  // A vector of whole numbers would be read as indexes.
  EXPECT_THAT(jsonl("[0, 1, 0]"), HasSubstr("a.jsonl:2: label 0 occurs twice"));
  EXPECT_THAT(jsonl(R"(["joy", 2])"), HasSubstr("label 2 occurs twice"));
  EXPECT_THAT(refusal("b.jsonl", R"({"text": "a"})"), HasSubstr("\"label\" is missing"));
  EXPECT_THAT(refusal("c.jsonl", R"({"input_ids": [1], "labels": [7]})"),
              HasSubstr("c.jsonl:1: label 7 is not the index"));
  const auto csv = [&](const std::string& field) {
    return refusal("a.csv", "text,labels\na,joy\nb,\"" + field + "\"\n");
  };
  EXPECT_THAT(csv("joy,,fear"), HasSubstr("a.csv:3: one of the labels 'joy,,fear' is empty"));
  EXPECT_THAT(csv("joy|fear"), HasSubstr("a.csv:3: label 'joy|fear' is not one of the model's 3"));
  EXPECT_THAT(csv("['joy']"), HasSubstr("a.csv:3"));
  EXPECT_THAT(csv("['joy']"), HasSubstr("in a CSV file write names or indexes with commas"));
  EXPECT_THAT(refusal("b.csv", "text,anger,fear,joy\na,0,0,1\nb,0,yes,1\n"),
              HasSubstr("b.csv:3: 'yes' in the column 'fear' is not a number from 0 to 1"));
  EXPECT_THAT(refusal("c.csv", "text,anger,fear,joy\na,0,2,1\n"), HasSubstr("c.csv:2: '2'"));
  EXPECT_THAT(refusal("d.csv", "text,anger,joy\na,0,1\n"),
              HasSubstr("expected a column named one of 'fear'"));
}

TEST_F(Multilabel, NamesThatDoNotFit_AreRefused) {
  const std::string list = file("a.csv", "text,labels\na,joy\n");
  const std::string columns = file("b.csv", "text,joy,fear\na,1,0\n");
  EXPECT_THAT(names_refusal({list, columns}),
              HasSubstr("a.csv has a list of classes in each row, "));
  EXPECT_THAT(names_refusal({columns, list}), HasSubstr("b.csv has the columns 'joy', 'fear', "));
  EXPECT_THAT(names_refusal({file("c.csv", "text\na\n")}),
              HasSubstr("expected a column named one of 'labels', 'label'"));
  EXPECT_THAT(names_refusal({file("d.jsonl", rows({"[]", "[]"}))}),
              HasSubstr("d.jsonl has a label; expected rows with classes"));
  EXPECT_THAT(names_refusal({file("e.jsonl", rows({R"(["joy"])", "[0]"}))}),
              HasSubstr("e.jsonl:2: label 0 is a number, and other labels are names"));
  EXPECT_THAT(names_refusal({file("f.jsonl", rows({"[1000]"}))}),
              HasSubstr("f.jsonl:1: label '1000' makes more than 1000 classes"));
  EXPECT_THAT(thrown_by([&] { class_names({file("g.jsonl", rows({"[0, 1]"}))}); }).what(),
              HasSubstr("expected one class; --task multilabel learns several classes of a text"));
}

}  // namespace
}  // namespace cleave::class_labels_test
