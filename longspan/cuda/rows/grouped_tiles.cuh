// Tiles of the gemms in grouped_gemm.cu: kTileRows x kTileColumns of the result, and a depth of
// kTileDepth at a time. Asynchronous copies bring them from memory to shared memory, 16 bytes (a
// vector) each. A line is a part of a tile that is contiguous in memory. Each layout permutes the
// vectors of a line, so that the lanes that write or read at the same time use different banks.

namespace longspan::cuda {

/// Starts this thread's copy of a vector to shared memory; of zeros where `is_there` is false.
__device__ __forceinline__ void start_copy(char* to, const char* from, bool is_there) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "{ .reg .u64 shared;\n cvta.to.shared.u64 shared, %0;\n"
      "cp.async.cg.shared.global [shared], [%1], 16, %2; }" ::"l"(to),
      "l"(from), "r"(is_there ? 16 : 0)
      : "memory");
#else
  start_copy_of_thread(to, from, is_there);
#endif
}

/// Ends a group of copies: those that this thread has started since the last call.
__device__ __forceinline__ void end_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  end_copies_of_thread();
#endif
}

/// Waits until all of this thread's groups of copies have arrived, but the newest kLeft.
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#else
  wait_for_copies_of_thread(kLeft);
#endif
}

/// Loads four matrices of 8 x 8 bf16. Lane 8 i + j passes the address of row j of matrix i. A lane
/// gets two neighbours of row lane / 4; kTransposed: of column lane / 4.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(const char* row, unsigned (&words)[4]) {
#ifdef __CUDA_ARCH__
  if constexpr (kTransposed) {
    asm volatile(
        "{ .reg .u64 shared;\n cvta.to.shared.u64 shared, %4;\n"
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [shared]; }"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "l"(row)
        : "memory");
  } else {
    asm volatile(
        "{ .reg .u64 shared;\n cvta.to.shared.u64 shared, %4;\n"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [shared]; }"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "l"(row)
        : "memory");
  }
#else
  load_matrices_of_warp(row, words, kTransposed);
#endif
}

template <typename Word>
__device__ __forceinline__ Word read_shared(const char* from) {
#ifndef __CUDA_ARCH__
  note_shared_read(from, sizeof(Word));
#endif
  return *reinterpret_cast<const Word*>(from);
}

/// A tile whose lines are rows: contiguous in depth.
template <int kBytes>  // of a number
struct ByRow {
  static constexpr int kVectors = kTileDepth * kBytes / 16, kLines = kTileRows;
  /// Returns the offset of a vector.
  __device__ __forceinline__ static int place(int line, int vector) {
    const int turn = kBytes == 2 ? line / 2 & 3 : (line & 3) * 2;
    return (line * kVectors + (vector ^ turn)) * 16;
  }
};

/// A tile whose lines are the numbers of all rows at one depth.
template <int kBytes>
struct ByDepth {
  static constexpr int kVectors = kTileRows * kBytes / 16, kLines = kTileDepth;
  __device__ __forceinline__ static int place(int line, int vector) {
    const int turn = kBytes == 2 ? line & 7 : (line / 2 & 3) * 2;
    return (line * kVectors + (vector ^ turn)) * 16;
  }
};
static_assert(kTileRows == 128 && kTileColumns == 128 && kTileDepth == 32);

constexpr int kBf16TileBytes = kTileRows * kTileDepth * 2, kFp32TileBytes = 2 * kBf16TileBytes;
static_assert(2 * kBf16TileBytes == kBf16StageBytes);
static_assert(kBf16TileBytes + kFp32TileBytes == kFp32StageBytes);

/// This thread's lines of a tile: first, first + kBetween, ... . The thread copies one vector of
/// each.
template <typename Layout>
struct ThreadLines {
  static constexpr int kBetween = kGemmThreads / Layout::kVectors,
                       kNumber = Layout::kLines / kBetween;
  int first = static_cast<int>(threadIdx.x) / Layout::kVectors;
  int vector = static_cast<int>(threadIdx.x) % Layout::kVectors;

  __device__ __forceinline__ int line(int i) const { return first + i * kBetween; }
  __device__ __forceinline__ char* place(char* tile, int i) const {
    return tile + Layout::place(line(i), vector);
  }
};

/// Words of the tensor cores' instruction for 64 rows (kIsA) or columns from `first` on: parts of
/// 16 at a depth of 16.
template <typename Layout, bool kIsA>
class Words;

template <bool kIsA>
class Words<ByRow<2>, kIsA> {
 public:
  __device__ __forceinline__ explicit Words(int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32, pair = lane / 8 % 2, four = lane / 16;
    place_ = ByRow<2>::place(first + lane % 8 + 8 * (kIsA ? pair : four), kIsA ? four : pair);
  }
  /// `depth`: in units of 16.
  __device__ __forceinline__ void load(const char* tile, int depth, int part,
                                       unsigned (&words)[4]) const {
    load_matrices<false>(tile + (place_ ^ depth * 32) + part * 16 * 64, words);
  }

