#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/data/batch.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/file/atomic_write.h"
#include "tests/support/noting_tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"
#include "tests/support/thrown.h"

namespace cleave::classified_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;

class Classified : public ::testing::Test {
 protected:
  std::string file(const std::string& name, std::string_view text) {
    write_atomic(folder_ / name, text);
    return (folder_ / name).string();
  }
  static DatasetOptions options(std::vector<std::string> files) {
    return {.files = std::move(files),
            .tokenizer = byte_tokenizer(),
            .seq_len = 4,
            .cache_folder = "",
            .task = Task::kClassify,
            .classes = {"negative", "positive"}};
  }
  /// The message of the error when the files are opened.
  static std::string refusal_of(const DatasetOptions& o) {
    return thrown_by([&] { open_dataset(o); }).what();
  }

 private:
  TempFolder folder_;
};

TEST_F(Classified, CsvAndJsonl_GiveTruncatedTextsAndTheirClasses) {
  const std::string csv =
      file("a.csv", "review,sentiment\n\"a\nb\",positive\nlonger,negative\nx,1\n");
  const std::string jsonl = file("b.jsonl", R"({"text": "ok", "label": "positive"})"
                                            "\n"
                                            R"({"label": 0, "text": "z"})"
                                            "\n");
  const auto data = open_dataset(options({csv, jsonl}));
  ASSERT_EQ(data->size(), 5);
  EXPECT_TRUE(data->is_text());
  EXPECT_THAT(data->sample(0).ids, ElementsAre('a', '\n', 'b'));
  EXPECT_THAT(data->sample(1).ids, ElementsAre('l', 'o', 'n', 'g'));
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < data->size(); ++i) labels.push_back(data->sample(i).label.value());
  EXPECT_THAT(labels, ElementsAre(1, 0, 1, 1, 0));
  EXPECT_NE(data->fingerprint(), open_dataset(options({csv}))->fingerprint());
}

/// Special tokens as BERT's.
std::shared_ptr<const Tokenizer> bert_tokenizer() {
  return load_tokenizer(std::vector<NamedFile>{{.name = "tokenizer.json", .text = R"({
      "model": {"type": "WordPiece", "vocab":
                {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5, "d": 6}},
      "pre_tokenizer": {"type": "Whitespace"},
      "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}})"},
                                               {.name = "tokenizer_config.json", .text = "{}"}},
                        "test");
}

