// Tiles of the gemms in grouped_gemm.cu, from memory to shared memory: kTileRows x kTileColumns of
// the result, and a depth of kTileDepth at a time. A word holds two numbers that are neighbours in
// depth, as the tensor cores need them.

namespace longspan::cuda {

constexpr int kDepthPairs = kTileDepth / 2;

__device__ __forceinline__ void clear(unsigned (&words)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = 0;
}

__device__ __forceinline__ void load_words(const void* from, unsigned (&words)[4]) {
  const uint4 quad = *static_cast<const uint4*>(from);
  words[0] = quad.x;
  words[1] = quad.y;
  words[2] = quad.z;
  words[3] = quad.w;
}

__device__ __forceinline__ void store_words(unsigned* to, unsigned a, unsigned b, unsigned c,
                                            unsigned d) {
  *reinterpret_cast<uint4*>(to) = make_uint4(a, b, c, d);
}

/// Eight numbers of a bf16 matrix, in memory order.
template <bool kHasFp32>
struct MatrixWords {
  unsigned words[4];

  __device__ __forceinline__ void load_from(const char* matrix, long long number, bool /*is_bf16*/,
                                            bool is_there) {
    clear(words);
    if (is_there) load_words(matrix + number * 2, words);
  }
  __device__ __forceinline__ void to_bf16(bool /*is_bf16*/, unsigned (&rounded)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = words[i];
  }
};

/// The same for a matrix that may be fp32, which it rounds to bf16.
template <>
struct MatrixWords<true> {
  unsigned words[4], more[4];

  __device__ __forceinline__ void load_from(const char* matrix, long long number, bool is_bf16,
                                            bool is_there) {
    clear(words);
    clear(more);
    if (!is_there) return;
    load_words(matrix + number * (is_bf16 ? 2 : 4), words);
    if (!is_bf16) load_words(matrix + number * 4 + 16, more);
  }
  __device__ __forceinline__ void to_bf16(bool is_bf16, unsigned (&rounded)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = words[i];
    if (is_bf16) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rounded[i] = two_bf16(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]));
      rounded[2 + i] = two_bf16(__uint_as_float(more[2 * i]), __uint_as_float(more[2 * i + 1]));
    }
  }
};

/// Layout of a shared tile whose rows are contiguous in depth in memory. Pairs of rows permute
/// their vectors of four words in four ways, so that all lanes that read or write at once use
/// different banks.
struct ByRow {
  static constexpr int kWords = kTileRows * kDepthPairs;
  /// Index of a vector's first word.
  __device__ __forceinline__ static int place(int row, int vector) {
    return row * kDepthPairs + (vector ^ (row / 2 & 3)) * 4;
  }
  /// Word of row + more. `more` is a multiple of eight, so the row's permutation is the same.
  __device__ __forceinline__ static unsigned word(const unsigned* tile, int row, int more,
                                                  int vector, int in_vector) {
    return tile[place(row, vector) + in_vector + more * kDepthPairs];
  }
};
static_assert(kDepthPairs == 16);

/// Layout of a shared tile whose rows are contiguous in memory at each depth. Padding shifts each
/// depth by eight banks.
struct ByDepth {
  static constexpr int kStride = kTileRows + 8, kWords = kDepthPairs * kStride;
  __device__ __forceinline__ static unsigned word(const unsigned* tile, int row, int more,
                                                  int vector, int in_vector) {
    return tile[in_vector * kStride + row + (vector * 4 * kStride + more)];
  }
};

constexpr int kVectorsOfDepth = kTileDepth / 8, kVectorsOfRows = kTileRows / 8;
/// Vectors that a thread takes of a ByRow tile, and the rows between them.
constexpr int kVectorsByRow = kTileRows * kVectorsOfDepth / kGemmThreads;
constexpr int kRowsBetween = kGemmThreads / kVectorsOfDepth;
/// Of a ByDepth tile, each thread takes one vector of two depths.
static_assert(kDepthPairs * kVectorsOfRows == kGemmThreads);

