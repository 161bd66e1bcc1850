// Loads the tokenizer of a folder: tokenizer.json, tokenizer.model (ranks or SentencePiece), or the
// older vocab.json with merges.txt and vocab.txt.
#include <algorithm>
#include <array>
#include <charconv>
#include <dlfcn.h>
#include <filesystem>
#include <functional>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/file/file.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/pipeline.h"
#include "cleave/tokenizer/sentence_piece_plugin.h"
#include "cleave/tokenizer/special_names.h"
#include "cleave/tokenizer/steps.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;

// Source: the tokenizer of the Llama 3 release (Meta, 2024).
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr int64_t kNumLlama3Special = 256;

/// A tokenizer class of transformers whose files are vocab.json and merges.txt.
struct BpeClass {
  std::string_view name;       ///< without "Fast"
  std::string_view pattern{};  ///< empty: GPT-2's
  bool normalizes = false;     ///< to NFC
  bool is_roberta = false;     ///< its template, and no add_bos_token or add_eos_token
};
// Source: transformers 5.19, the modules of the models.
constexpr BpeClass kBpeClasses[] = {
    {.name = "GPT2Tokenizer"},
    {.name = "CodeGenTokenizer"},
    {.name = "RobertaTokenizer", .is_roberta = true},
    {.name = "Qwen2Tokenizer",
     .pattern =
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .normalizes = true},
};

/// The class of a folder whose tokenizer files name none, by the model_type of its config.json.
constexpr std::pair<std::string_view, std::string_view> kClassOfModel[] = {
    {"gpt2", "GPT2Tokenizer"},   {"roberta", "RobertaTokenizer"}, {"qwen2", "Qwen2Tokenizer"},
    {"qwen3", "Qwen2Tokenizer"}, {"qwen3_moe", "Qwen2Tokenizer"},
};

/// Those whose file is vocab.txt, without "Fast": they do the same.
constexpr std::string_view kBertClasses[] = {
    "BertTokenizer",     "DistilBertTokenizer", "ElectraTokenizer",
    "ConvBertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer",
};

/// Calls `line(number, text)` for the lines of a file, without line ends; numbers count from 1.
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

/// Names of the 256 special tokens of Llama 3, whose ids follow the ranks.
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

/// Adds a merge for every way to split a token into two others; its rank is the token's id.
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

/// The tokens of a file with "base64 rank" lines, in byte-level characters.
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
                 "' is not a rank; expected base64, one space and a number");
    CLEAVE_CHECK(rank == tokens.size(), Code::kFormat, file.string(), ":", number, ": the rank is ",
                 rank, "; expected ", tokens.size(), ", ranks are counted from 0");
    tokens.push_back(bytes_to_chars(*bytes));
  });
  CLEAVE_CHECK(!tokens.empty(), Code::kFormat, file.string(), " has no ranks");
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

/// Refuses the class of tokenizer_config.json: these files alone do not say what it does.
[[noreturn]] void refuse_class(const fs::path& folder, const SpecialNames& names,
                               std::string_view files, std::string_view expected) {
  names.config->at("tokenizer_class")
      .fail(str("of the classes whose ", files, " Cleave reads without tokenizer.json, expected ",
                expected,
                "; write tokenizer.json with transformers: "
                "AutoTokenizer.from_pretrained('",
                folder.string(), "').save_pretrained('", folder.string(), "')"));
}

/// The class that the config.json of a folder stands for; "" if there is none.
std::string class_of_model(const fs::path& folder) {
  const fs::path config = folder / "config.json";
  std::error_code ignored;  // a file that cannot be accessed counts as missing
  if (!fs::is_regular_file(config, ignored)) return "";
  const std::string type = Json::parse_file(config.string()).string_or("model_type", "");
  for (const auto& [model, name] : kClassOfModel) {
    if (model == type) return std::string(name);
  }
  return "";
}

