#include "cleave/chat/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/chat/chat_reader.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::chat_template_test {
namespace {

using test::thrown_by;
using testing::HasSubstr;

const ChatMessages kChat{chat_message("user", "ab"), chat_message("assistant", "cd"),
                         chat_message("user", "e"), chat_message("assistant", "f")};

ChatTemplate made(const std::string& text) {
  return {text, "t", *byte_tokenizer(), 0};
}

/// The text of the assistant's parts.
std::vector<std::string> parts_of(const ChatText& chat) {
  std::vector<std::string> out;
  for (const auto& [begin, end] : chat.assistant)
    out.push_back(chat.text.substr(begin, end - begin));
  return out;
}

/// The text of the trained tokens of the byte tokenizer; others are dots.
std::string shown(const TokenizedChat& chat) {
  std::string out;
  for (size_t i = 0; i < chat.ids.size(); ++i) {
    const char c = chat.ids[i] < 256 ? static_cast<char>(chat.ids[i]) : '$';
    out.push_back(chat.is_trained[i] ? c : '.');
  }
  return out;
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(ChatTemplate, AssistantParts_EndWithTheirTurn) {
  const ChatText text = made(std::string(kChatMl)).training_text(kChat);
  EXPECT_EQ(text.text,
            "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\ncd<|im_end|>\n"
            "<|im_start|>user\ne<|im_end|>\n<|im_start|>assistant\nf<|im_end|>\n");
  EXPECT_EQ(parts_of(text), (std::vector<std::string>{"cd<|im_end|>\n", "f<|im_end|>\n"}));
}

TEST(ChatTemplate, GenerationBlocks_DecideOverPrefixes) {
  const ChatTemplate marked = made(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %};{% else %}{{ m.content }}:{% endif %}{% endfor %}");
  EXPECT_EQ(parts_of(marked.training_text(kChat)), (std::vector<std::string>{"cd", "f"}));
}

// As Qwen3: the reasoning of the last answer is shown (empty if it has none), that of others is
// not.
constexpr std::string_view kHidesReasoning =
    "{% for m in messages %}{{ '<' + m.role + '>' }}"
    "{% set parts = m.content.split('</think>') %}{% set answer = parts[-1].strip() %}"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think>' + (parts[0] if parts|length > 1 else "
    "'')"
    ".split('<think>')[-1] + '</think>' }}{% endif %}{{ answer + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

TEST(ChatTemplate, AnswersShownWithoutReasoning_AreFoundByTheirContent) {
  const ChatTemplate hides{std::string(kHidesReasoning), "t", *byte_tokenizer(), 0};
  const ChatText text = hides.training_text(
      {chat_message("user", "cd"), chat_message("assistant", " cd\n"), chat_message("user", "cd"),
       chat_message("assistant", "<think>sure</think>\ncd "), chat_message("user", "e"),
       chat_message("assistant", "<think>f?</think>f")});
  EXPECT_EQ(text.text,
            "<user>cd<end>\n<assistant>cd<end>\n<user>cd<end>\n<assistant>cd<end>\n"
            "<user>e<end>\n<assistant><think>f?</think>f<end>\n");
  EXPECT_EQ(parts_of(text),
            (std::vector<std::string>{"cd<end>\n", "cd<end>\n", "<think>f?</think>f<end>\n"}));
  // Not the users' cd.
  EXPECT_EQ(text.assistant[0].begin, std::string("<user>cd<end>\n<assistant>").size());
}

/// An answer that calls functions and writes no text, but perhaps reasoning.
jinja::Value calling(const std::vector<std::string>& functions, const std::string& content = "") {
  std::vector<jinja::Value> calls;
  for (const std::string& name : functions) {
    const jinja::Value function =
        jinja::Value::dict({{jinja::Value::text("name"), jinja::Value::text(name)}});
    calls.push_back(jinja::Value::dict({{jinja::Value::text("function"), function}}));
  }
  auto members = chat_message("assistant", content).members();
  members.emplace_back(jinja::Value::text("tool_calls"), jinja::Value::list(std::move(calls)));
  return jinja::Value::dict(std::move(members));
}

// Oracle: the text, written out.
TEST(ChatTemplate, CallsShownWithoutReasoning_AreFoundByTheirFunctions) {
  // As Qwen3: a line break divides the text of an answer from its calls.
  const ChatTemplate hides = made(
      "{% for m in messages %}{{ '<' + m.role + '>' }}"
      "{% set parts = m.content.split('</think>') %}{% set answer = parts[-1].strip() %}"
      "{% if m.role == 'assistant' and loop.last %}{{ (parts[0] if parts|length > 1 else '<think>')"
      " + '</think>' }}{% endif %}{{ answer }}{% for c in m.tool_calls %}"
      "{% if answer %}{{ '\n' }}{% endif %}{{ '[' + c.function.name + ']' }}{% endfor %}"
      "{{ '<end>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}");
  const ChatText text =
      hides.training_text({chat_message("user", "u"), calling({"add", "add"}),
                           chat_message("tool", "[add]"), calling({"sub"}, "<think>sub?</think>"),
                           chat_message("tool", "t"), chat_message("assistant", "a")});
  EXPECT_EQ(text.text,
            "<user>u<end>\n<assistant>[add][add]<end>\n<tool>[add]<end>\n<assistant>[sub]<end>\n"
            "<tool>t<end>\n<assistant><think></think>a<end>\n");
  EXPECT_EQ(parts_of(text), (std::vector<std::string>{"[add][add]<end>\n", "[sub]<end>\n",
                                                      "<think></think>a<end>\n"}));
  EXPECT_EQ(text.assistant[0].begin, std::string("<user>u<end>\n<assistant>").size());

  const ChatTemplate drops_calls = made(
      "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% if loop.last %}"
      "{% for c in m.tool_calls %}{{ '[' + c.function.name + ']' }}{% endfor %}{% endif %}"
      "{{ '<end>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}");
  EXPECT_EQ(thrown_by([&] {
              (void)drops_calls.training_text(
                  {chat_message("user", "u"), calling({"add"}), chat_message("tool", "t")});
            }).code(),
            Code::kFormat);
}

TEST(ChatTemplate, PromptThatBeginsReasoning_IsNoPartOfTheAnswer) {
  // As DeepSeek-R1: the beginning of an answer that the model reads is not that of the text.
  const ChatTemplate begins = made(
      "{% for m in messages %}{{ m.role[0] + ':' + m.content.split('</think>')[-1] + ';' }}{% "
      "endfor "
      "%}{% if add_generation_prompt %}a:<think>{% endif %}");
  EXPECT_EQ(parts_of(begins.training_text(
                {chat_message("user", "x"), chat_message("assistant", "<think>b</think>c"),
                 chat_message("user", "y"), chat_message("assistant", "d")})),
            (std::vector<std::string>{"c;", "d;"}));
}

// As the templates of Llama 3.1 and Qwen3. Conversations of ShareGPT often begin with an answer.
TEST(ChatTemplate, AnswerBeforeAnyQuestion_IsFoundWhereTheTemplateReadsTheFirstMessage) {
  const ChatTemplate reads_first = made(
      "{% if messages[0].role == 'system' %}<s>{% endif %}{% for m in messages %}"
      "<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  const ChatText text = reads_first.training_text(
      {chat_message("assistant", "ab"), chat_message("user", "e"), chat_message("assistant", "f")});
  EXPECT_EQ(text.text, "<assistant>ab<end><user>e<end><assistant>f<end>");
  EXPECT_EQ(parts_of(text), (std::vector<std::string>{"ab<end>", "f<end>"}));
}

TEST(ChatTemplate, AnswersThatTheTemplateChanges_AreRefused) {
  const ChatTemplate changing = made(
      "{% for m in messages %}{% if loop.last %}!{% endif %}{{ m.content | upper }}{% endfor %}");
  const Error error = thrown_by([&] { (void)changing.training_text(kChat); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(),
              HasSubstr("changes or drops a part of message 2, so the tokens of the answer"));
}

TEST(ChatTemplate, EndTokenAfterAllMessages_EndsOnlyTheLastAnswer) {
  // As Phi-3.5.
  const ChatTemplate phi = made(
      "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}");
  EXPECT_EQ(parts_of(phi.training_text(kChat)),
            (std::vector<std::string>{"cd<|end|>\n", "f<|end|>\n<|endoftext|>"}));
}

TEST(ChatTemplate, EndOfTurnThatChanges_IsRefused) {
  const ChatTemplate changing = made(
      "{% for m in messages %}{{ m.content }}{{ '<return>' if loop.last else '<end>' }}{% endfor "
      "%}");
  EXPECT_EQ(thrown_by([&] { (void)changing.training_text(kChat); }).code(), Code::kFormat);
}

TEST(ChatTemplate, TurnEnd_IsWhatFollowsAnAnswer) {
  EXPECT_EQ(made(std::string(kChatMl)).turn_end(), "<|im_end|>");
  EXPECT_EQ(made("{% for m in messages %}{{ m.content + eos_token }}\n{% endfor %}").turn_end(),
            "<|endoftext|>");
  EXPECT_EQ(made("{{ messages[0].content }}").turn_end(), "");
}

TEST(ChatTemplate, Folder_TheFileComesBeforeTheConfig) {
  const test::TempFolder folder;
  const auto tokenizer = byte_tokenizer();
  const auto load = [&](const std::string& wanted = "") {
    return load_chat_template(wanted, folder.path().string(), *tokenizer, 0);
  };
  EXPECT_EQ(load(), nullptr);
  write(folder / "tokenizer_config.json", R"({"eos_token": "x"})");
  EXPECT_EQ(load(), nullptr);
  write(folder / "tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(load()->text(), "config");
  write(folder / "tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "a"},
                              {"name": "default", "template": "b"}]})");
  EXPECT_EQ(load()->text(), "b");
  write(folder / "chat_template.jinja", "file");
  EXPECT_EQ(load()->text(), "file");
  EXPECT_EQ(load("chatml")->text(), kChatMl);
  write(folder / "own.jinja", "own");
  EXPECT_EQ(load((folder / "own.jinja").string())->text(), "own");
  write(folder / "chat_template.jinja", "{% if %}");
  EXPECT_THAT(thrown_by([&] { (void)load(); }).what(), HasSubstr("chat_template.jinja: line 1"));
}

// Oracle: get_chat_template() of transformers 5.19, which takes "tool_use" if `tools` is not None.
TEST(ChatTemplate, ToolsInAFolderWithATemplateForThem_UseThatTemplate) {
  const test::TempFolder folder;
  const auto tokenizer = byte_tokenizer();
  const std::string with_blocks =
      "{{ tools|length }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
      "{% endfor %}";
  const auto expect_both = [&](const std::string& without) {
    const auto both = load_chat_template("", folder.path().string(), *tokenizer, 0);
    const TemplateVariables some{{"tools", jinja::Value::list({jinja::Value::text("f")})}};
    const TemplateVariables none{{"tools", jinja::Value(nullptr)}};
    EXPECT_EQ(both->render(kChat, false, some), "1abcdef");
    EXPECT_EQ(both->render(kChat, false, {{"tools", jinja::Value::list({})}}), "0abcdef");
    EXPECT_EQ(both->render(kChat, false, none), without);
    EXPECT_EQ(both->render(kChat, false), without);
    EXPECT_EQ(both->text(), without);
    EXPECT_EQ(parts_of(both->training_text(kChat, some)),
              (std::vector<std::string>{"ab", "cd", "e", "f"}));
    EXPECT_EQ(both->num_parts(kChat, some), 4);
  };
  write(folder / "tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": ")" + with_blocks +
            R"("}, {"name": "default", "template": "b"}]})");
  expect_both("b");
  write(folder / "chat_template.jinja", "file");  // then the list does not count
  EXPECT_EQ(load_chat_template("", folder.path().string(), *tokenizer, 0)
                ->render(kChat, false, {{"tools", jinja::Value::list({})}}),
            "file");
  std::filesystem::create_directory(folder / "additional_chat_templates");
  write(folder / "additional_chat_templates/tool_use.jinja", with_blocks);
  expect_both("file");
  EXPECT_EQ(load_chat_template("chatml", folder.path().string(), *tokenizer, 0)
                ->render({}, false, {{"tools", jinja::Value::list({})}}),
            "");
}

