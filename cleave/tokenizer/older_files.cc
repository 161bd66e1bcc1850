#include "cleave/tokenizer/older_files.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <utility>

#include "cleave/file/file.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/base64.h"
#include "cleave/tokenizer/bpe.h"
#include "cleave/tokenizer/byte_map.h"
#include "cleave/tokenizer/post_processor.h"
#include "cleave/tokenizer/word_piece.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;

// Source: the tokenizer of the Llama 3 release (Meta, 2024).
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr int64_t kNumLlama3Special = 256;

/// Calls `line(number, text)` for the lines of a file, numbers from 1, without line ends.
void for_each_line(std::string_view text,
                   const std::function<void(size_t, std::string_view)>& line) {
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view one = text.substr(at, end - at);
    if (one.ends_with('\r')) one.remove_suffix(1);
    line(++number, one);
    at = end + 1;
  }
}

/// Names of the special tokens that follow the ranks, in order.
std::vector<std::string> llama3_special_names() {
  std::vector<std::string> names{"<|begin_of_text|>",
                                 "<|end_of_text|>",
                                 "<|reserved_special_token_0|>",
                                 "<|reserved_special_token_1|>",
                                 "<|finetune_right_pad_id|>",
                                 "<|reserved_special_token_2|>",
                                 "<|start_header_id|>",
                                 "<|end_header_id|>",
                                 "<|eom_id|>",
                                 "<|eot_id|>",
                                 "<|python_tag|>"};
  for (int64_t i = 3; static_cast<int64_t>(names.size()) < kNumLlama3Special; ++i) {
    names.push_back(str("<|reserved_special_token_", i, "|>"));
  }
  return names;
}

/// Adds every way in which a token is made of two others; its rank is its id.
void add_rank_merges(Bpe& bpe, const std::vector<std::string>& tokens) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    for (size_t at = 0; at < token.size();) {
      at += next_code_point(token, at).bytes;
      if (at < token.size()) {
        bpe.add_merge(token.substr(0, at), token.substr(at), static_cast<uint32_t>(id));
      }
    }
  }
}

std::vector<std::string> read_rank_tokens(const fs::path& file) {
  std::vector<std::string> tokens;
  for_each_line(read_file(file, kMaxFileBytes), [&](size_t number, std::string_view line) {
    if (line.empty()) return;
    const size_t space = line.find(' ');
    const auto bytes = decode_base64(line.substr(0, space));
    uint64_t rank = 0;
    const char* end = line.data() + line.size();
    const char* digits = space == std::string_view::npos ? end : line.data() + space + 1;
    const auto [stop, error] = std::from_chars(digits, end, rank);
    CLEAVE_CHECK(bytes && !bytes->empty() && error == std::errc() && stop == end, Code::kFormat,
                 file.string(), ":", number, ": '", line.substr(0, 60),
                 "' is no rank; expected base64, one space and a number");
    CLEAVE_CHECK(rank == tokens.size(), Code::kFormat, file.string(), ":", number, ": the rank is ",
                 rank, "; expected ", tokens.size(), ", ranks are counted from 0");
    tokens.push_back(bytes_to_chars(*bytes));
  });
  CLEAVE_CHECK(!tokens.empty(), Code::kFormat, file.string(), " holds no ranks");
  return tokens;
}

SpecialIds ids_of(const PipelineParts& parts, const SpecialNames& names) {
  return names.ids(
      [&parts](const std::string& content) -> std::optional<int64_t> {
        for (const AddedToken& token : parts.added) {
          if (token.content == content) return token.id;
        }
        return parts.model->vocab().find(content);
      },
      parts.added);
}

}  // namespace

PipelineParts read_vocab_and_merges(const fs::path& folder, const SpecialNames& names) {
  const Json vocab_json = Json::parse_file((folder / "vocab.json").string());
  BpeOptions options;
  Vocab vocab = Vocab::from_json(vocab_json);
  if (const auto unk = names.by_role.find("unk_token"); unk != names.by_role.end()) {
    options.unk = vocab.find(unk->second);
  }
  auto bpe = std::make_unique<Bpe>(std::move(vocab), options);
  const fs::path merges = folder / "merges.txt";
  uint32_t rank = 0;
  for_each_line(read_file(merges, kMaxFileBytes), [&](size_t number, std::string_view line) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    const size_t space = line.find(' ');
    const bool known = space != std::string_view::npos &&
                       bpe->add_merge(line.substr(0, space), line.substr(space + 1), rank++);
    CLEAVE_CHECK(known, Code::kFormat, merges.string(), ":", number, ": '", line.substr(0, 60),
                 "' is no merge; expected two tokens of vocab.json that join to a third");
  });
  const bool prefix = names.config && names.config->bool_or("add_prefix_space", false);
  PipelineParts parts;
  parts.kind = "byte-level BPE";
  parts.model = std::move(bpe);
  parts.added = names.added_tokens(folder, parts.model->vocab());
  parts.pre_tokenizer = make_gpt2_pre_tokenizer(prefix);
  parts.decoder = make_byte_decoder();
  parts.special = ids_of(parts, names);
  return parts;
}