/// The class of vocab.json and merges.txt: GPT-2's if no file names one.
BpeClass bpe_class(const fs::path& folder, const SpecialNames& names) {
  const std::string named = names.class_name();
  const std::string wanted = named.empty() ? class_of_model(folder) : named;
  if (wanted.empty()) return {.name = ""};
  for (const BpeClass& one : kBpeClasses) {
    if (one.name == wanted) return one;
  }
  refuse_class(folder, names, "vocab.json and merges.txt",
               "GPT2Tokenizer, CodeGenTokenizer, Qwen2Tokenizer or RobertaTokenizer");
}

/// The special tokens that the class adds to a text.
void add_template(PipelineParts& parts, const BpeClass& kind, const SpecialNames& names) {
  const SpecialIds& ids = parts.special;
  if (kind.is_roberta) {
    if (!ids.cls || !ids.sep) return;
    parts.sequence_template = make_roberta_template(*ids.cls, *ids.sep);
    return;
  }
  const auto wanted = [&names](std::string_view key, std::optional<int64_t> id) {
    return names.config && names.config->bool_or(key, false) ? id : std::nullopt;
  };
  parts.sequence_template =
      make_text_template(wanted("add_bos_token", ids.bos), wanted("add_eos_token", ids.eos));
}

/// The steps of the class before the model.
void add_word_steps(PipelineParts& parts, const BpeClass& kind, const SpecialNames& names) {
  constexpr const char* kPrefix = "add_prefix_space";
  const bool prefix = names.config && names.config->bool_or(kPrefix, false);
  if (kind.normalizes) {
    parts.normalizer = read_normalizer(Json::parse(R"({"type": "NFC"})", std::string(kind.name)));
  }
  if (kind.pattern.empty()) {
    parts.pre_tokenizer = make_gpt2_pre_tokenizer(prefix);
    return;
  }
  if (prefix) names.config->at(kPrefix).fail(str("expected false for ", kind.name));
  parts.pre_tokenizer = make_byte_pre_tokenizer(kind.pattern);
}

/// vocab.json and merges.txt: byte-level BPE of GPT-2, Qwen2 or RoBERTa. Errors name file and line.
PipelineParts read_vocab_and_merges(const fs::path& folder, const SpecialNames& given) {
  const BpeClass kind = bpe_class(folder, given);
  SpecialNames names = given;
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
    CLEAVE_CHECK(
        known, Code::kFormat, merges.string(), ":", number, ": '", line.substr(0, 60),
        "' is not a merge; expected two tokens of vocab.json whose concatenation is a token");
  });
  PipelineParts parts;
  parts.kind = "byte-level BPE";
  parts.model = std::move(bpe);
  names.add_defaults(kind.name);
  parts.added = names.added_tokens(parts.model->vocab());
  if (!kind.name.empty()) names.add_missing(parts.model->vocab(), parts.added);
  add_word_steps(parts, kind, names);
  parts.decoder = make_byte_decoder();
  parts.special = ids_of(parts, names);
  add_template(parts, kind, names);
  return parts;
}

/// BERT's normalizer by the flags of tokenizer_config.json. Accents go by default with upper case.
BertNormalizerOptions bert_options(const SpecialNames& names,
                                   const BertNormalizerOptions& defaults) {
  if (!names.config) return defaults;
  BertNormalizerOptions options = defaults;
  options.chinese_chars = names.config->bool_or("tokenize_chinese_chars", defaults.chinese_chars);
  options.lowercase = names.config->bool_or("do_lower_case", defaults.lowercase);
  const bool has_lowercase = names.config->has("do_lower_case");
  options.strip_accents = names.config->bool_or(
      "strip_accents", has_lowercase ? options.lowercase : defaults.strip_accents);
  return options;
}

bool is_bert_class(std::string_view name) {
  const auto* const end = std::end(kBertClasses);
  return std::find(std::begin(kBertClasses), end, name) != end;
}

