#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "cleave/base/hash.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/steps.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline tokenizer {
namespace {

constexpr char32_t kFirstSubstitute = 0x100;
constexpr size_t kNumChars = 0x144;  // the largest character of the map + 1

struct Tables {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, kNumChars> to_byte{};
};

constexpr bool is_printable(char32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Tables make_tables() {
  Tables tables;
  for (int16_t& byte : tables.to_byte) byte = -1;
  char32_t next = kFirstSubstitute;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const char32_t character = is_printable(byte) ? byte : next++;
    tables.to_char[byte] = character;
    tables.to_byte[character] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = make_tables();

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::optional<uint32_t> digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<uint32_t>(c - 'A');
  if (c >= 'a' && c <= 'z') return static_cast<uint32_t>(c - 'a' + 26);
  const size_t at = kDigits.find(c, 52);
  if (at == std::string_view::npos) return std::nullopt;
  return static_cast<uint32_t>(at);
}

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

char32_t byte_to_char(uint8_t byte) {
  return kTables.to_char[byte];
}

std::optional<uint8_t> char_to_byte(char32_t character) {
  if (character >= kNumChars || kTables.to_byte[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(kTables.to_byte[character]);
}

std::string bytes_to_chars(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char c : bytes) append_utf8(out, byte_to_char(static_cast<uint8_t>(c)));
  return out;
}

std::optional<std::string> chars_to_bytes(std::string_view characters) {
  std::string out;
  out.reserve(characters.size());
  for (size_t at = 0; at < characters.size();) {
    const CodePoint point = next_code_point(characters, at);
    const std::optional<uint8_t> byte = char_to_byte(point.value);
    if (!byte) return std::nullopt;
    out.push_back(static_cast<char>(*byte));
    at += point.bytes;
  }
  return out;
}

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string out;
  uint32_t bits = 0;
  uint32_t num_bits = 0;
  for (const char c : text) {
    const std::optional<uint32_t> digit = digit_of(c);
    if (!digit) return std::nullopt;
    bits = (bits << 6) | *digit;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out.push_back(static_cast<char>((bits >> num_bits) & 0xFF));
    }
  }
  if ((bits & ((1U << num_bits) - 1)) != 0) return std::nullopt;
  return out;
}

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

}  // namespace cleave::inline tokenizer