/// Stores words of pairs from the numbers of two depths. `vector`: the index of the thread's
/// vector. Every second group of four threads begins with the other half, so that eight threads
/// that store at once use all banks.
__device__ __forceinline__ void store_pairs(unsigned* tile, int pair, int vector,
                                            const unsigned (&first)[4],
                                            const unsigned (&second)[4]) {
  unsigned words[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[2 * i] = (first[i] & 0xffffu) | second[i] << 16;
    words[2 * i + 1] = first[i] >> 16 | (second[i] & 0xffff0000u);
  }
  unsigned* const to = tile + pair * ByDepth::kStride + vector * 8;
  const bool turned = (vector & 4) != 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool second_half = turned != (half == 1);
    unsigned w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = second_half ? words[4 + i] : words[i];
    store_words(to + (second_half ? 4 : 0), w[0], w[1], w[2], w[3]);
  }
}

/// The current place of a sum over several factors.
struct Depth {
  int factor = 0, begin = 0;
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
  using Layout = ByRow;
  __device__ __forceinline__ RowTile(const GroupedRows& a, int begin, int end)
      : a_(a), begin_(begin), end_(end) {
    start_factor();
  }
  __device__ __forceinline__ void fetch() {
    const int k = at_.begin + static_cast<int>(threadIdx.x) % kVectorsOfDepth * 8;
    const bool is_there = k < a_.factors[at_.factor].depth;
#pragma unroll
    for (int i = 0; i < kVectorsByRow; ++i) {
      clear(words_[i]);
      if (is_there && rows_[i] != nullptr) load_words(rows_[i] + 2 * k, words_[i]);
    }
    if (at_.advance(a_)) start_factor();
  }
  __device__ __forceinline__ void put(unsigned* tile) const {
    const int t = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kVectorsByRow; ++i) {
      const auto& w = words_[i];
      store_words(tile + ByRow::place(t / kVectorsOfDepth + i * kRowsBetween, t % kVectorsOfDepth),
                  w[0], w[1], w[2], w[3]);
    }
  }

 private:
  __device__ __forceinline__ void start_factor() {
    const GroupedFactor& factor = a_.factors[at_.factor];
#pragma unroll
    for (int i = 0; i < kVectorsByRow; ++i) {
      const int row = begin_ + static_cast<int>(threadIdx.x) / kVectorsOfDepth + i * kRowsBetween;
      rows_[i] = nullptr;
      if (row >= end_) continue;
      const long long from = factor.from == nullptr ? row : factor.from[row];
      rows_[i] = static_cast<const char*>(factor.x) + from * factor.depth * 2;
    }
  }

  const GroupedRows& a_;
  int begin_, end_;
  Depth at_;
  const char* rows_[kVectorsByRow];
  unsigned words_[kVectorsByRow][4];
};

/// Columns of the result, from matrices that are contiguous in depth.
template <bool kHasFp32>
class MatrixRows {
 public:
  using Layout = ByRow;
  __device__ __forceinline__ MatrixRows(const GroupedRows& a, int group, int first)
      : a_(a), group_(group), first_(first) {
    start_factor();
  }
  __device__ __forceinline__ void fetch() {
    const GroupedFactor& factor = a_.factors[at_.factor];
    const int t = static_cast<int>(threadIdx.x), k = at_.begin + t % kVectorsOfDepth * 8;
    is_bf16_ = factor.matrices_are_bf16 != 0;
#pragma unroll
    for (int i = 0; i < kVectorsByRow; ++i) {
      const int column = first_ + t / kVectorsOfDepth + i * kRowsBetween;
      const long long number = static_cast<long long>(column) * factor.depth + k;
      words_[i].load_from(matrix_, number, is_bf16_, k < factor.depth && column < a_.num_columns);
    }
    if (at_.advance(a_)) start_factor();
  }
  __device__ __forceinline__ void put(unsigned* tile) const {
    const int t = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kVectorsByRow; ++i) {
      unsigned w[4];
      words_[i].to_bf16(is_bf16_, w);
      store_words(tile + ByRow::place(t / kVectorsOfDepth + i * kRowsBetween, t % kVectorsOfDepth),
                  w[0], w[1], w[2], w[3]);
    }
  }

 private:
  __device__ __forceinline__ void start_factor() {
    matrix_ = reinterpret_cast<const char*>(a_.factors[at_.factor].matrices[group_]);
  }

  const GroupedRows& a_;
  int group_, first_;
  Depth at_;
  bool is_bf16_ = true;
  const char* matrix_;
  MatrixWords<kHasFp32> words_[kVectorsByRow];
};

