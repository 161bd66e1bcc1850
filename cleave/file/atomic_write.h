#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace cleave::inline file {

/// Suffix of a file or folder that is still being written or removed.
inline constexpr std::string_view kPartialSuffix = ".partial";

/// Replaces the file at `path` atomically: after a crash or on a full disk, either the old or the
/// new file is there, complete. One writer at a time. Throws Error(kIo).
void write_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_atomic(const std::filesystem::path& path, std::string_view text);

/// Fsyncs a folder, so that the names in it are durable. Throws Error(kIo).
void sync_folder(const std::filesystem::path& folder);

/// Renames inside one folder and syncs the folder. Throws Error(kIo).
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two names inside one folder and syncs the folder; atomically, unless the file system
/// cannot (NFS, sshfs). Throws Error(kIo).
void swap_durably(const std::filesystem::path& a, const std::filesystem::path& b);

/// Free bytes for this user on the disk of `folder`, at most UINT64_MAX. Throws Error(kIo).
uint64_t free_space(const std::filesystem::path& folder);

/// Disk space that a file may take beyond its bytes, and that a folder takes.
inline constexpr uint64_t kDiskBlock = 4096;

/// Throws Error(kIo) with both numbers if the disk of `folder` has less than `bytes` free.
void require_free_space(const std::filesystem::path& folder, uint64_t bytes);

/// Makes the missing folders above `path` and returns the one that it lies in. Throws Error(kIo).
std::filesystem::path make_folder_above(const std::filesystem::path& path);

}  // namespace cleave::inline file
