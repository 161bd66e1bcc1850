#include "cleave/tokenizer/sentence_piece.h"

#include <dlfcn.h>
#include <filesystem>

namespace cleave {
namespace {

// The SentencePiece library and libtorch's c10 both export FLAGS_minloglevel, of different types.
// In one symbol scope the one's constructor overwrites the other's neighbours, so the library is
// loaded in a scope of its own, and only when a tokenizer.model is read.
#ifdef CLEAVE_SANITIZED
constexpr int kOwnScope =
    RTLD_NOW | RTLD_LOCAL;  // sanitizers refuse RTLD_DEEPBIND; they run without libtorch
#else
constexpr int kOwnScope = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

void* load_library() {
  Dl_info own{};
  CLEAVE_CHECK(dladdr(reinterpret_cast<void*>(&make_sentence_piece), &own) != 0, Code::kIo,
               "the folder of Cleave's library is not known to the loader");
  const auto path =
      std::filesystem::path(own.dli_fname).parent_path() / "libcleave_sentencepiece.so";
  void* library = dlopen(path.c_str(), kOwnScope);
  CLEAVE_CHECK(library != nullptr, Code::kIo, "a tokenizer.model needs ", path.string(), ": ",
               dlerror());  // NOLINT(concurrency-mt-unsafe): per thread in glibc
  return library;
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentence_piece(std::string_view bytes, const std::string& path,
                                               const SpecialNames& names) {
  static void* const library = load_library();
  const auto make =
      reinterpret_cast<decltype(&cleave_sentence_piece)>(dlsym(library, "cleave_sentence_piece"));
  if (make == nullptr) CLEAVE_BUG("libcleave_sentencepiece.so has no cleave_sentence_piece");
  std::unique_ptr<Tokenizer> tokenizer;
  make(bytes, path, names, &tokenizer);
  return tokenizer;
}

}  // namespace cleave