PipelineParts read_vocab_txt(const fs::path& folder, const SpecialNames& names) {
  const fs::path file = folder / "vocab.txt";
  std::vector<std::string> tokens;
  for_each_line(read_file(file, kMaxFileBytes),
                [&](size_t, std::string_view line) { tokens.emplace_back(line); });
  SpecialNames with_defaults = names;
  const std::array<std::pair<const char*, const char*>, 5> usual{{{"unk_token", "[UNK]"},
                                                                  {"cls_token", "[CLS]"},
                                                                  {"sep_token", "[SEP]"},
                                                                  {"pad_token", "[PAD]"},
                                                                  {"mask_token", "[MASK]"}}};
  for (const auto& [role, name] : usual) with_defaults.by_role.emplace(role, name);
  Vocab vocab = Vocab::from_list(std::move(tokens));
  const std::string& unk = with_defaults.by_role["unk_token"];
  const std::optional<int64_t> unk_id = vocab.find(unk);
  CLEAVE_CHECK(unk_id, Code::kFormat, file.string(), " has no line \"", unk,
               "\", the token for unknown words");
  const auto flag = [&names](std::string_view key, bool fallback) {
    return names.config ? names.config->bool_or(key, fallback) : fallback;
  };
  const bool lowercase = flag("do_lower_case", true);
  PipelineParts parts;
  parts.kind = "WordPiece";
  parts.model = std::make_unique<WordPiece>(std::move(vocab), WordPieceOptions{.unk = *unk_id});
  parts.added = with_defaults.added_tokens(folder, parts.model->vocab());
  parts.normalizer = make_bert_normalizer({.clean_text = true,
                                           .chinese_chars = flag("tokenize_chinese_chars", true),
                                           .strip_accents = flag("strip_accents", lowercase),
                                           .lowercase = lowercase});
  parts.pre_tokenizer = make_bert_pre_tokenizer();
  parts.decoder = make_word_piece_decoder("##", true);
  parts.special = ids_of(parts, with_defaults);
  if (parts.special.cls && parts.special.sep) {
    parts.sequence_template = make_bert_template(*parts.special.cls, *parts.special.sep);
  }
  return parts;
}

bool is_rank_file(std::string_view text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  const size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 && decode_base64(line.substr(0, space)) &&
         line.find_first_not_of("0123456789\r", space + 1) == std::string_view::npos;
}

PipelineParts read_ranks(const fs::path& folder, const SpecialNames& names) {
  std::vector<std::string> tokens = read_rank_tokens(folder / "tokenizer.model");
  const auto num_ranks = static_cast<int64_t>(tokens.size());
  BpeOptions options;
  options.ignore_merges = true;
  auto bpe = std::make_unique<Bpe>(Vocab::from_list(tokens), std::move(options));
  add_rank_merges(*bpe, tokens);
  PipelineParts parts;
  parts.kind = "byte-level BPE";
  parts.model = std::move(bpe);
  parts.added = names.added_tokens(folder, parts.model->vocab());
  const bool listed = std::any_of(parts.added.begin(), parts.added.end(),
                                  [&](const auto& token) { return token.id >= num_ranks; });
  int64_t id = num_ranks;
  for (std::string& name : llama3_special_names()) {
    if (!listed) parts.added.push_back({.id = id++, .content = std::move(name), .special = true});
  }
  parts.pre_tokenizer = make_byte_pre_tokenizer(kLlama3Pattern);
  parts.decoder = make_byte_decoder();
  parts.special = ids_of(parts, names);
  if (parts.special.bos) {
    const TemplateStep begin{TemplateStep::What::kToken, *parts.special.bos, 0};
    auto& steps = parts.sequence_template;
    steps.single.insert(steps.single.begin(), begin);
    steps.pair = {begin,
                  {TemplateStep::What::kFirst, 0, 0},
                  {TemplateStep::What::kToken, *parts.special.bos, 1},
                  {TemplateStep::What::kSecond, 0, 1}};
  }
  return parts;
}

}  // namespace cleave