// transformers gives the text without the call. As Llama 3's template, which has no calls.
// All that cached tokens of a conversation depend on.
TEST(ChatTemplate, Fingerprint_ChangesWithEachTemplateTokenAndTime) {
  const test::TempFolder folder;
  for (const NamedFile& file : byte_tokenizer_files()) write(folder / file.name, file.text);
  const auto bytes = load_tokenizer(folder.path().string());
  write(folder / "tokenizer_config.json", R"({"eos_token": null})");
  const auto without_end = load_tokenizer(folder.path().string());
  ASSERT_FALSE(without_end->special().eos);
  const auto with_tools = [&](const char* text) {
    return ChatTemplate("a", "t", *bytes, 0, jinja::Template(text, "t")).fingerprint();
  };
  const std::vector<uint64_t> all{ChatTemplate("a", "t", *bytes, 0).fingerprint(),
                                  ChatTemplate("b", "t", *bytes, 0).fingerprint(),
                                  ChatTemplate("a", "t", *bytes, 1).fingerprint(),
                                  ChatTemplate("a", "t", *without_end, 0).fingerprint(),
                                  with_tools("a"),
                                  with_tools("b")};
  EXPECT_EQ(std::set<uint64_t>(all.begin(), all.end()).size(), all.size());
  EXPECT_EQ(ChatTemplate("a", "elsewhere", *bytes, 0).fingerprint(), all.front());
}