// Oracle: the sequences of BERT's paper; the longer text is truncated first, as in transformers.
TEST_F(Classified, PairsOfTexts_HaveTokenTypes) {
  DatasetOptions o =
      options({file("a.jsonl", R"({"premise": "a b", "hypothesis": "c", "label": 1})"
                               "\n"
                               R"({"premise": "a b a b", "hypothesis": "c d", "label": 0})")});
  o.tokenizer = bert_tokenizer();
  o.seq_len = 7;
  const auto data = open_dataset(o);
  EXPECT_THAT(data->sample(0).ids, ElementsAre(1, 3, 4, 2, 5, 2));
  EXPECT_THAT(data->sample(0).token_types, ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_EQ(data->sample(0).label, 1);
  EXPECT_THAT(data->sample(1).ids, ElementsAre(1, 3, 4, 2, 5, 6, 2));
  EXPECT_THAT(data->sample(1).token_types, ElementsAre(0, 0, 0, 0, 1, 1, 1));
  DatasetOptions csv = o;
  csv.files = {file("a.csv", "text,label\na,1\n"),
               file("b.csv", "label,sentence1,sentence2\n1,a b,c\n")};
  const auto both = open_dataset(csv);
  EXPECT_THAT(both->sample(0).token_types, ElementsAre(0, 0, 0));
  EXPECT_THAT(both->sample(1).ids, ElementsAre(1, 3, 4, 2, 5, 2));
  EXPECT_THAT(both->sample(1).token_types, ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_NE(both->fingerprint(), data->fingerprint());
}

TEST_F(Classified, RowsWithAndWithoutASecondText_AreRefused) {
  const std::string mixed = file("a.jsonl", R"({"text": "a", "text_pair": "b", "label": 1})"
                                            "\n"
                                            R"({"text": "a", "text_pair": null, "label": 1})");
  EXPECT_THAT(refusal_of(options({mixed})),
              HasSubstr("it has \"text\", the rows before it have \"text\" and \"text_pair\""));
}

TEST_F(Classified, RowsOfIds_HaveOneNumberEach) {
  const std::string rows =
      file("rows.jsonl", R"({"input_ids": [5, 6, 7, 8, 9], "label": 1})"
                         "\n"
                         R"({"input_ids": [5], "labels": 0, "attention_mask": [1]})"
                         "\n");
  const auto data = open_dataset(options({rows}));
  EXPECT_FALSE(data->is_text());
  EXPECT_THAT(data->sample(0).ids, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(data->sample(0).label, 1);
  EXPECT_EQ(data->sample(1).label, 0);
}

// Oracle: a data set's integer labels are indices, as transformers takes them; names are texts.
TEST_F(Classified, ClassesWithNumbersAsNames_AreFoundByNameInTextsAndByIndexInNumbers) {
  const auto with = [&](const std::string& name, std::string_view text) {
    DatasetOptions o = options({file(name, text)});
    o.classes = {"1", "2"};
    return o;
  };
  const auto labels = [&](const DatasetOptions& o) {
    const auto data = open_dataset(o);
    std::vector<int64_t> out;
    for (int64_t i = 0; i < data->size(); ++i) out.push_back(data->sample(i).label.value());
    return out;
  };
  EXPECT_THAT(labels(with("a.csv", "text,label\na,2\nb,1\n")), ElementsAre(1, 0));
  EXPECT_THAT(labels(with("a.jsonl", R"({"text": "a", "label": "2"})")), ElementsAre(1));
  EXPECT_THAT(labels(with("b.jsonl", R"({"text": "a", "label": 1})")), ElementsAre(1));
  EXPECT_THAT(labels(with("c.jsonl", R"({"input_ids": [1], "label": 1})")), ElementsAre(1));
  // Neither may be taken for the other: that would be silent for all rows but this one.
  EXPECT_THAT(refusal_of(with("b.csv", "text,label\na,0\n")),
              HasSubstr("label '0' is not one of the model's 2 classes, '1', '2'; rename it"));
  EXPECT_THAT(refusal_of(with("d.jsonl", R"({"text": "a", "label": 2})")),
              HasSubstr("d.jsonl:1: label 2 is not the index of one of the model's 2 classes, '1', "
                        "'2'; write a name as a text, in quotes"));
}

TEST_F(Classified, ABatch_HasOneLabelPerRowAndMasksPadding) {
  const std::string csv = file("a.csv", "text,label\nab,positive\nx,negative\n");
  const auto data = open_dataset(options({csv}));
  const SampleOrder order{.num_samples = 2, .batch_size = 2, .shuffle = false};
  const Batch batch = make_batch(*data, order, 0, 0, 2, 9);
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.ids, at::tensor({'a', 'b', 'x', 9}, at::kLong).view({2, 2})));
  EXPECT_TRUE(at::equal(batch.attention_mask,
                        at::tensor({1, 1, 1, 0}, at::kLong).view({2, 2}).to(at::kBool)));
  EXPECT_TRUE(at::equal(batch.rows(1, 2).labels, at::tensor({0}, at::kLong)));
}

TEST_F(Classified, InvalidRows_AreRefusedWithFileAndLine) {
  const auto csv = [&](std::string_view rows) {
    return refusal_of(options({file("a.csv", std::string("text,label\n") + std::string(rows))}));
  };
  EXPECT_THAT(csv("a,positive\nb,great\n"),
              HasSubstr("a.csv:3: label 'great' is not one of the model's 2 classes, 'negative', "
                        "'positive'; rename it, or train a model that has no classes yet"));
  EXPECT_THAT(csv("a,2\n"), HasSubstr("label '2'"));
  EXPECT_THAT(csv("a\n"), HasSubstr("a.csv:2:1: the record has 1 field"));
  EXPECT_THAT(csv(",positive\n"), HasSubstr("has no tokens"));
  EXPECT_THAT(csv(""), HasSubstr("0 rows"));
  EXPECT_THAT(refusal_of(options({file("b.csv", "a,b\n1,2\n")})), HasSubstr("expected a column"));
  EXPECT_THAT(refusal_of(options({file("c.txt", "some text")})), HasSubstr("has no labels"));
  EXPECT_THAT(refusal_of(options({file("d.jsonl", R"({"text": "a", "label": 1.5})")})),
              HasSubstr("d.jsonl:1"));
  EXPECT_THAT(refusal_of(options({file("e.jsonl", R"({"input_ids": [1], "label": 2})")})),
              HasSubstr("\"label\" is 2"));
  // The message names the field that the row has.
  for (const std::string start : {"{\"text\": \"a\"", "{\"input_ids\": [1]"}) {
    const auto row = [&](const std::string& rest) {
      return refusal_of(options({file("row.jsonl", start + rest + "}")}));
    };
    EXPECT_THAT(row(", \"label\": null"), HasSubstr("row.jsonl:1: \"label\" is null"));
    EXPECT_THAT(row(", \"labels\": null"), HasSubstr("row.jsonl:1: \"labels\" is null"));
    EXPECT_THAT(row(", \"label\": null, \"labels\": 2"), HasSubstr("2"));
    EXPECT_THAT(row(""), HasSubstr("row.jsonl:1: \"label\" is missing"));
  }
  EXPECT_THAT(refusal_of(options({file("f.jsonl", R"({"input_ids": [1], "label": 1})"),
                                  file("g.jsonl", R"({"text": "a", "label": 1})")})),
              HasSubstr("of different kinds"));
}

TEST_F(Classified, ClassNames_AreSortedOrCountedFromNumbers) {
  EXPECT_THAT(class_names({file("a.csv", "text,label\na,pos\nb,neg\nc,pos\n"),
                           file("b.jsonl", R"({"text": "x", "label": "fine"})")}),
              ElementsAre("fine", "neg", "pos"));
  EXPECT_THAT(class_names({file("c.jsonl", R"({"input_ids": [1], "label": 2})")}),
              ElementsAre("LABEL_0", "LABEL_1", "LABEL_2"));
  EXPECT_THAT(thrown_by([&] { class_names({file("d.csv", "text,label\na,pos\nb,\n")}); }).what(),
              HasSubstr("d.csv:3: the label is empty"));
  EXPECT_THAT(
      thrown_by([&] { class_names({file("e.jsonl", R"({"text": "a", "label": ""})")}); }).what(),
      HasSubstr("e.jsonl:1: the label is empty"));
  const std::string mixed = file("mixed.jsonl", R"({"text": "a", "label": 1})"
                                                "\n"
                                                R"({"text": "a", "label": "good"})");
  EXPECT_THAT(thrown_by([&] { class_names({mixed}); }).what(),
              HasSubstr("mixed.jsonl:1: label 1 is a number, and other labels are names"));
  std::string many = "text,label\n";
  for (int i = 0; i < 1001; ++i) many += "a,label " + std::to_string(i) + "\n";
  const std::string path = file("many.csv", many);
  EXPECT_THAT(thrown_by([&] { class_names({path}); }).what(),
              HasSubstr("many.csv:1002: label 'label 1000' makes more than 1000 classes"));
  const std::string same = file("same.csv", "text,label\na,good\nb,good\n");
  EXPECT_THAT(thrown_by([&] { class_names({same}); }).what(),
              HasSubstr("same.csv are 'good'; a classifier needs two classes"));
  DatasetOptions one = options({same});
  one.classes = {"good"};
  EXPECT_THAT(refusal_of(one),
              HasSubstr("one class, good, of which the cross entropy is always 0"));
  const std::string halves = file("halves.jsonl", R"({"text": "a", "label": 1.5})");
  EXPECT_THAT(thrown_by([&] { class_names({halves}); }).what(),
              HasSubstr("halves.jsonl:1: \"label\" is 1.5; expected the name of a class, or its "
                        "index; --task regression learns numbers"));
  const std::string head = file("head.csv", "text,label\n");
  EXPECT_THAT(thrown_by([&] { class_names({head}); }).what(), HasSubstr("head.csv holds no rows"));
}

TEST_F(Classified, NumbersOfARegression_AreThoseOfTheFile) {
  const auto scores = [&](const std::string& name, std::string_view text) {
    DatasetOptions o = options({file(name, text)});
    o.task = Task::kRegression;
    o.classes = {"LABEL_0"};
    const auto data = open_dataset(o);
    std::vector<double> out;
    for (int64_t i = 0; i < data->size(); ++i) {
      EXPECT_FALSE(data->sample(i).label);
      out.push_back(data->sample(i).score.value());
    }
    return out;
  };
  EXPECT_THAT(scores("a.csv", "text,label\na,2.25\nb,-100\nc,3\n"), ElementsAre(2.25, -100, 3));
  EXPECT_THAT(scores("b.csv", "sentence1,sentence2,score\na,b,1e-3\n"), ElementsAre(1e-3));
  EXPECT_THAT(scores("a.jsonl", R"({"text": "a", "label": 0.5, "score": 9})"), ElementsAre(0.5));
  EXPECT_THAT(scores("b.jsonl", R"({"text": "a", "score": 4})"), ElementsAre(4));
  EXPECT_THAT(scores("c.jsonl", R"({"input_ids": [1, 2], "labels": -0.5})"), ElementsAre(-0.5));
  EXPECT_THAT(scores("d.jsonl", R"({"input_ids": [1], "score": 2.5})"), ElementsAre(2.5));
  const auto refusal = [&](const std::string& name, std::string_view text) {
    return std::string(thrown_by([&] { scores(name, text); }).what());
  };
  for (const std::string wrong : {"good", "nan", "inf", "1.5x", ""}) {
    EXPECT_THAT(refusal("e.csv", "text,label\na,1\nb," + wrong + "\n"),
                HasSubstr("e.csv:3: label '" + wrong + "' is not a number, which a regression"));
  }
  EXPECT_THAT(refusal("e.jsonl", R"({"text": "a", "label": "1.5"})"),
              HasSubstr("\"label\" is \"1.5\"; expected a number"));
  EXPECT_THAT(refusal("f.jsonl", R"({"text": "a"})"), HasSubstr("\"label\" is missing"));
  EXPECT_THAT(refusal("g.csv", "text,sentiment\na,1\n"), HasSubstr("expected a column"));
}

TEST_F(Classified, ABatchOfARegression_HasOneNumberPerRow) {
  DatasetOptions o = options({file("a.csv", "text,label\nab,0.1\nx,-2\n")});
  o.task = Task::kRegression;
  const auto data = open_dataset(o);
  const SampleOrder order{.num_samples = 2, .batch_size = 2, .shuffle = false};
  const Batch batch = make_batch(*data, order, 0, 0, 2);
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({0.1, -2.0}, at::kDouble)));
  o.files = {file("b.csv", "text,label\nab,0.1\nx,-2.5\n")};
  EXPECT_NE(open_dataset(o)->fingerprint(), data->fingerprint());
}

