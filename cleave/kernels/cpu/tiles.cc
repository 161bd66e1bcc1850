#include "cleave/kernels/cpu/tiles.h"

#include <algorithm>
#include <cstring>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/isa.h"

#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cleave::inline kernels {

#if defined(__x86_64__) && defined(__linux__)
#define CLEAVE_TILES __attribute__((target("amx-tile,amx-int8,amx-bf16")))

namespace {

/// A tile has up to 16 rows of 16 words.
constexpr int64_t kTile = 16, kTileBytes = 4 * kTile;
/// Rows and columns of C that are computed together, in 2 x 2 tiles. Up to kTile rows take 1 x 4
/// tiles: they wait for B, which is then read in order.
constexpr int64_t kBlock = 2 * kTile, kWide = 4 * kTile;

enum class Kind : uint8_t { kBf16, kInt8 };

/// The operand of ldtilecfg.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// GCC's intrinsics do not say that they read memory.
inline void finish_stores() {
  asm volatile("" ::: "memory");
}

/// For blocks of `rows` rows and `words` of the summed dim. Tiles 0 to 3 are C's, two per row of
/// tiles, 4 and 5 A's, 6 and 7 B's; up to kTile rows have no second row of tiles, and 5 is B's.
CLEAVE_TILES void configure(int64_t rows, int64_t words = kTile) {
  const auto upper = static_cast<uint8_t>(std::min(rows, kTile));
  const auto lower = rows > kTile ? static_cast<uint8_t>(rows - kTile) : upper;
  const auto depth = static_cast<uint8_t>(words);
  const uint8_t heights[8] = {upper, upper, lower, lower, upper, rows > kTile ? lower : depth,
                              depth, depth};
  TileConfig config;
  std::copy_n(heights, 8, config.rows);
  std::fill_n(config.row_bytes, 8, uint16_t{kTileBytes});
  const auto depth_bytes = static_cast<uint16_t>(4 * words);
  config.row_bytes[4] = depth_bytes;
  if (rows > kTile) config.row_bytes[5] = depth_bytes;
  finish_stores();
  _tile_loadconfig(&config);
}

CLEAVE_TILES void release() {
  _tile_release();
}

/// Prefetches a part of the memory that is read next, step by step.
class Fetch {
 public:
  Fetch(const TileProduct& p, int64_t steps)
      : at_(static_cast<const char*>(p.next)),
        left_(p.next_lines),
        per_step_((p.next_lines + steps - 1) / steps) {}
  void step() {
    const int64_t count = std::min(per_step_, left_);
    for (int64_t i = 0; i < count; ++i, at_ += 64) __builtin_prefetch(at_);
    left_ -= count;
  }

 private:
  const char* at_;
  int64_t left_, per_step_;
};

/// The place of a block in the product. Strides are in bytes.
struct Block {
  const char *a, *b;
  char* c;
  int64_t rows, a_row, ldb, ldc;
};

/// The last words of a block's A and B, fewer than kTile, with zeros after them.
struct LastWords {
  LastWords(const Block& at, int64_t words, int64_t width) {
    for (int64_t r = 0; r < at.rows; ++r) {
      std::memcpy(a[r], at.a + r * at.a_row, static_cast<size_t>(4 * words));
    }
    for (int64_t k = 0; k < words; ++k) {
      std::memcpy(b[k], at.b + k * at.ldb, static_cast<size_t>(width));
    }
    finish_stores();
  }
  alignas(64) char a[kBlock][kTileBytes] = {};
  alignas(64) char b[kTile][4 * kWide] = {};
};

template <Kind kKind, bool kTwoColumns>
CLEAVE_TILES inline void add_square(const char* a, int64_t a_row, const char* b, int64_t ldb) {
  _tile_loadd(4, a, a_row);
  _tile_loadd(6, b, ldb);
  if constexpr (kTwoColumns) _tile_loadd(7, b + kTileBytes, ldb);
  _tile_loadd(5, a + kTile * a_row, a_row);
  if constexpr (kKind == Kind::kBf16) {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoColumns) _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kTwoColumns) _tile_dpbf16ps(3, 5, 7);
  } else {
    _tile_dpbusd(0, 4, 6);
    if constexpr (kTwoColumns) _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    if constexpr (kTwoColumns) _tile_dpbusd(3, 5, 7);
  }
}