/// Columns of the result, from matrices whose columns are contiguous.
template <bool kHasFp32>
class MatrixColumns {
 public:
  using Layout = ByDepth;
  __device__ __forceinline__ MatrixColumns(const GroupedRows& a, int group, int first)
      : a_(a), group_(group), first_(first) {
    start_factor();
  }
  __device__ __forceinline__ void fetch() {
    const GroupedFactor& factor = a_.factors[at_.factor];
    const int t = static_cast<int>(threadIdx.x), column = first_ + t % kVectorsOfRows * 8;
    is_bf16_ = factor.matrices_are_bf16 != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = at_.begin + t / kVectorsOfRows * 2 + i;
      const long long number = static_cast<long long>(k) * a_.num_columns + column;
      words_[i].load_from(matrix_, number, is_bf16_, k < factor.depth && column < a_.num_columns);
    }
    if (at_.advance(a_)) start_factor();
  }
  __device__ __forceinline__ void put(unsigned* tile) const {
    const int t = static_cast<int>(threadIdx.x);
    unsigned first[4], second[4];
    words_[0].to_bf16(is_bf16_, first);
    words_[1].to_bf16(is_bf16_, second);
    store_pairs(tile, t / kVectorsOfRows, t % kVectorsOfRows, first, second);
  }

 private:
  __device__ __forceinline__ void start_factor() {
    matrix_ = reinterpret_cast<const char*>(a_.factors[at_.factor].matrices[group_]);
  }

  const GroupedRows& a_;
  int group_, first_;
  Depth at_;
  bool is_bf16_ = true;
  const char* matrix_;
  MatrixWords<kHasFp32> words_[2];
};

/// Columns of rows, where the rows are the depth of a sum over a group's rows.
class RowsAsDepth {
 public:
  using Layout = ByDepth;
  __device__ __forceinline__ RowsAsDepth(const RowsOfGradient& x, int begin, int end, int first)
      : x_(x),
        next_(begin + static_cast<int>(threadIdx.x) / kVectorsOfRows * 2),
        end_(end),
        column_(first + static_cast<int>(threadIdx.x) % kVectorsOfRows * 8) {
    find();
  }
  __device__ __forceinline__ void fetch() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      clear(words_[i]);
      if (from_[i] >= 0 && column_ < x_.num_columns) {
        const long long at = static_cast<long long>(from_[i]) * x_.num_columns + column_;
        load_words(static_cast<const char*>(x_.x) + at * 2, words_[i]);
      }
    }
    next_ += kTileDepth;
    find();
  }
  __device__ __forceinline__ void put(unsigned* tile) const {
    const int t = static_cast<int>(threadIdx.x);
    store_pairs(tile, t / kVectorsOfRows, t % kVectorsOfRows, words_[0], words_[1]);
  }

 private:
  /// Finds the next rows ahead of their use; -1: none.
  __device__ __forceinline__ void find() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = next_ + i;
      from_[i] = row >= end_ ? -1 : x_.from == nullptr ? row : static_cast<int>(x_.from[row]);
    }
  }

  const RowsOfGradient& x_;
  int next_, end_, column_;
  int from_[2];
  unsigned words_[2][4];
};

}  // namespace longspan::cuda