/// vocab.txt, one token per line: BERT's WordPiece.
PipelineParts read_vocab_txt(const fs::path& folder, const SpecialNames& names) {
  const std::string wanted = names.class_name();
  if (!wanted.empty() && !is_bert_class(wanted)) {
    refuse_class(folder, names, "vocab.txt", "BertTokenizer or one that does the same");
  }
  const fs::path file = folder / "vocab.txt";
  std::vector<std::string> tokens;
  for_each_line(read_file(file, kMaxFileBytes),
                [&](size_t, std::string_view line) { tokens.emplace_back(line); });
  SpecialNames with_defaults = names;
  with_defaults.add_defaults("BertTokenizer");
  Vocab vocab = Vocab::from_list(std::move(tokens));
  const std::string& unk = with_defaults.by_role["unk_token"];
  const std::optional<int64_t> unk_id = vocab.find(unk);
  CLEAVE_CHECK(unk_id, Code::kFormat, file.string(), " has no line \"", unk,
               "\", the token for unknown words");
  PipelineParts parts;
  parts.kind = "WordPiece";
  parts.model = std::make_unique<WordPiece>(std::move(vocab), WordPieceOptions{.unk = *unk_id});
  parts.added = with_defaults.added_tokens(parts.model->vocab());
  with_defaults.add_missing(parts.model->vocab(), parts.added);
  parts.normalizer = make_bert_normalizer(bert_options(names, {}));
  parts.pre_tokenizer = make_bert_pre_tokenizer();
  parts.decoder = make_word_piece_decoder("##", true);
  parts.special = ids_of(parts, with_defaults);
  if (parts.special.cls && parts.special.sep) {
    parts.sequence_template = make_bert_template(*parts.special.cls, *parts.special.sep);
  }
  return parts;
}

/// Whether a tokenizer.model has "base64 rank" lines; otherwise it is a SentencePiece model.
bool is_rank_file(std::string_view text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  const size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 && decode_base64(line.substr(0, space)) &&
         line.find_first_not_of("0123456789\r", space + 1) == std::string_view::npos;
}

/// tokenizer.model with ranks: Llama 3's byte-level BPE with its 256 special tokens.
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
  parts.added = names.added_tokens(parts.model->vocab());
  const bool listed = std::any_of(parts.added.begin(), parts.added.end(),
                                  [&](const auto& token) { return token.id >= num_ranks; });
  int64_t id = num_ranks;
  for (std::string& name : llama3_special_names()) {
    if (!listed) parts.added.push_back({.id = id++, .content = std::move(name), .special = true});
  }
  parts.pre_tokenizer = make_byte_pre_tokenizer(kLlama3Pattern);
  parts.decoder = make_byte_decoder();
  parts.special = ids_of(parts, names);
  parts.sequence_template = make_text_template(parts.special.bos, std::nullopt);
  return parts;
}

// The SentencePiece library and libtorch's c10 both export FLAGS_minloglevel, with different types.
// In one symbol scope, the constructor of one overwrites memory of the other. Therefore the library
// is loaded into a separate scope, and only when a tokenizer.model is read.
#ifdef CLEAVE_SANITIZED
constexpr int kSeparateScope =
    RTLD_NOW | RTLD_LOCAL;  // sanitizers refuse RTLD_DEEPBIND; these tests need no libtorch
#else
constexpr int kSeparateScope = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

/// Loads libcleave_sentencepiece from the folder of the library with this code.
void* load_sentence_piece_library() {
  Dl_info own{};
  CLEAVE_CHECK(dladdr(reinterpret_cast<void*>(&load_sentence_piece_library), &own) != 0, Code::kIo,
               "the folder of Cleave's library is not known to the dynamic loader");
  const auto path = fs::path(own.dli_fname).parent_path() / "libcleave_sentencepiece.so";
  void* library = dlopen(path.c_str(), kSeparateScope);
  CLEAVE_CHECK(library != nullptr, Code::kIo, "a tokenizer.model needs ", path.string(), ": ",
               dlerror());  // NOLINT(concurrency-mt-unsafe): per thread in glibc
  return library;
}

