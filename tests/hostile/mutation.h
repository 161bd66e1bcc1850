#pragma once
#include <cstddef>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

/// Random changes of valid files and texts, determined by a seed.
namespace cleave::test {

/// Number of rounds: `quick`, or `release` in ./run test --release.
inline size_t rounds(size_t quick, size_t release) {
  const char* level = std::getenv("CLEAVE_TEST_LEVEL");  // NOLINT(concurrency-mt-unsafe)
  return level != nullptr && std::string_view(level) == "release" ? release : quick;
}

/// Changes bytes, and inserts words of the file's syntax.
class Mutator {
 public:
  Mutator(unsigned seed, std::vector<std::string> words)
      : random_(seed), words_(std::move(words)) {}

  size_t below(size_t bound) { return random_() % bound; }

  /// One to four changes, mostly one, in [begin, end) of `text`.
  std::string operator()(std::string text, size_t begin = 0, size_t end = std::string::npos) {
    const size_t tail = text.size() - std::min(end, text.size());
    for (size_t edits = below(2) == 0 ? 1 : 1 + below(4); edits > 0 && begin + tail < text.size();
         --edits) {
      change(text, begin, begin + below(text.size() - tail - begin));
    }
    return text;
  }

 private:
  void change(std::string& text, size_t begin, size_t at) {
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, std::min(1 + below(6), text.size() - at));
        break;
      case 2:
        text.insert(at, text.substr(begin + below(at - begin + 1), below(24)));
        break;
      case 3:
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      default:
        const std::string& word = words_[below(words_.size())];
        if (below(2) == 0) text.erase(at, std::min(word.size(), text.size() - at));
        text.insert(at, word);
    }
  }

  std::mt19937 random_;
  std::vector<std::string> words_;
};

}  // namespace cleave::test