TEST(ChatTemplate, CallsThatTheTemplateLeavesOut_AreRefused) {
  const ChatTemplate without = made("{% for m in messages %}{{ m.content }};{% endfor %}");
  EXPECT_EQ(without.render({calling({}, "a")}, false), "a;");
  const Error error = thrown_by([&] {
    (void)without.render({calling({}), calling({"add"}, "a")}, false);
  });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("leaves out the call of add in message 2"));
}

// transformers trains on the quoted text. Models write an object there: Qwen2.5's and Llama 3.1's
// templates print it with tojson.
TEST(ChatTemplate, ArgumentsThatTheTemplateWouldQuoteAgain_AreRefused) {
  const auto text = [](const std::string& filter, const jinja::Value& arguments) {
    const jinja::Value function =
        jinja::Value::dict({{jinja::Value::text("name"), jinja::Value::text("f")},
                            {jinja::Value::text("arguments"), arguments}});
    const jinja::Value call = jinja::Value::dict({{jinja::Value::text("function"), function}});
    auto members = chat_message("assistant", "").members();
    members.emplace_back(jinja::Value::text("tool_calls"), jinja::Value::list({call}));
    return made("{% set f = messages[0].tool_calls[0].function %}{{ f.name }}:{{ f.arguments" +
                filter + " }}")
        .render({jinja::Value::dict(std::move(members))}, false);
  };
  const std::string json = R"({"x": "\u00e9"})";
  EXPECT_EQ(text("", jinja::Value::text(json)), "f:" + json);
  EXPECT_EQ(text("|tojson", jinja::Value::from_json(Json::parse(json, "j"))),
            "f:{\"x\": \"\xc3\xa9\"}");
  EXPECT_EQ(text("|tojson", jinja::Value::text("x")), "f:\"x\"");  // no JSON
  const Error error = thrown_by([&] { (void)text("|tojson", jinja::Value::text(json)); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("quotes the arguments of a call in message 1"));
}

TEST(ChatTokens, ByteTokenizer_TrainsTheAssistantsBytes) {
  const ChatText text =
      made(std::string(kChatMl))
          .training_text({chat_message("user", "ab"), chat_message("assistant", "cd")});
  const std::string trained = shown(tokenize_chat(*byte_tokenizer(), text));
  EXPECT_EQ(trained, std::string(text.text.size() - 13, '.') + "cd<|im_end|>\n");
}

TEST(ChatTokens, Completion_EndsWithTheEndToken) {
  EXPECT_EQ(shown(tokenize_completion(*byte_tokenizer(), "2+2=", "4")), "....4$");
}

TEST(ChatTokens, TokensAcrossTheBorder_BelongToTheAssistant) {
  const auto tokenizer = load_tokenizer(test::source_file("tests/golden/tokenizer/small/gpt2"));
  const std::string text = "the answer is there";
  const std::vector<int64_t> ids = tokenizer->encode(text, {.add_special = false});
  for (size_t begin = 0; begin <= text.size(); ++begin) {
    const TokenizedChat chat = tokenize_chat(*tokenizer, {text, {{begin, text.size()}}});
    ASSERT_EQ(chat.ids, ids);
    // Oracle: where each token begins, from the text of the tokens before it.
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t end = tokenizer->decode(std::span(ids).first(i + 1)).size();
      EXPECT_EQ(chat.is_trained[i], end > begin) << begin << ", token " << i;
    }
  }
}