TEST_F(Classified, MaskedRowsWithoutLabels_AreRefused) {
  DatasetOptions o = options({file("a.jsonl", R"({"input_ids": [1, 2]})")});
  o.task = Task::kMlm;
  EXPECT_THAT(refusal_of(o), HasSubstr("labels"));
}

TEST_F(Classified, Texts_ComeFromEveryKindOfFile) {
  const auto texts = [&](const std::string& path) {
    std::vector<std::string> out;
    for_each_text(path, [&](const Texts& row) {
      out.push_back(row.second ? row.first + "|" + *row.second : row.first);
    });
    return out;
  };
  EXPECT_THAT(texts(file("a.txt", "one\n\ntwo\r\n")), ElementsAre("one", "two"));
  EXPECT_THAT(texts(file("a.csv", "id,review\n1,\"a\nb\"\n")), ElementsAre("a\nb"));
  EXPECT_THAT(texts(file("a.jsonl", R"({"text": "x"})")), ElementsAre("x"));
  EXPECT_THAT(texts(file("b.jsonl", R"({"sentence": "x", "idx": 0})")), ElementsAre("x"));
  EXPECT_THAT(texts(file("c.jsonl", R"({"text": "x", "text_pair": "y"})")), ElementsAre("x|y"));
  EXPECT_THAT(texts(file("d.csv", "premise,hypothesis,label\na,b,0\n")), ElementsAre("a|b"));
  EXPECT_THAT(texts(file("e.csv", "sentence,question\na,b\n")), ElementsAre("b|a"));
  const std::string latin1 = file("b.txt", "one\ncaf\xe9\n");
  EXPECT_THAT(thrown_by([&] { texts(latin1); }).what(),
              HasSubstr("b.txt:2: the text is not UTF-8; convert the file"));
  const std::string tabs = file("a.tsv", "id\treview\n1\ta\n");
  EXPECT_THAT(thrown_by([&] { texts(tabs); }).what(), HasSubstr("a.tsv is a table with tabs"));
}

