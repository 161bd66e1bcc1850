#include "cleave/chat/chat_reader.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/file/atomic_write.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::chat_reader_test {
namespace {

using testing::HasSubstr;

/// The text of a row, as ChatML.
std::string text_of(const std::string& row) {
  const auto tokenizer = byte_tokenizer();
  ChatReader reader(tokenizer, {.chat_template = load_chat_template("chatml", "", *tokenizer, 0),
                                .train_on_all = true});
  return tokenizer->decode(reader.read(Json::parse(row, "f:1"), "f:1").ids);
}

TEST(ChatReader, PromptsAndInstructions_AreAUserAndAnAssistant) {
  const std::string end = "<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n";
  EXPECT_EQ(text_of(R"({"prompt": "a", "completion": "c"})"), "<|im_start|>user\na" + end);
  EXPECT_EQ(text_of(R"({"instruction": "a", "output": "c"})"), "<|im_start|>user\na" + end);
  EXPECT_EQ(text_of(R"({"instruction": "a", "input": "b", "output": "c"})"),
            "<|im_start|>user\na\n\nb" + end);
  EXPECT_EQ(text_of(R"({"instruction": "a", "input": "", "output": "c"})"),
            "<|im_start|>user\na" + end);
}

TEST(ChatReader, EveryRole_IsPrinted) {
  EXPECT_EQ(text_of(R"({"messages": [{"role": "system", "content": "s"},
                                     {"role": "developer", "content": "d"},
                                     {"role": "tool", "content": "t"}]})"),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>developer\nd<|im_end|>\n"
            "<|im_start|>tool\nt<|im_end|>\n");
}

// A run without the calls would teach the model not to call tools.
TEST(ChatReader, ToolCallsInChatMl_AreRefused) {
  const auto row = [](const std::string& calls) {
    return R"({"messages": [{"role": "assistant", "content": "b", "tool_calls": )" + calls + "}]}";
  };
  EXPECT_EQ(text_of(row("[]")), "<|im_start|>assistant\nb<|im_end|>\n");
  const Error error = test::thrown_by(
      [&] { (void)text_of(row(R"([{"function": {"name": "f", "arguments": {}}}])")); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("refuses the messages: ChatML has no tool calls"));
}

// As Llama 3.1's template, which counts the calls of a message that has the key. A table with a
// column for each key, such as one of `datasets`, writes null where a message lacks one.
// Oracle: the same row without these keys; TRL's remove_none_values().
TEST(ChatReader, KeysThatAreNull_AreMissing) {
  const auto tokenizer = byte_tokenizer();
  const auto counts_calls = std::make_shared<const ChatTemplate>(
      "{% for m in messages %}{{ m.role }}{% if 'tool_calls' in m %}{{ m.tool_calls|length }}"
      "{% endif %}={{ m.content }};{% endfor %}",
      "test", *tokenizer, 0);
  const auto text = [&](const std::string& user, const std::string& assistant) {
    ChatReader reader(tokenizer, {.chat_template = counts_calls});
    const std::string row = R"({"messages": [{"role": "user", "content": "u")" + user +
                            R"(}, {"role": "assistant", "content": "a")" + assistant + "}]}";
    return tokenizer->decode(reader.read(Json::parse(row, "f:1"), "f:1").ids);
  };
  const std::string null = R"(, "tool_calls": null, "name": null)";
  EXPECT_EQ(text("", ""), "user=u;assistant=a;");
  EXPECT_EQ(text(null, null), text("", ""));
  EXPECT_EQ(text(null, R"(, "tool_calls": [{}])"), "user=u;assistant1=a;");
}

// Oracle: the same conversations as `messages`.
TEST(ChatReader, ShareGptRows_AreTheSameMessages) {
  const std::string want = text_of(R"({"messages": [{"role": "system", "content": "s"},
                                                    {"role": "user", "content": "u"},
                                                    {"role": "assistant", "content": "a"}]})");
  for (const char* row :
       {R"({"id": "7", "conversations": [{"from": "system", "value": "s"},
            {"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]})",
        R"({"system": "s", "conversations": [{"from": "user", "value": "u"},
            {"from": "chatgpt", "value": "a"}]})",
        R"({"system": "unused", "conversations": [{"from": "system", "value": "s"},
            {"from": "human", "value": "u"}, {"from": "assistant", "value": "a"}]})",
        R"({"system": "s", "conversations": [{"role": "user", "content": "u"},
            {"role": "assistant", "content": "a"}]})"}) {
    EXPECT_EQ(text_of(row), want) << row;
  }
}