std::unique_ptr<Tokenizer> make_sentence_piece(std::string_view bytes, const fs::path& path,
                                               const SpecialNames& names, uint64_t fingerprint) {
  static void* const library = load_sentence_piece_library();
  const auto make =
      reinterpret_cast<decltype(&cleave_sentence_piece)>(dlsym(library, "cleave_sentence_piece"));
  if (make == nullptr) CLEAVE_BUG("libcleave_sentencepiece.so has no cleave_sentence_piece");
  std::unique_ptr<Tokenizer> tokenizer;
  make(bytes, path, names, fingerprint, &tokenizer);
  return tokenizer;
}

constexpr std::string_view kChatTemplate = "chat_template.jinja";
constexpr std::array<const char*, 9> kFiles{"tokenizer.json",
                                            "tokenizer.model",
                                            "vocab.json",
                                            "merges.txt",
                                            "vocab.txt",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "chat_template.jinja"};

bool has_file(const fs::path& folder, const char* name) {
  std::error_code ignored;  // a file that cannot be accessed counts as missing
  return fs::is_regular_file(folder / name, ignored);
}

void add_file(Hasher& hasher, const std::string& name, const std::string& text) {
  const std::string head = str(name, ":", text.size(), ":");
  hasher.update(std::as_bytes(std::span(head)));
  hasher.update(std::as_bytes(std::span(text)));
}

/// Hash of the contents of all files that determine the results of encode(). A chat template does
/// not: the checkpoints of a run have the one that --chat-template gave, and the same cached
/// tokens.
uint64_t fingerprint_of(const std::string& folder) {
  Hasher hasher;
  for (const std::string& name : tokenizer_files(folder)) {
    if (name == kChatTemplate) continue;
    add_file(hasher, name, read_file(fs::path(folder) / name, kMaxFileBytes));
  }
  const bool is_older = !has_file(folder, "tokenizer.json") && has_file(folder, "vocab.json");
  if (is_older) add_file(hasher, "class", class_of_model(folder));
  return hasher.digest();
}

/// Whether the folder has exactly the files of the byte tokenizer, as a run with it saves them. The
/// chat template that a run carries does not matter: it changes no token.
bool is_byte_tokenizer(const std::string& folder) {
  const std::vector<NamedFile> files = byte_tokenizer_files();
  std::vector<std::string> names = tokenizer_files(folder);
  std::erase(names, kChatTemplate);
  return names.size() == files.size() &&
         std::all_of(files.begin(), files.end(), [&](const NamedFile& file) {
           return has_file(folder, file.name.c_str()) &&
                  read_file(fs::path(folder) / file.name, kMaxFileBytes) == file.text;
         });
}

/// Sets the normalizer of a tokenizer.json by tokenizer_config.json, as transformers does for
/// BERT's classes: their defaults count too. Without a class, only the flags that are given count.
void set_bert_normalizer(const Json& json, const SpecialNames& names, PipelineParts& parts) {
  const std::string named = names.class_name();
  if (!names.config || (!named.empty() && !is_bert_class(named))) return;
  if (!json.has("normalizer")) return;
  const Json normalizer = json.at("normalizer");
  if (normalizer.string_or("type", "") != "BertNormalizer") return;
  const BertNormalizerOptions own = read_bert_options(normalizer);
  BertNormalizerOptions defaults = own;
  if (!named.empty()) defaults = {.clean_text = own.clean_text};
  parts.normalizer = make_bert_normalizer(bert_options(names, defaults));
}

