// The states of the gated delta rule, which pass from chunk to chunk (DeltaScan), and in reverse
// the gradients of these states. A block has kColumns columns of one head's state, which do not
// depend on other columns, and runs through all chunks. Each thread keeps 4 x 4 numbers of the
// state in registers; shared memory has a copy for the products of all threads. S: type of all
// matrices but the state itself.

namespace longspan::cuda {

constexpr int kScanVector = kRuleVector, kScanRows = kScanColumnThreads * kScanVector;
static_assert(kScanRows * kScanVector == kScanKeys && 2 * kScanRows == kRuleTokens,
              "a thread has four rows of the state and two tokens");

/// Number `column` of a row of a chunk's matrix.
template <typename S>
__device__ __forceinline__ S* number_at(const ChunkPlaces& of, long long chunk, int row,
                                        int column) {
  return static_cast<S*>(of.data) + chunk * of.chunk_stride +
         static_cast<long long>(row) * of.row_stride + column;
}

template <typename S, int kColumns>
__device__ __forceinline__ void scan_chunks(const DeltaScan& a) {
  LONGSPAN_SHARED_FLOATS(shared);
  constexpr int kGroups = kColumns / kScanVector;
  float* const held = shared;                         // [kScanKeys, kColumns], the state
  float* const made = shared + kScanKeys * kColumns;  // [kRuleTokens, kColumns], x
  const int K = a.key_dim, V = a.value_dim;
  const int own_column = static_cast<int>(threadIdx.x) % kGroups * kScanVector;
  const int row = static_cast<int>(threadIdx.x) / kGroups, key = row * kScanVector;
  const int column = static_cast<int>(blockIdx.x) * kColumns + own_column;
  const bool has_column = column < V, has_state = has_column && key < K;
  const long long first_chunk = static_cast<long long>(blockIdx.y) * a.num_chunks;
  float* const state = a.state + (static_cast<long long>(blockIdx.y) * K + key) * V + column;

  float own[kScanVector][kScanVector] = {};
  if (has_state) {
#pragma unroll
    for (int i = 0; i < kScanVector; ++i) load_numbers(state + i * V, own[i]);
  }
  for (int step = 0; step < a.num_chunks; ++step) {
    const long long chunk = first_chunk + (a.reversed != 0 ? a.num_chunks - 1 - step : step);
    // The state is written where f was.
    float added[kScanVector][kScanVector] = {};
#pragma unroll
    for (int i = 0; i < kScanVector; ++i) {
      if (has_state && a.f.data != nullptr) {
        load_numbers(number_at<S>(a.f, chunk, key + i, column), added[i]);
      }
      store_numbers(held + (key + i) * kColumns + own_column, own[i]);
      if (has_state) store_numbers(number_at<S>(a.states, chunk, key + i, column), own[i]);
    }
    __syncthreads();

// Unrolled, the fp32 kernel needs more than 128 registers.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      // Tokens are apart by kScanRows, so that a warp's tokens are neighbours.
      const int t = row + half * kScanRows;
      const S* const factors = number_at<S>(a.a, chunk, t, 0);
      float sum[kScanVector] = {};
#pragma unroll 4
      for (int k = 0; k < K; k += kScanVector) {
        float factor[kScanVector];
        load_numbers(factors + k, factor);
#pragma unroll
        for (int i = 0; i < kScanVector; ++i) {
          float numbers[kScanVector];
          load_numbers(held + (k + i) * kColumns + own_column, numbers);
#pragma unroll
          for (int v = 0; v < kScanVector; ++v) sum[v] += factor[i] * numbers[v];
        }
      }
      float x[kScanVector] = {};
      if (has_column) {
        load_numbers(number_at<S>(a.e, chunk, t, column), x);
#pragma unroll
        for (int v = 0; v < kScanVector; ++v) x[v] += sum[v];
        store_numbers(number_at<S>(a.x, chunk, t, column), x);
      }
      store_numbers(made + t * kColumns + own_column, x);
    }
    __syncthreads();

    if (has_state) {
      float sum[kScanVector][kScanVector] = {};
      const S* const factors = number_at<S>(a.b, chunk, 0, key);
#pragma unroll 4
      for (int t = 0; t < kRuleTokens; ++t) {
        float factor[kScanVector], numbers[kScanVector];
        load_numbers(factors + static_cast<long long>(t) * a.b.row_stride, factor);
        load_numbers(made + t * kColumns + own_column, numbers);
#pragma unroll
        for (int i = 0; i < kScanVector; ++i) {
#pragma unroll
          for (int v = 0; v < kScanVector; ++v) sum[i][v] += factor[i] * numbers[v];
        }
      }
      const float decay = a.decay[chunk];
#pragma unroll
      for (int i = 0; i < kScanVector; ++i) {
#pragma unroll
        for (int v = 0; v < kScanVector; ++v) {
          own[i][v] = decay * own[i][v] + sum[i][v] + added[i][v];
        }
      }
    }
  }
  if (has_state) {
#pragma unroll
    for (int i = 0; i < kScanVector; ++i) store_numbers(state + i * V, own[i]);
  }
}

#define LONGSPAN_SCAN(name, S, columns)                                       \
  LONGSPAN_DENSE_KERNEL(name, DeltaScan, columns * kScanColumnThreads, 2) {   \
    scan_chunks<S, columns>(a);                                               \
  }
LONGSPAN_SCAN(delta_scan_f, float, kScanColumns)
LONGSPAN_SCAN(delta_scan_b, bf16, kScanColumns)
LONGSPAN_SCAN(delta_scan_narrow_f, float, kNarrowScanColumns)
LONGSPAN_SCAN(delta_scan_narrow_b, bf16, kNarrowScanColumns)

}  // namespace longspan::cuda
