// Gradients of the operands of chunks (delta_chunks.cu, which this file follows).

namespace longspan::cuda {

/// Gradients of the gates of a chunk and of one value head, in shared memory.
struct GateGradients {
  double sum[kC];  // of the logarithms of decays, from the chunk's begin
  float since[kC], to_end[kC], beta[kC];
  float whole[kBlockThreads / 32];  // parts of a sum
};

/// The gradients of vectors: those of heads (added over the value heads of a key head) and of
/// values are written, those of gates are found by sums over each token's numbers. A warp takes one
/// token after the other.
template <typename S>
__device__ __forceinline__ void vectors_back(const DeltaChunksBackward& a, const ChunkOfHead& at,
                                             const ChunkGates& gates, bool is_first,
                                             GateGradients& to) {
  const DeltaPart& part = a.part;
  const int K = part.key_dim, V = part.value_dim;
  const int lane = static_cast<int>(threadIdx.x) * kRuleVector;
  constexpr int kStep = 32 * kRuleVector;
  const float *const q = part.heads + at.key_place * 2 * kC * K, *const k = q + kC * K;
  float *const dq = a.dheads + at.key_place * 2 * kC * K, *const dk = dq + kC * K;
  const S* const dleft = static_cast<const S*>(a.dleft) + at.place * kC * (K + kC);
  const S* const dright = static_cast<const S*>(a.dright) + at.place * kC * (K + V);
  const S* const dkept = static_cast<const S*>(a.dkept) + at.place * kC * K;
  for (int i = static_cast<int>(threadIdx.y); i < kC; i += static_cast<int>(blockDim.y)) {
    const float since = gates.since[i], beta = gates.beta[i], to_end = gates.to_end[i];
    float of_left = 0, of_right = 0, of_kept = 0, of_value = 0;
    for (int column = lane; column < K; column += kStep) {
      const int n = i * K + column;
      float query[kRuleVector], key[kRuleVector], left[kRuleVector], right[kRuleVector],
          kept[kRuleVector], dquery[kRuleVector] = {}, dkey[kRuleVector] = {};
      load_numbers(q + n, query);
      load_numbers(k + n, key);
      load_numbers(dleft + i * (K + kC) + column, left);
      load_numbers(dright + i * (K + V) + column, right);
      load_numbers(dkept + n, kept);
      if (!is_first) {
        load_numbers(dq + n, dquery);
        load_numbers(dk + n, dkey);
      }
#pragma unroll
      for (int v = 0; v < kRuleVector; ++v) {
        of_left += left[v] * query[v];
        of_right -= right[v] * key[v];
        of_kept += kept[v] * key[v];
        dquery[v] += since * left[v];
        dkey[v] += to_end * kept[v] - beta * since * right[v];
      }
      store_numbers(dq + n, dquery);
      store_numbers(dk + n, dkey);
    }
    const long long token = at.first_token + i;
    for (int column = lane; at.has_token(part, i) && column < V; column += kStep) {
      float value[kRuleVector], right[kRuleVector];
      load_numbers(static_cast<const S*>(part.v) + token * part.at_v.row_stride +
                       at.head * part.at_v.head_stride + column,
                   value);
      load_numbers(dright + i * (K + V) + K + column, right);
#pragma unroll
      for (int v = 0; v < kRuleVector; ++v) {
        of_value += right[v] * value[v];
        right[v] *= beta;
      }
      store_numbers(static_cast<S*>(a.dv) + (token * part.num_value_heads + at.head) * V + column,
                    right);
    }
    of_left = row_sum(of_left, nullptr);
    of_right = row_sum(of_right, nullptr);
    of_kept = row_sum(of_kept, nullptr);
    of_value = row_sum(of_value, nullptr);
    if (lane == 0) {
      to.since[i] = of_left + beta * of_right;
      to.beta[i] = since * of_right + of_value;
      to.to_end[i] = of_kept;
    }
  }
  float sum = 0;
  const S* const states = static_cast<const S*>(a.held) + at.place * (K + kC) * V;
  const S* const dstates = static_cast<const S*>(a.dheld) + at.place * (K + kC) * V;
  for (int n = thread_of_block() * kRuleVector; n < K * V; n += kBlockThreads * kRuleVector) {
    float state[kRuleVector], gradient[kRuleVector];
    load_numbers(states + n, state);
    load_numbers(dstates + n, gradient);
#pragma unroll
    for (int v = 0; v < kRuleVector; ++v) sum += state[v] * gradient[v];
  }
  sum = row_sum(sum, nullptr);
  if (lane == 0) to.whole[threadIdx.y] = sum;
}

/// Writes dg and dbeta. `in_products`: beta decay dL kk + dscores scores of each two tokens, and
/// `of_beta`: decay dL kk. All threads of the block call it. At its end, threads read `found` and
/// the decays of `gates`, which change behind the first barrier of the next head's gates alone.
__device__ __forceinline__ void gates_back(const DeltaChunksBackward& a, const ChunkOfHead& at,
                                           const ChunkGates& gates, const float* in_products,
                                           const float* of_beta, GateGradients& found) {
  const int thread = thread_of_block();
  if (thread < kC) {
    double in_row = 0, in_column = 0;
    for (int j = 0; j < kC; ++j) {
      in_row += in_products[thread * kRuleStride + j];
      in_column += in_products[j * kRuleStride + thread];
    }
    found.sum[thread] =
        in_row - in_column +
        static_cast<double>(found.since[thread]) * static_cast<double>(gates.since[thread]) -
        static_cast<double>(found.to_end[thread]) * static_cast<double>(gates.to_end[thread]);
  } else if (thread < 2 * kC) {
    const int i = thread - kC;
    double in_row = found.beta[i];
    for (int j = 0; j < kC; ++j) in_row += of_beta[i * kRuleStride + j];
    if (at.has_token(a.part, i)) {
      a.dbeta[(at.first_token + i) * a.part.num_value_heads + at.head] = static_cast<float>(in_row);
    }
  }
  __syncthreads();
  // The last sum also has the decays to the chunk's end, and the chunk's.
  if (thread < kC && at.has_token(a.part, thread)) {
    double dg = 0;
    for (const float part : found.whole) dg += part;
    dg *= static_cast<double>(gates.whole());
    for (int i = 0; i < kC; ++i) {
      dg += static_cast<double>(found.to_end[i]) * static_cast<double>(gates.to_end[i]);
      if (i >= thread) dg += found.sum[i];
    }
    a.dg[(at.first_token + thread) * a.part.num_value_heads + at.head] = static_cast<float>(dg);
  }
}

/// dlower = -T^T dT T^T for T in `left` and dT in `right`, of rows and columns that are kTiles
/// apart. Overwrites `right`. All threads of the block call it.
__device__ __forceinline__ void inverse_back(const float* left, float* right,
                                             float (&dlower)[kTile][kTile]) {
  const int thread = thread_of_block(), tile_i = thread / kTiles, tile_j = thread % kTiles;
  float product[kTile][kTile] = {};  // T^T dT, of neighbouring rows and columns
  for (int k = 0; k < kC; ++k) {
    float x[kTile], y[kTile];
    load_numbers(left + k * kRuleStride + tile_i * kTile, x);
    load_numbers(right + k * kRuleStride + tile_j * kTile, y);
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
#pragma unroll
      for (int j = 0; j < kTile; ++j) product[i][j] += x[i] * y[j];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
    store_numbers(right + (tile_i * kTile + i) * kRuleStride + tile_j * kTile, product[i]);
  }
  __syncthreads();
  for (int k = 0; k < kC; k += kTile) {
    float x[kTile][kTile], y[kTile][kTile];
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      load_numbers(right + (tile_i + i * kTiles) * kRuleStride + k, x[i]);
      load_numbers(left + (tile_j + i * kTiles) * kRuleStride + k, y[i]);
    }
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
#pragma unroll
      for (int j = 0; j < kTile; ++j) {
#pragma unroll
        for (int n = 0; n < kTile; ++n) dlower[i][j] -= x[i][n] * y[j][n];
      }
    }
  }
  __syncthreads();
}