/// Refuses a space before texts that one file wants and the other does not: transformers puts it by
/// tokenizer_config.json for these classes, and other programs by tokenizer.json.
void require_same_prefix(const Json& json, const SpecialNames& names) {
  constexpr const char* kKey = "add_prefix_space";
  const std::string named = names.class_name();
  const bool is_byte_level = std::any_of(std::begin(kBpeClasses), std::end(kBpeClasses),
                                         [&](const BpeClass& one) { return one.name == named; });
  if (!is_byte_level || !names.config->has(kKey) || !json.has("pre_tokenizer")) return;
  const Json step = json.at("pre_tokenizer");
  if (step.string_or("type", "") != "ByteLevel") return;
  const bool wanted = names.config->at(kKey).as_bool();
  if (step.bool_or(kKey, true) == wanted) return;
  names.config->at(kKey).fail(str("the ByteLevel step of tokenizer.json has ",
                                  wanted ? "false" : "true",
                                  "; set both to the value that the model was trained with"));
}

/// The special ids of a tokenizer.json, whose model may have an unknown token of its own.
void add_ids(PipelineParts& parts, const SpecialNames& names) {
  parts.special = ids_of(parts, names);
  if (!parts.special.unk) parts.special.unk = parts.model->unk_id();
}

}  // namespace

bool has_tokenizer(const std::string& folder) {
  return has_file(folder, "tokenizer.json") || has_file(folder, "tokenizer.model") ||
         (has_file(folder, "vocab.json") && has_file(folder, "merges.txt")) ||
         has_file(folder, "vocab.txt");
}

std::vector<std::string> tokenizer_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const char* name : kFiles) {
    if (has_file(folder, name)) names.emplace_back(name);
  }
  return names;
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& folder) {
  CLEAVE_CHECK(has_tokenizer(folder), Code::kIo, folder,
               " has no tokenizer; expected tokenizer.json, tokenizer.model, vocab.json with "
               "merges.txt, or vocab.txt; copy those of the model there");
  const SpecialNames names = SpecialNames::read(folder);
  PipelineParts parts;
  if (has_file(folder, "tokenizer.json")) {
    const fs::path path = fs::path(folder) / "tokenizer.json";
    const Json json = Json::parse_file(path.string());
    require_same_prefix(json, names);
    parts = read_pipeline(json);
    set_bert_normalizer(json, names, parts);
    names.complete(parts.model->vocab(), parts.added);
    add_ids(parts, names);
  } else if (has_file(folder, "tokenizer.model")) {
    const fs::path path = fs::path(folder) / "tokenizer.model";
    const std::string bytes = read_file(path, kMaxFileBytes);
    if (!is_rank_file(bytes)) {
      return make_sentence_piece(bytes, path, names, fingerprint_of(folder));
    }
    parts = read_ranks(folder, names);
  } else if (has_file(folder, "vocab.json")) {
    parts = read_vocab_and_merges(folder, names);
  } else {
    parts = read_vocab_txt(folder, names);
  }
  parts.splits_special = names.splits_special();
  parts.fingerprint = fingerprint_of(folder);
  if (is_byte_tokenizer(folder)) {
    // The name and the token cache are those of the built-in byte tokenizer.
    const auto bytes = byte_tokenizer();
    parts.kind = bytes->kind();
    parts.fingerprint = bytes->fingerprint();
  }
  return make_pipeline(std::move(parts));
}

std::shared_ptr<const Tokenizer> load_tokenizer(std::span<const NamedFile> files,
                                                const std::string& source) {
  const auto parsed = [&](std::string_view name) {
    const auto file = std::find_if(files.begin(), files.end(),
                                   [name](const NamedFile& one) { return one.name == name; });
    CLEAVE_CHECK(file != files.end(), Code::kFormat, source, " has no ", name);
    return Json::parse(file->text, str(source, ": ", name));
  };
  const SpecialNames names = SpecialNames::from_config(parsed("tokenizer_config.json"));
  PipelineParts parts = read_pipeline(parsed("tokenizer.json"));
  add_ids(parts, names);
  Hasher hasher;
  for (const NamedFile& file : files) add_file(hasher, file.name, file.text);
  parts.fingerprint = hasher.digest();
  return make_pipeline(std::move(parts));
}

}  // namespace cleave::inline tokenizer