/// Counts the bytes that another tokenizer encodes.
class CountedTokenizer final : public Tokenizer {
 public:
  explicit CountedTokenizer(std::shared_ptr<const Tokenizer> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int64_t vocab_size() const override { return inner_->vocab_size(); }
  [[nodiscard]] std::optional<std::string> token(int64_t id) const override {
    return inner_->token(id);
  }
  [[nodiscard]] std::optional<int64_t> id_of(std::string_view token) const override {
    return inner_->id_of(token);
  }
  [[nodiscard]] bool is_special(int64_t id) const override { return inner_->is_special(id); }
  [[nodiscard]] size_t num_bytes() const { return num_bytes_; }

 protected:
  [[nodiscard]] std::vector<int64_t> encode_text(std::string_view text, bool parse) const override {
    num_bytes_ += text.size();
    return inner_->encode(text, {.add_special = false, .parse_special = parse});
  }
  [[nodiscard]] std::string decode_ids(std::span<const int64_t> ids) const override {
    return inner_->decode(ids);
  }

 private:
  std::shared_ptr<const Tokenizer> inner_;
  mutable size_t num_bytes_ = 0;
};

// Every byte is encoded once with the whole text, and a few times to find the tokens of the answers
// around it, not again for every later answer. With special tokens also where some answers begin or
// end within a token or after a space.
TEST(ChatTokens, ManyTurns_AreEachTokenizedAFewTimes) {
  for (const std::string end_of_turn : {"<|endoftext|>", "\n"}) {
    const CountedTokenizer tokenizer(
        load_tokenizer(test::source_file("tests/golden/tokenizer/small/gpt2")));
    ChatText chat;
    for (size_t turn = 0; turn < 90; ++turn) {
      const size_t kind = end_of_turn == "\n" ? 0 : turn % 10;
      chat.text += str("user: is there ", turn, "?", end_of_turn, "assistant:");
      const size_t begin = chat.text.size() - (kind == 3 ? 2 : 0);
      chat.text += str(" there are ", turn % 7, " answers", kind == 5 ? " " : "");
      if (turn % 2 == 0) chat.text += end_of_turn;
      chat.assistant.push_back({begin, chat.text.size() - (kind == 7 ? 3 : 0)});
      if (turn % 2 != 0) chat.text += end_of_turn;
    }
    const TokenizedChat got = tokenize_chat(tokenizer, chat);
    EXPECT_LE(tokenizer.num_bytes(), 6 * chat.text.size());
    // Oracle: where each token begins, from the text of the tokens before it.
    ASSERT_EQ(tokenizer.decode(got.ids), chat.text);
    size_t begin = 0;
    for (size_t i = 0; i < got.ids.size(); ++i) {
      const size_t end = tokenizer.decode(std::span(got.ids).first(i + 1)).size();
      const bool is_trained = std::any_of(
          chat.assistant.begin(), chat.assistant.end(),
          [&](const jinja::ByteSpan& part) { return begin < part.end && part.begin < end; });
      EXPECT_EQ(got.is_trained[i], is_trained) << "token " << i;
      begin = end;
    }
  }
}

/// The trained text of a row that is read with ChatML, or without a template.
std::string trained(const std::string& row, bool with_template = true) {
  const auto tokenizer = byte_tokenizer();
  ChatReader reader(
      tokenizer,
      {.chat_template = with_template ? load_chat_template("chatml", "", *tokenizer, 0) : nullptr});
  return shown(reader.read(Json::parse(row, "f.jsonl:3"), "f.jsonl:3"));
}

std::string after_dots(const std::string& text) {
  return text.substr(std::min(text.find_first_not_of('.'), text.size()));
}

TEST(ChatRows, AllKinds_TrainTheAnswer) {
  const std::string answer = "yes<|im_end|>\n";
  EXPECT_EQ(after_dots(trained(R"({"messages": [{"role": "user", "content": "a"},
                                                {"role": "assistant", "content": "yes"}]})")),
            answer);
  EXPECT_EQ(after_dots(trained(R"({"messages": [{"role": "assistant", "content":
                                   [{"type": "text", "text": "y"}, {"text": "es"}]}]})")),
            answer);
  EXPECT_EQ(after_dots(trained(R"({"prompt": "a", "completion": "yes"})")), answer);
  EXPECT_EQ(after_dots(trained(R"({"instruction": "a", "output": "yes"})")), answer);
  EXPECT_EQ(trained(R"({"instruction": "a", "input": "b", "output": "yes"})", false), "......yes$");
  EXPECT_EQ(after_dots(trained(R"({"prompt": [{"role": "user", "content": "a"},
                                              {"role": "assistant", "content": "b"},
                                              {"role": "user", "content": "c"}],
                                   "completion": [{"role": "assistant", "content": "yes"}]})")),
            answer);
  ChatReader all(byte_tokenizer(), {.train_on_all = true});
  const Json row = Json::parse(R"({"prompt": "ab", "completion": "c"})", "f:1");
  EXPECT_EQ(shown(all.read(row, "f:1")), "abc$");
}