TEST(ChatReader, ShareGptRowOfAnotherForm_IsRefusedWithWhatIsExpected) {
  const auto refused = [](const std::string& row) {
    return std::string(test::thrown_by([&] { (void)text_of(row); }).what());
  };
  EXPECT_THAT(
      refused(R"({"conversations": [{"from": "bing", "value": "u"}]})"),
      HasSubstr("f:1: \"conversations[0].from\" is \"bing\"; expected system, human, user, gpt"));
  EXPECT_THAT(refused(R"({"conversations": [{"from": "human", "content": "u"}]})"),
              HasSubstr("\"conversations[0].value\""));
  ChatReader reader(byte_tokenizer(), {});
  const Json row = Json::parse(R"({"conversations": [{"from": "human", "value": "u"}]})", "f:1");
  EXPECT_THAT(test::thrown_by([&] { (void)reader.read(row, "f:1"); }).what(),
              HasSubstr("no chat template, which \"conversations\" need; give --chat-template"));
}

// As Nemotron's and Phi-3's templates with {% generation %} blocks: two for a message with
// reasoning, and one after all messages.
constexpr const char* kBlocks =
    "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% if m.reasoning %}"
    "{% generation %}({{ m.reasoning }}){% endgeneration %}{% endif %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}<u>{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<a>{% else %}"
    "{% generation %};{% endgeneration %}{% endif %}";

/// The text of a row's trained tokens.
std::string trained_text(const std::string& chat_template, const std::string& row) {
  const auto tokenizer = byte_tokenizer();
  ChatReader reader(tokenizer, {.chat_template = std::make_shared<const ChatTemplate>(
                                    chat_template, "test", *tokenizer, 0)});
  const TokenizedChat chat = reader.read(Json::parse(row, "f:1"), "f:1");
  std::vector<int64_t> ids;
  for (size_t i = 0; i < chat.ids.size(); ++i) {
    if (chat.is_trained[i]) ids.push_back(chat.ids[i]);
  }
  return tokenizer->decode(ids);
}

TEST(ChatReader, CompletionInATemplateWithSeveralBlocksForAMessage_IsTrainedAsAWhole) {
  const auto trained = [](const std::string& row) { return trained_text(kBlocks, row); };
  const std::string answer = R"({"role": "assistant", "content": "c", "reasoning": "r"})";
  const auto user = [](const char* text) {
    return str(R"({"role": "user", "content": ")", text, R"("})");
  };
  EXPECT_EQ(trained(str(R"({"prompt": [)", user("u"), R"(], "completion": [)", answer, "]}")),
            "(r)c;");
  EXPECT_EQ(trained(str(R"({"prompt": [)", user("u"), ",", answer, ",", user("v"),
                        R"(], "completion": [{"role": "assistant", "content": "d"}]})")),
            "d;");
}

