#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/byte_progress.h"
#include "cleave/format/safetensors_writer.h"

namespace cleave::inline format {

/// Name of the manifest in a checkpoint folder.
inline constexpr std::string_view kManifestName = "manifest.json";

/// The text of manifest.json for a folder whose other files are all written. It has the size of
/// every file (also in direct subfolders) and checksums of every written block of a tensor, every
/// safetensors header, every other file, and the manifest itself. Reads the small files, not the
/// tensors. Throws Error(kIo), and Error(kFormat) if the text would be too long.
std::string make_manifest(const std::filesystem::path& folder,
                          const std::vector<WrittenBlock>& blocks);

/// Upper bound on the bytes of that text, before anything is written, for the files of `plan` with
/// `num_blocks` blocks. Each other file adds up to kManifestBytesPerFile.
uint64_t manifest_max_bytes(const SafetensorsPlan& plan, uint64_t num_blocks);
/// Upper bound on the bytes of one file's entry in a manifest.
inline constexpr uint64_t kManifestBytesPerFile = 384;

/// The part of the work that one rank verifies: the index-th of `count` nearly equal parts of the
/// tensors' bytes. Index 0 also verifies everything else.
struct VerifyShare {
  int index = 0;
  int count = 1;
  OnBytes on_bytes{};  ///< called while this part is read; its total is an estimate
};

/// Compares a folder with its manifest, reading each byte once. Returns one sentence for every file
/// or tensor that is missing, truncated, changed, swapped, or not covered by the manifest; empty if
/// the folder is intact. Extra .safetensors, .bin, .pt and index files are problems; other extra
/// files (a README) are not. Throws Error(kFormat) if manifest.json itself is damaged, Error(kIo)
/// if it is missing or a file cannot be read.
std::vector<std::string> find_damage(const std::filesystem::path& folder,
                                     const VerifyShare& share = {});

/// Throws Error(kFormat) with find_damage()'s first problems; Error(kIo) if the folder is removed.
void require_intact(const std::filesystem::path& folder, const VerifyShare& share = {},
                    std::string_view remedy = "restore it, or use another checkpoint");

}  // namespace cleave::inline format
