#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace cleave {

/// What ends the name of a file or folder that is still being written or removed.
inline constexpr std::string_view kPartialSuffix = ".partial";

/// Replaces `path` by `bytes`. A crash or a full disk at any moment leaves the old file or the new
/// one, whole; never a part. One writer at a time. Throws Error(kIo).
void write_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_atomic(const std::filesystem::path& path, std::string_view text);

/// Makes the names in `folder` durable. Throws Error(kIo).
void sync_folder(const std::filesystem::path& folder);

/// Renames inside one folder and makes it durable. Throws Error(kIo).
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Swaps two names inside one folder, in one step, and makes it durable. Throws Error(kIo), also on
/// a file system that cannot.
void swap_durably(const std::filesystem::path& a, const std::filesystem::path& b);

/// Bytes that the disk of `folder` has free for this user; UINT64_MAX where it says more than it
/// can count. Throws Error(kIo).
uint64_t free_space(const std::filesystem::path& folder);

/// What a file may take on a disk beyond its bytes, and a folder in all.
inline constexpr uint64_t kDiskBlock = 4096;

/// Throws Error(kIo) with both numbers when the disk of `folder` has fewer than `bytes` free.
void require_free_space(const std::filesystem::path& folder, uint64_t bytes);

}  // namespace cleave