// Oracle: the answers, written out. OpenAI's files for fine-tuning have 0 and 1, those of ShareGPT
// 0.0 and 1.0 for every message.
TEST(ChatReader, AnswersWithWeightZero_AreNotTrained) {
  const auto chat = [](const std::string& list, const std::string& user, const std::string& answer,
                       const std::vector<const char*>& weights) {
    std::string row;
    for (size_t i = 0; i < weights.size(); ++i) {
      row += str(i > 0 ? ", " : "", "{", user, R"("q"}, {)", answer, '"', i, '"', weights[i], "}");
    }
    return str("{\"", list, "\": [", row, "]}");
  };
  const auto messages = [&](const std::vector<const char*>& weights) {
    return chat("messages", R"("role": "user", "content": )",
                R"("role": "assistant", "reasoning": "r", "content": )", weights);
  };
  const std::string chatml(kChatMl), end = "<|im_end|>\n", zero = R"(, "weight": 0)";
  const char* const none = zero.c_str();
  const char* const one = R"(, "weight": 1)";
  EXPECT_EQ(trained_text(chatml, messages({none, "", one})), "1" + end + "2" + end);
  EXPECT_EQ(trained_text(chatml, messages({"", none, none})), "0" + end);
  EXPECT_EQ(trained_text(kBlocks, messages({none, "", one})), "(r)1(r)2;");
  EXPECT_EQ(trained_text(kBlocks, messages({"", none, one})), "(r)0(r)2;");
  EXPECT_EQ(trained_text(kBlocks, messages({"", none})), "(r)0");
  EXPECT_EQ(
      trained_text(chatml, chat("conversations", R"("weight": 0.0, "from": "human", "value": )",
                                R"("from": "gpt", "value": )",
                                {R"(, "weight": 1.0)", R"(, "weight": 0.0)"})),
      "0" + end);
  // Answers of the prompt are not trained, whatever their weight.
  const std::string prompt = messages({none, ""});
  const std::string answers = R"([{"role": "assistant", "content": "a", "weight": 0},)"
                              R"({"role": "assistant", "content": "b"}]})";
  for (const char* used : {kBlocks, chatml.c_str()}) {
    EXPECT_EQ(trained_text(used, R"({"prompt")" + prompt.substr(11, prompt.size() - 12) +
                                     R"(, "completion": )" + answers),
              used == kBlocks ? "b;" : "b" + end);
  }
  const Error error =
      test::thrown_by([&] { (void)trained_text(chatml, messages({R"(, "weight": 0.5)"})); });
  EXPECT_THAT(error.what(), HasSubstr("\"messages[1].weight\" is 0.5; expected 1, or 0"));
}

// Without these keys, the model would learn to answer instead of calling the function, or to answer
// without the turns before.
TEST(ChatReader, KeysWhoseMeaningWouldBeLost_AreRefused) {
  const auto refused = [](const std::string& row) {
    return std::string(test::thrown_by([&] { (void)text_of(row); }).what());
  };
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant", "content": "",
                          "function_call": {"name": "f", "arguments": "{}"}}]})"),
              HasSubstr("expected \"tool_calls\""));
  EXPECT_THAT(
      refused(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": []}]})"),
      HasSubstr("expected a message with \"content\""));
  EXPECT_THAT(refused(R"({"instruction": "a", "output": "b", "history": [["q", "a"]]})"),
              HasSubstr("write rows with earlier turns as \"messages\""));
  EXPECT_EQ(text_of(R"({"instruction": "a", "output": "b", "history": []})"),
            text_of(R"({"instruction": "a", "output": "b"})"));
}

TEST(ChatReader, EmptyCompletionWithoutATemplate_IsRefused) {
  ChatReader reader(byte_tokenizer(), {});
  const Json row = Json::parse(R"({"prompt": "a", "completion": ""})", "f:1");
  const Error error = test::thrown_by([&] { (void)reader.read(row, "f:1"); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("expected a completion that is not empty"));
}

TEST(HoldsChats, BrokenFirstRow_IsAnErrorOnlyInAFileNamedJsonl) {
  const test::TempFolder folder;
  write_atomic(folder / "a.jsonl", std::string_view("{\"messages\": [}\n"));
  write_atomic(folder / "a.txt", std::string_view("{\"messages\": [}\n"));
  const Error error = test::thrown_by([&] { (void)holds_chats({(folder / "a.jsonl").string()}); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("a.jsonl:1"));
  EXPECT_FALSE(holds_chats({(folder / "a.txt").string()}));
  EXPECT_FALSE(holds_chats({}));
}

}  // namespace
}  // namespace cleave::chat_reader_test
