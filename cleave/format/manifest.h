#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/format/safetensors_writer.h"

namespace cleave {

/// The manifest's file in a checkpoint folder.
inline constexpr std::string_view kManifestName = "manifest.json";

/// The text of manifest.json for a folder whose other files are all written: the size of every
/// file, of those in folders one level below too, a checksum of every written block of a tensor, of
/// every safetensors header, of every other file as a whole, and of the manifest itself. Reads the
/// small files, not the tensors. Throws Error(kIo).
std::string make_manifest(const std::filesystem::path& folder,
                          const std::vector<WrittenBlock>& blocks);

/// A bound on the bytes of that text, known before anything is written: for files of `plan`'s
/// tensors, written in `num_blocks` blocks. A file more is kManifestEntry bytes more.
uint64_t manifest_room(const SafetensorsPlan& plan, uint64_t num_blocks);
inline constexpr uint64_t kManifestEntry = 384;

/// Which part of the tensors to look at, so that ranks can share the work: the index-th of count
/// near-equal parts of the bytes. Everything but tensors is looked at by index 0.
struct VerifyShare {
  int index = 0;
  int count = 1;
};

/// Compares a folder with its manifest, reading each byte once. Returns one sentence for every file
/// or tensor that is missing, cut, changed, swapped, or not covered by the manifest; none: intact.
/// Safetensors, .bin and .pt files that the manifest does not know are problems, other additions (a
/// README) are not. Throws Error(kFormat) when manifest.json itself is damaged, Error(kIo) when it
/// is missing or a file cannot be read.
std::vector<std::string> find_damage(const std::filesystem::path& folder, VerifyShare share = {});

/// Throws Error(kFormat) with the first problems that find_damage sees.
void require_intact(const std::filesystem::path& folder, VerifyShare share = {});

}  // namespace cleave