/// Two rows of tiles and one or two columns.
template <Kind kKind, bool kTwoColumns>
CLEAVE_TILES void multiply_square(const TileProduct& p, Block at, Fetch& fetch) {
  char* const lower = at.c + kTile * at.ldc;
  if (p.adds) {
    _tile_loadd(0, at.c, at.ldc);
    if constexpr (kTwoColumns) _tile_loadd(1, at.c + kTileBytes, at.ldc);
    _tile_loadd(2, lower, at.ldc);
    if constexpr (kTwoColumns) _tile_loadd(3, lower + kTileBytes, at.ldc);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  int64_t words = p.words;
  for (; words >= kTile; words -= kTile, at.a += kTileBytes, at.b += kTile * at.ldb) {
    fetch.step();
    add_square<kKind, kTwoColumns>(at.a, at.a_row, at.b, at.ldb);
  }
  if (words > 0) {
    const LastWords last(at, words, (kTwoColumns ? 2 : 1) * kTileBytes);
    add_square<kKind, kTwoColumns>(last.a[0], kTileBytes, last.b[0], 4 * kWide);
  }
  _tile_stored(0, at.c, at.ldc);
  if constexpr (kTwoColumns) _tile_stored(1, at.c + kTileBytes, at.ldc);
  _tile_stored(2, lower, at.ldc);
  if constexpr (kTwoColumns) _tile_stored(3, lower + kTileBytes, at.ldc);
}

template <Kind kKind, int kTiles>
CLEAVE_TILES inline void add_wide(const char* a, int64_t a_row, const char* b, int64_t ldb) {
  _tile_loadd(4, a, a_row);
  _tile_loadd(5, b, ldb);
  if constexpr (kTiles > 1) _tile_loadd(6, b + kTileBytes, ldb);
  if constexpr (kTiles > 2) _tile_loadd(7, b + 2 * kTileBytes, ldb);
  if constexpr (kKind == Kind::kBf16) {
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kTiles > 1) _tile_dpbf16ps(1, 4, 6);
    if constexpr (kTiles > 2) _tile_dpbf16ps(2, 4, 7);
  } else {
    _tile_dpbusd(0, 4, 5);
    if constexpr (kTiles > 1) _tile_dpbusd(1, 4, 6);
    if constexpr (kTiles > 2) _tile_dpbusd(2, 4, 7);
  }
  if constexpr (kTiles > 3) {
    _tile_loadd(5, b + 3 * kTileBytes, ldb);
    if constexpr (kKind == Kind::kBf16) {
      _tile_dpbf16ps(3, 4, 5);
    } else {
      _tile_dpbusd(3, 4, 5);
    }
  }
}

