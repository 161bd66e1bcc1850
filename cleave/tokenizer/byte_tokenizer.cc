#include <nlohmann/json.hpp>

#include "cleave/base/hash.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/byte_map.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {
namespace {

constexpr std::string_view kEnd = "<|endoftext|>";
constexpr int64_t kEndId = 256;

std::string spelled(int64_t byte) {
  std::string out;
  append_utf8(out, byte_to_char(static_cast<uint8_t>(byte)));
  return out;
}

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    kind_ = "bytes";
    special_ = {
        .bos = kEndId, .eos = kEndId, .pad = kEndId, .unk = {}, .cls = {}, .sep = {}, .mask = {}};
    fingerprint_ = hash_bytes("cleave byte tokenizer 1");
  }

  [[nodiscard]] int64_t vocab_size() const override { return kEndId + 1; }
  [[nodiscard]] bool is_special(int64_t id) const override { return id == kEndId; }

  [[nodiscard]] std::optional<std::string> token(int64_t id) const override {
    if (id == kEndId) return std::string(kEnd);
    if (id < 0 || id > kEndId) return std::nullopt;
    return spelled(id);
  }

  [[nodiscard]] std::optional<int64_t> id_of(std::string_view token) const override {
    if (token == kEnd) return kEndId;
    const std::optional<std::string> byte = chars_to_bytes(token);
    if (!byte || byte->size() != 1) return std::nullopt;
    return static_cast<uint8_t>(byte->front());
  }

 protected:
  [[nodiscard]] std::vector<int64_t> encode_text(std::string_view text,
                                                 bool parse_special) const override {
    std::vector<int64_t> ids;
    ids.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const size_t end = parse_special ? std::min(text.find(kEnd, at), text.size()) : text.size();
      for (; at < end; ++at) ids.push_back(static_cast<uint8_t>(text[at]));
      if (end < text.size()) {
        ids.push_back(kEndId);
        at += kEnd.size();
      }
    }
    return ids;
  }

  [[nodiscard]] std::string decode_ids(std::span<const int64_t> ids) const override {
    std::string bytes;
    bytes.reserve(ids.size());
    for (const int64_t id : ids) {
      if (id == kEndId) {
        bytes += kEnd;
      } else if (id >= 0 && id < kEndId) {
        bytes.push_back(static_cast<char>(id));
      }
    }
    return replace_bad_utf8(bytes);
  }
};

nlohmann::ordered_json byte_level(bool trim_offsets) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", trim_offsets},
          {"use_regex", false}};
}

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  return std::make_shared<ByteTokenizer>();
}

std::vector<NamedFile> byte_tokenizer_files() {
  using Object = nlohmann::ordered_json;
  Object vocab = Object::object();
  for (int64_t byte = 0; byte < kEndId; ++byte) vocab[spelled(byte)] = byte;
  const Object end = {{"id", kEndId},    {"content", kEnd}, {"single_word", false},
                      {"lstrip", false}, {"rstrip", false}, {"normalized", false},
                      {"special", true}};
  const Object model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"ignore_merges", false},
                        {"vocab", vocab},
                        {"merges", Object::array()}};
  const Object tokenizer = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", Object::array({end})},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", byte_level(true)},
                            {"post_processor", byte_level(false)},
                            {"decoder", byte_level(true)},
                            {"model", model}};
  const Object config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"bos_token", kEnd},
                         {"eos_token", kEnd},
                         {"pad_token", kEnd},
                         {"clean_up_tokenization_spaces", false}};
  return {{"tokenizer.json", tokenizer.dump(1) + "\n"},
          {"tokenizer_config.json", config.dump(1) + "\n"}};
}

}  // namespace cleave