/// A block computes a chunk of a key head, one of its value heads after the other, and adds up
/// their gradients of heads, of q k^T and of k k^T.
///   P = dL L + dscores scores, number by number;
///   d sum_i = sum_j P_ij - sum_j P_ji + dsince_i since_i - dto_end_i to_end_i.
template <typename S>
__device__ __forceinline__ void chunk_operands_back(const DeltaChunksBackward& a) {
  LONGSPAN_SHARED(ChunkGates, gates);
  LONGSPAN_SHARED(GateGradients, found);
  LONGSPAN_SHARED_FLOATS(shared);
  float* const left = shared;                      // [kC, kRuleStride]: T, then P
  float* const right = shared + kC * kRuleStride;  // dT, then dbeta of each number
  const int thread = thread_of_block(), tile_i = thread / kTiles, tile_j = thread % kTiles;
  const int chunk = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y);
  const int heads = a.part.num_value_heads / a.part.num_key_heads, K = a.part.key_dim;
  float *const qk = a.products +
                    (static_cast<long long>(key_head) * a.part.num_chunks + chunk) * 2 * kC * kC,
               *const kk = qk + kC * kC;
  float dqk[kTile][kTile] = {}, dkk[kTile][kTile] = {};
  for (int r = 0; r < heads; ++r) {
    const ChunkOfHead at(a.part, key_head * heads + r, chunk);
    gates.load(a.part, at);
    vectors_back<S>(a, at, gates, r == 0, found);
    const long long first = at.place * kC * kC;
    for (int n = thread * kTile; n < kC * kC; n += kBlockThreads * kTile) {
      const int place = n / kC * kRuleStride + n % kC;
      float numbers[kTile];
      load_numbers(static_cast<const S*>(a.inverse) + first + n, numbers);
      store_numbers(left + place, numbers);
      load_numbers(static_cast<const S*>(a.dinverse) + first + n, numbers);
      store_numbers(right + place, numbers);
    }
    __syncthreads();
    float dlower[kTile][kTile] = {};
    inverse_back(left, right, dlower);
    const S* const dscores = static_cast<const S*>(a.dleft) + at.place * kC * (K + kC) + K;
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
#pragma unroll
      for (int j = 0; j < kTile; ++j) {
        const int row = tile_i + i * kTiles, column = tile_j + j * kTiles;
        const int place = row * kRuleStride + column;
        const float decay = gates.decay(row, column), beta = gates.beta[row];
        float gradient[1];
        load_numbers(dscores + row * (K + kC) + column, gradient);
        const float dscore = decay * gradient[0];
        const float dproduct = column < row ? decay * dlower[i][j] : 0.0f;
        const float of_beta = dproduct * kk[row * kC + column];
        dqk[i][j] += dscore;
        dkk[i][j] += beta * dproduct;
        left[place] = beta * of_beta + dscore * qk[row * kC + column];
        right[place] = of_beta;
      }
    }
    __syncthreads();
    gates_back(a, at, gates, left, right, found);
  }
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      const int n = (tile_i + i * kTiles) * kC + tile_j + j * kTiles;
      qk[n] = dqk[i][j];
      kk[n] = dkk[i][j];
    }
  }
}

LONGSPAN_KERNEL(delta_chunks_backward_f, DeltaChunksBackward, kBlockThreads) {
  chunk_operands_back<float>(a);
}
LONGSPAN_KERNEL(delta_chunks_backward_b, DeltaChunksBackward, kBlockThreads) {
  chunk_operands_back<bf16>(a);
}

}  // namespace longspan::cuda