/// One row of tiles and kTiles columns.
template <Kind kKind, int kTiles>
CLEAVE_TILES void multiply_wide(const TileProduct& p, Block at, Fetch& fetch) {
  if (p.adds) {
    _tile_loadd(0, at.c, at.ldc);
    if constexpr (kTiles > 1) _tile_loadd(1, at.c + kTileBytes, at.ldc);
    if constexpr (kTiles > 2) _tile_loadd(2, at.c + 2 * kTileBytes, at.ldc);
    if constexpr (kTiles > 3) _tile_loadd(3, at.c + 3 * kTileBytes, at.ldc);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  int64_t words = p.words;
  for (; words >= kTile; words -= kTile, at.a += kTileBytes, at.b += kTile * at.ldb) {
    fetch.step();
    add_wide<kKind, kTiles>(at.a, at.a_row, at.b, at.ldb);
  }
  if (words > 0) {
    const LastWords last(at, words, kTiles * kTileBytes);
    add_wide<kKind, kTiles>(last.a[0], kTileBytes, last.b[0], 4 * kWide);
  }
  _tile_stored(0, at.c, at.ldc);
  if constexpr (kTiles > 1) _tile_stored(1, at.c + kTileBytes, at.ldc);
  if constexpr (kTiles > 2) _tile_stored(2, at.c + 2 * kTileBytes, at.ldc);
  if constexpr (kTiles > 3) _tile_stored(3, at.c + 3 * kTileBytes, at.ldc);
}

template <Kind kKind>
CLEAVE_TILES void multiply_rows(const TileProduct& p, Block at, Fetch& fetch) {
  int64_t left = p.columns;
  const auto advance = [&](int64_t columns) {
    at.b += 4 * columns;
    at.c += 4 * columns;
    left -= columns;
  };
  if (at.rows > kTile) {
    for (; left >= kBlock; advance(kBlock)) multiply_square<kKind, true>(p, at, fetch);
    if (left > 0) multiply_square<kKind, false>(p, at, fetch);
    return;
  }
  for (; left >= kWide; advance(kWide)) multiply_wide<kKind, 4>(p, at, fetch);
  if (left == 3 * kTile) multiply_wide<kKind, 3>(p, at, fetch);
  if (left == 2 * kTile) multiply_wide<kKind, 2>(p, at, fetch);
  if (left == kTile) multiply_wide<kKind, 1>(p, at, fetch);
}

template <Kind kKind>
CLEAVE_TILES void multiply(const TileProduct& p) {
  const int64_t width = p.rows > kTile ? kBlock : kWide;
  const int64_t blocks = (p.rows + kBlock - 1) / kBlock * ((p.columns + width - 1) / width);
  Fetch fetch(p, std::max<int64_t>(blocks * (p.words / kTile), 1));
  finish_stores();
  int64_t configured = 0;
  for (int64_t row = 0; row < p.rows; row += kBlock) {
    const int64_t rows = std::min(kBlock, p.rows - row);
    if (rows != configured) configure(configured = rows);
    multiply_rows<kKind>(p,
                         {.a = static_cast<const char*>(p.a) + 4 * row * p.a_row,
                          .b = static_cast<const char*>(p.b),
                          .c = static_cast<char*>(p.c) + 4 * row * p.ldc,
                          .rows = rows,
                          .a_row = 4 * p.a_row,
                          .ldb = 4 * p.ldb,
                          .ldc = 4 * p.ldc},
                         fetch);
  }
  release();
}

/// Asks the system for the tiles' registers, which it saves only for processes that asked.
bool requested_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE
  return has_isa(Isa::kAmx) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_tiles() {
  static const bool has = requested_tiles();
  return has;
}

void multiply_bf16_tiles(const TileProduct& product) {
  multiply<Kind::kBf16>(product);
}

void multiply_int8_tiles(const TileProduct& product) {
  multiply<Kind::kInt8>(product);
}

GroupTiles::GroupTiles(int64_t rows) : rows_(rows) {
  configure(rows, 8);
}

GroupTiles::~GroupTiles() {
  release();
}

CLEAVE_TILES void GroupTiles::multiply(const int8_t* a, int64_t a_row, const uint8_t* b,
                                       int32_t* c) const {
  constexpr int64_t kStride = 2 * kTileBytes;  // of B and C
  finish_stores();
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(4, a, a_row);
  _tile_loadd(6, b, kStride);
  _tile_loadd(7, b + kTileBytes, kStride);
  _tile_dpbsud(0, 4, 6);
  _tile_dpbsud(1, 4, 7);
  _tile_stored(0, c, kStride);
  _tile_stored(1, c + kTile, kStride);
  if (rows_ <= kTile) return;
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(5, a + kTile * a_row, a_row);
  _tile_dpbsud(2, 5, 6);
  _tile_dpbsud(3, 5, 7);
  _tile_stored(2, c + kTile * 32, kStride);
  _tile_stored(3, c + kTile * 32 + kTile, kStride);
}
#else
bool has_tiles() {
  return false;
}

void multiply_bf16_tiles(const TileProduct&) {
  throw Error(Code::kBug, "multiply_bf16_tiles on a CPU without AMX");
}

void multiply_int8_tiles(const TileProduct&) {
  throw Error(Code::kBug, "multiply_int8_tiles on a CPU without AMX");
}

GroupTiles::GroupTiles(int64_t rows) : rows_(rows) {
  throw Error(Code::kBug, "GroupTiles on a CPU without AMX");
}

GroupTiles::~GroupTiles() = default;

void GroupTiles::multiply(const int8_t*, int64_t, const uint8_t*, int32_t*) const {}
#endif

}  // namespace cleave::inline kernels
