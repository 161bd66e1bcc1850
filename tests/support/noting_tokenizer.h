#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave::test {

/// The byte tokenizer, which notes the threads that encode and counts the calls.
class NotingTokenizer final : public Tokenizer {
 public:
  explicit NotingTokenizer(uint64_t fingerprint = 0) {
    special_ = bytes_->special();
    fingerprint_ = fingerprint;
  }
  [[nodiscard]] int64_t vocab_size() const override { return bytes_->vocab_size(); }
  [[nodiscard]] std::optional<std::string> token(int64_t id) const override {
    return bytes_->token(id);
  }
  [[nodiscard]] std::optional<int64_t> id_of(std::string_view token) const override {
    return bytes_->id_of(token);
  }
  [[nodiscard]] bool is_special(int64_t id) const override { return bytes_->is_special(id); }
  [[nodiscard]] size_t num_threads() const { return threads_.size(); }
  [[nodiscard]] int64_t num_calls() const { return num_calls_; }

 protected:
  [[nodiscard]] std::vector<int64_t> encode_text(std::string_view text,
                                                 bool parse_special) const override {
    const std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    ++num_calls_;
    return bytes_->encode(text, {.add_special = false, .parse_special = parse_special});
  }
  [[nodiscard]] std::string decode_ids(std::span<const int64_t> ids) const override {
    return bytes_->decode(ids);
  }

 private:
  std::shared_ptr<const Tokenizer> bytes_ = byte_tokenizer();
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
  mutable int64_t num_calls_ = 0;
};

}  // namespace cleave::test
