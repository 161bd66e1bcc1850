#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "cleave/format/gguf.h"
#include "cleave/text/json.h"

namespace cleave {

/// The tensors of a GGUF file under the names of the model's parameters, with rows in their order.
/// Tensors that GGUF has no parameter for keep their names; the factors of rotary scaling, which
/// config.json has, are left out.
class GgufTensors : public TensorSource {
 public:
  /// `config` is the file's (config_from_gguf). Throws Error(kFormat) for an unknown architecture
  /// and for interleaved heads with an odd number of rows.
  GgufTensors(Gguf file, const Json& config);

  [[nodiscard]] std::vector<TensorInfo> list() const override;
  [[nodiscard]] const TensorInfo* find(std::string_view name) const override;
  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::string path() const override { return file_.path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override { return file_.file_names(); }

 private:
  struct Entry {
    TensorInfo info;
    std::string stored;            ///< its name in the file
    int64_t interleaved_rows = 0;  ///< as StoredAs
    bool is_transposed = false;
  };
  void read_transposed(const Entry& entry, std::span<const Slice> slices,
                       std::span<std::byte> out) const;

  Gguf file_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace cleave