// Oracle: the bytes of the rows, in order.
TEST_F(Classified, Rows_AreTokenizedOnAllThreadsInOrder) {
  const test::Threads three(3);
  std::string rows;
  constexpr int kRows = 20'000;  // more than a batch
  for (int i = 0; i < kRows; ++i) {
    rows += str(R"({"text": "the text with the number )", i, R"(", "label": )", i % 2, "}\n");
  }
  const auto tokenizer = std::make_shared<test::NotingTokenizer>();
  DatasetOptions o = options({file("a.jsonl", rows)});
  o.tokenizer = tokenizer;
  o.seq_len = 64;
  const auto data = open_dataset(o);
  ASSERT_EQ(data->size(), kRows);
  for (int i = 0; i < kRows; ++i) {
    const std::string text = str("the text with the number ", i);
    std::vector<int64_t> ids = data->sample(i).ids;
    ASSERT_EQ(std::string(ids.begin(), ids.end()), text);
    ASSERT_EQ(data->sample(i).label, i % 2);
  }
  EXPECT_EQ(tokenizer->num_threads(), 3);
}

// A text without tokens is found later than a label that is no class.
TEST_F(Classified, OfSeveralWrongRows_TheFirstIsNamed) {
  const std::string good = R"({"text": "a", "label": 0})"
                           "\n";
  const std::string empty = R"({"text": "", "label": 0})"
                            "\n";
  const std::string other = R"({"text": "a", "label": 7})"
                            "\n";
  const auto message_of = [&](const std::string& rows) {
    return refusal_of(options({file("a.jsonl", rows)}));
  };
  EXPECT_THAT(message_of(good + empty + other), HasSubstr("a.jsonl:2: the text has no tokens"));
  EXPECT_THAT(message_of(good + good + other + empty), HasSubstr("a.jsonl:3: "));
}

}  // namespace
}  // namespace cleave::classified_test