 private:
  int place_;
};

template <bool kIsA>
class Words<ByDepth<2>, kIsA> {
 public:
  __device__ __forceinline__ explicit Words(int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32, pair = lane / 8 % 2, four = lane / 16;
    place_ =
        ByDepth<2>::place(lane % 8 + 8 * (kIsA ? four : pair), first / 8 + (kIsA ? pair : four));
  }
  __device__ __forceinline__ void load(const char* tile, int depth, int part,
                                       unsigned (&words)[4]) const {
    load_matrices<true>(tile + (place_ ^ part * 32) + depth * 16 * 256, words);
  }

 private:
  int place_;
};

/// Rounds to bf16. Only for columns.
template <>
class Words<ByRow<4>, false> {
 public:
  __device__ __forceinline__ explicit Words(int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    place_ = ByRow<4>::place(first + lane / 4, lane % 4 / 2) + lane % 2 * 8;
  }
  __device__ __forceinline__ void load(const char* tile, int depth, int part,
                                       unsigned (&words)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 two = read_shared<uint2>(tile + (place_ ^ (4 * depth + 2 * (i % 2)) * 16) +
                                           (2 * part + i / 2) * 8 * 128);
      words[i] = two_bf16(__uint_as_float(two.x), __uint_as_float(two.y));
    }
  }

 private:
  int place_;
};

template <>
class Words<ByDepth<4>, false> {
 public:
  __device__ __forceinline__ explicit Words(int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    place_ = ByDepth<4>::place(lane % 4 * 2, first / 4 + lane / 16) + lane / 4 % 4 * 4;
  }
  __device__ __forceinline__ void load(const char* tile, int depth, int part,
                                       unsigned (&words)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const char* const at =
          tile + (place_ ^ (2 * part + i / 2) * 32) + (16 * depth + 8 * (i % 2)) * 512;
      words[i] = two_bf16(read_shared<float>(at), read_shared<float>(at + 512));
    }
  }

 private:
  int place_;
};

/// The current place of a sum over several factors.
struct Depth {
  int factor = 0, begin = 0;
  /// Returns whether another factor begins.
  __device__ __forceinline__ bool advance(const GroupedRows& a) {
    begin += kTileDepth;
    if (begin < a.factors[factor].depth) return false;
    ++factor;
    begin = 0;
    return factor < a.num_factors;
  }
};

/// The rows of a tile, in each factor.
class RowTile {
 public:
  static constexpr int kTileBytes = kBf16TileBytes;

  /// `first_of_warp`: the warp's first row in the tile.
  __device__ __forceinline__ RowTile(const GroupedRows& a, int begin, int end, int first_of_warp)
      : a_(a), begin_(begin), end_(end), words_(first_of_warp) {
    start_factor();
  }
  /// Starts the copies of the next step's tile.
  __device__ __forceinline__ void start(char* tile) {
    const int k = at_.begin + lines_.vector * 8;
    const bool is_inside = k < a_.factors[at_.factor].depth;
#pragma unroll
    for (int i = 0; i < Lines::kNumber; ++i) {
      start_copy(lines_.place(tile, i), rows_[i] + 2 * k,
                 is_inside && begin_ + lines_.line(i) < end_);
    }
    if (at_.advance(a_)) start_factor();
  }
  __device__ __forceinline__ void load(const char* tile, int depth, int part,
                                       unsigned (&words)[4]) const {
    words_.load(tile, depth, part, words);
  }
  __device__ __forceinline__ void end_step() {}

 private:
  using Lines = ThreadLines<ByRow<2>>;

  __device__ __forceinline__ void start_factor() {
    const GroupedFactor& factor = a_.factors[at_.factor];
#pragma unroll
    for (int i = 0; i < Lines::kNumber; ++i) {
      const int row = begin_ + lines_.line(i);
      long long from = 0;
      if (row < end_) from = factor.from == nullptr ? row : factor.from[row];
      rows_[i] = static_cast<const char*>(factor.x) + from * factor.depth * 2;
    }
  }

  const GroupedRows& a_;
  int begin_, end_;
  Lines lines_;
  Words<ByRow<2>, true> words_;
  Depth at_;
  const char* rows_[Lines::kNumber];
};

/// Columns of the result, from a matrix that is contiguous in depth.
template <int kBytes>
struct FromRows {
  using Layout = ByRow<kBytes>;
  using Lines = ThreadLines<Layout>;