TEST(ChatRows, SystemBesideAnyRow_IsTheFirstMessage) {
  const auto tokenizer = byte_tokenizer();
  ChatOptions options{.chat_template = load_chat_template("chatml", "", *tokenizer, 0),
                      .train_on_all = true};
  const std::string whole =
      "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
      "<|im_start|>assistant\nb<|im_end|>\n";
  for (
      const char* rest :
      {R"("prompt": "a", "completion": "b")", R"("instruction": "a", "output": "b")",
       R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])"}) {
    const Json row = Json::parse(str(R"({"system": "s", )", rest, "}"), "f:1");
    EXPECT_EQ(shown(ChatReader(tokenizer, options).read(row, "f:1")), whole) << rest;
  }
  EXPECT_EQ(
      shown(
          ChatReader(tokenizer, {.train_on_all = true})
              .read(Json::parse(R"({"system": "s", "prompt": "a", "completion": "b"})", "f"), "f")),
      "s\n\nab$");
}

TEST(ChatRows, Tools_AreShownByTheTemplate) {
  const auto tokenizer = byte_tokenizer();
  const auto shows = std::make_shared<const ChatTemplate>(made(
      "{{ tools[0].name if tools else '-' }}{% for m in messages %}{{ m.content }}{% endfor %}"));
  const auto text = [&](const std::string& tools) {
    const Json row = Json::parse(str(R"({"prompt": "a", "completion": "b")", tools, "}"), "f:1");
    return shown(
        ChatReader(tokenizer, {.chat_template = shows, .train_on_all = true}).read(row, "f"));
  };
  EXPECT_EQ(text(R"(, "tools": [{"name": "add"}])"), "addab");
  EXPECT_EQ(text(""), "-ab");
  // Oracle: TRL, which parses a text.
  EXPECT_EQ(text(R"(, "tools": "[{\"name\": \"add\"}]")"), "addab");
  for (const char* none : {"null", "[]", R"("")", R"("[]")", R"("null")"}) {
    EXPECT_EQ(text(str(R"(, "tools": )", none)), "-ab");
  }
  for (const char* wrong : {R"("add")", R"({"name": "add"})", R"("{}")", "1"}) {
    const Error error = thrown_by([&] { (void)text(str(R"(, "tools": )", wrong)); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), HasSubstr("expected a list of function descriptions")) << wrong;
  }
}

// As Qwen3: with "enable_thinking": false, the beginning of an answer has an empty reasoning, which
// is then no part of the answer. Oracle: the text, written out; TRL passes these variables on.
TEST(ChatRows, VariablesOfARow_AreThoseOfItsTemplate) {
  const auto tokenizer = byte_tokenizer();
  const auto thinks = std::make_shared<const ChatTemplate>(
      made("{% for m in messages %}{{ m.role[0] + ':' }}{% if m.role == 'assistant' %}()"
           "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}a:"
           "{% if enable_thinking is defined and not enable_thinking %}(){% endif %}{% endif %}"));
  const auto answer = [&](const std::string& more) {
    const Json row = Json::parse(str(R"({"prompt": "q", "completion": "b")", more, "}"), "f:1");
    const TokenizedChat chat = ChatReader(tokenizer, {.chat_template = thinks}).read(row, "f");
    EXPECT_EQ(tokenizer->decode(chat.ids), "u:qa:()b");
    return std::count(chat.is_trained.begin(), chat.is_trained.end(), true);
  };
  EXPECT_EQ(answer(""), 3);
  EXPECT_EQ(answer(R"(, "chat_template_kwargs": {"enable_thinking": true})"), 3);
  EXPECT_EQ(answer(R"(, "chat_template_kwargs": {"enable_thinking": false, "messages": []})"), 1);
  EXPECT_EQ(answer(R"(, "chat_template_kwargs": null)"), 3);
  const Error error = thrown_by([&] { (void)answer(R"(, "chat_template_kwargs": [])"); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("expected an object of variables"));
}

TEST(ChatRows, BadRows_AreRefusedWithTheirPlace) {
  const auto refused = [](const std::string& row, bool with_template = true) {
    const Error error = thrown_by([&] { (void)trained(row, with_template); });
    EXPECT_THAT(error.what(), testing::StartsWith("f.jsonl:3: ")) << row;
    EXPECT_EQ(error.code(), with_template ? Code::kFormat : Code::kUsage) << row;
    return std::string(error.what());
  };
  EXPECT_THAT(refused(R"({"text": "a"})"), HasSubstr("not a conversation"));
  EXPECT_THAT(refused(R"({"messages": []})"), HasSubstr("at least one message"));
  EXPECT_THAT(refused(R"({"messages": "a"})"), HasSubstr("an array of messages"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "bot", "content": "a"}]})"),
              HasSubstr("expected system, developer, user, assistant or tool"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": "a"}]})"),
              HasSubstr("no text of the assistant"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user"}]})"), HasSubstr("with \"content\""));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
              HasSubstr("expected text"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": "a"}]})", false),
              HasSubstr("no chat template"));
}

TEST(ChatRows, MixedKinds_AreRefused) {
  ChatReader reader(byte_tokenizer(), {});
  (void)reader.read(Json::parse(R"({"prompt": "a", "completion": "b"})", "f:1"), "f:1");
  const Error error = thrown_by([&] {
    (void)reader.read(Json::parse(R"({"instruction": "a", "output": "b"})", "f:2"), "f:2");
  });
  EXPECT_THAT(error.what(), HasSubstr("f:2: the row has \"instruction\", but that of f:1 has"));
}

}  // namespace
}  // namespace cleave::chat_template_test