  __device__ __forceinline__ static void start(char* tile, const char* matrix, int depth,
                                               int columns, int begin, int first) {
    const Lines lines;
    const int k = begin + lines.vector * (16 / kBytes);
    const char* const from =
        matrix + (static_cast<long long>(first + lines.first) * depth + k) * kBytes;
#pragma unroll
    for (int i = 0; i < Lines::kNumber; ++i) {
      start_copy(lines.place(tile, i),
                 from + static_cast<long long>(i * Lines::kBetween * kBytes) * depth,
                 k < depth && first + lines.line(i) < columns);
    }
  }
};

/// The same, from a matrix whose columns are contiguous.
template <int kBytes>
struct FromColumns {
  using Layout = ByDepth<kBytes>;
  using Lines = ThreadLines<Layout>;

  __device__ __forceinline__ static void start(char* tile, const char* matrix, int depth,
                                               int columns, int begin, int first) {
    const Lines lines;
    const int column = first + lines.vector * (16 / kBytes);
    const char* const from =
        matrix + (static_cast<long long>(begin + lines.first) * columns + column) * kBytes;
#pragma unroll
    for (int i = 0; i < Lines::kNumber; ++i) {
      start_copy(lines.place(tile, i),
                 from + static_cast<long long>(i * Lines::kBetween * kBytes) * columns,
                 begin + lines.line(i) < depth && column < columns);
    }
  }
};

/// Columns of the result, from the group's matrix of each factor: bf16, or with kHasFp32 also fp32.
template <template <int> class From, bool kHasFp32>
class MatrixTile {
 public:
  static constexpr int kTileBytes = kHasFp32 ? kFp32TileBytes : kBf16TileBytes;

  /// `first`: the tile's first column; `first_of_warp`: the warp's first column in the tile.
  __device__ __forceinline__ MatrixTile(const GroupedRows& a, int group, int first,
                                        int first_of_warp)
      : a_(a), group_(group), first_(first), words_(first_of_warp), wide_words_(first_of_warp) {}
  __device__ __forceinline__ void start(char* tile) {
    const GroupedFactor& factor = a_.factors[at_.factor];
    const char* const matrix = reinterpret_cast<const char*>(factor.matrices[group_]);
    if (!kHasFp32 || factor.matrices_are_bf16 != 0) {
      From<2>::start(tile, matrix, factor.depth, a_.num_columns, at_.begin, first_);
    } else {
      From<4>::start(tile, matrix, factor.depth, a_.num_columns, at_.begin, first_);
    }
    at_.advance(a_);
  }
  __device__ __forceinline__ void load(const char* tile, int depth, int part,
                                       unsigned (&words)[4]) const {
    if (!kHasFp32 || a_.factors[used_.factor].matrices_are_bf16 != 0) {
      words_.load(tile, depth, part, words);
    } else {
      wide_words_.load(tile, depth, part, words);
    }
  }
  __device__ __forceinline__ void end_step() {
    if (kHasFp32) used_.advance(a_);
  }

 private:
  const GroupedRows& a_;
  int group_, first_;
  Words<typename From<2>::Layout, false> words_;
  Words<typename From<4>::Layout, false> wide_words_;
  Depth at_, used_;  // of the copies, and of the sums
};

/// Columns of rows, where the rows are the depth of a sum over a group's rows.
template <bool kIsA>
class RowsAsDepth {
 public:
  static constexpr int kTileBytes = kBf16TileBytes;

  __device__ __forceinline__ RowsAsDepth(const RowsOfGradient& x, int begin, int end, int first,
                                         int first_of_warp)
      : x_(x),
        next_(begin + lines_.first),
        end_(end),
        column_(first + lines_.vector * 8),
        words_(first_of_warp) {
    find();
  }
  __device__ __forceinline__ void start(char* tile) {
#pragma unroll
    for (int i = 0; i < Lines::kNumber; ++i) {
      const long long at = static_cast<long long>(from_[i]) * x_.num_columns + column_;
      start_copy(lines_.place(tile, i), static_cast<const char*>(x_.x) + at * 2,
                 next_ + i * Lines::kBetween < end_ && column_ < x_.num_columns);
    }
    next_ += kTileDepth;
    find();
  }
  __device__ __forceinline__ void load(const char* tile, int depth, int part,
                                       unsigned (&words)[4]) const {
    words_.load(tile, depth, part, words);
  }
  __device__ __forceinline__ void end_step() {}

 private:
  using Lines = ThreadLines<ByDepth<2>>;

  /// Finds the next rows ahead of their use.
  __device__ __forceinline__ void find() {
#pragma unroll
    for (int i = 0; i < Lines::kNumber; ++i) {
      const int row = next_ + i * Lines::kBetween;
      from_[i] = row >= end_ ? 0 : x_.from == nullptr ? row : static_cast<int>(x_.from[row]);
    }
  }

  const RowsOfGradient& x_;
  Lines lines_;
  int next_, end_, column_;
  Words<ByDepth<2>, kIsA> words_;
  int from_[Lines::kNumber];
};

}  // namespace longspan::cuda
