// The gated delta rule within its chunks (kernels/delta_part.h): heads of length one, the operands
// of a chunk's products, and their gradients. Sums of logarithms of decays are fp64, since their
// differences are used. S: type of a head's numbers, and of operands.

namespace longspan::cuda {

constexpr int kC = kRuleTokens;
/// Numbers of a row in shared memory: rows of 16 lanes that read 4 numbers each lie in other banks.
constexpr int kRuleStride = kC + 4;
/// A matrix of a chunk has 16 x 16 tiles of 4 x 4 numbers, one for each thread.
constexpr int kTile = kRuleVector, kTiles = kC / kTile;
static_assert(kTiles * kTiles == kBlockThreads, "a thread has a tile");

/// A head of a token, of queries or of keys, by kUnitThreads threads.
struct UnitPlace {
  long long row;  // of y
  int which, token, head;
  bool is_token;
};
static_assert(kC % (kBlockThreads / kUnitThreads) == 0, "all threads of a block have a head");
__device__ __forceinline__ UnitPlace unit_place(const UnitHeads& a) {
  const int num_rows = a.num_chunks * kC;
  const long long of_all = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  UnitPlace at;
  at.which = static_cast<int>(blockIdx.y);
  at.head = static_cast<int>(of_all / num_rows);
  at.token = static_cast<int>(of_all % num_rows);
  const long long chunk = static_cast<long long>(at.head) * a.num_chunks + at.token / kC;
  at.row = (2 * chunk + at.which) * kC + at.token % kC;
  at.is_token = at.token < a.num_tokens;
  return at;
}

/// A member for queries or for keys, by constant places: others would put the arguments into
/// memory.
template <typename T>
__device__ __forceinline__ T one_of(const T (&both)[2], int which) {
  return which == 0 ? both[0] : both[1];
}

template <typename S>
__device__ __forceinline__ const S* head_of(const UnitHeads& a, const UnitPlace& at) {
  const HeadPlaces places = one_of(a.at_x, at.which);
  return static_cast<const S*>(one_of(a.x, at.which)) + at.token * places.row_stride +
         at.head * places.head_stride;
}

/// 1 / sqrt(sum x^2 + 1e-6) of a head; all threads of the block call it.
template <typename S>
__device__ __forceinline__ float inverse_length(const S* x, int size) {
  float sum = 0;
  for (int k = static_cast<int>(threadIdx.x); k < size; k += kUnitThreads) {
    float own[1];
    load_numbers(x + k, own);
    sum += own[0] * own[0];
  }
  return 1.0f / sqrtf(row_sum(sum, nullptr) + 1e-6f);
}

template <typename S>
__device__ __forceinline__ void unit_heads(const UnitHeads& a) {
  const UnitPlace at = unit_place(a);
  const S* const x = head_of<S>(a, at);
  const float factor = one_of(a.scale, at.which) * inverse_length(x, at.is_token ? a.key_dim : 0);
  for (int k = static_cast<int>(threadIdx.x); k < a.key_dim; k += kUnitThreads) {
    float own[1] = {0};
    if (at.is_token) load_numbers(x + k, own);
    a.y[at.row * a.key_dim + k] = factor * own[0];
  }
}

/// dx = scale r (dy - x r^2 (x . dy)), r: the inverse length.
template <typename S>
__device__ __forceinline__ void unit_heads_back(const UnitHeads& a) {
  const UnitPlace at = unit_place(a);
  const int size = at.is_token ? a.key_dim : 0;
  const S* const x = head_of<S>(a, at);
  const float* const dy = a.dy + at.row * a.key_dim;
  const float r = inverse_length(x, size);
  float sum = 0;
  for (int k = static_cast<int>(threadIdx.x); k < size; k += kUnitThreads) {
    float own[1];
    load_numbers(x + k, own);
    sum += own[0] * dy[k];
  }
  const float along = row_sum(sum, nullptr) * r * r;
  S* const dx = static_cast<S*>(one_of(a.dx, at.which)) +
                (static_cast<long long>(at.token) * a.num_heads + at.head) * a.key_dim;
  for (int k = static_cast<int>(threadIdx.x); k < size; k += kUnitThreads) {
    float own[1];
    load_numbers(x + k, own);
    own[0] = one_of(a.scale, at.which) * r * (dy[k] - own[0] * along);
    store_numbers(dx + k, own);
  }
}

__device__ __forceinline__ int thread_of_block() {
  return static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
}

/// A chunk of a value head. `place`: of its matrices; `key_place`: of those of its key head.
struct ChunkOfHead {
  int head, chunk;
  long long place, key_place, first_token;

  __device__ __forceinline__ ChunkOfHead(const DeltaPart& a, int of_head, int of_chunk)
      : head(of_head), chunk(of_chunk) {
    const int key_head = head / (a.num_value_heads / a.num_key_heads);
    place = static_cast<long long>(head) * a.num_chunks + chunk;
    key_place = static_cast<long long>(key_head) * a.num_chunks + chunk;
    first_token = static_cast<long long>(chunk) * kC;
  }
  __device__ __forceinline__ bool has_token(const DeltaPart& a, int i) const {
    return first_token + i < a.num_tokens;
  }
};

/// Gates of the tokens of a chunk and of one value head, in shared memory.
struct ChunkGates {
  double sum[kC];  // of the logarithms of decays, from the chunk's begin
  float beta[kC];
  float since[kC];   // decay since the chunk's begin; 0: the token's document began later
  float to_end[kC];  // decay to the chunk's end; 0: the document ends before
  long long document[kC];

  /// All threads of the block call it.
  __device__ __forceinline__ void load(const DeltaPart& a, const ChunkOfHead& at) {
    const int i = thread_of_block();
    if (i < kC) {
      double of_chunk = 0;
      for (int j = 0; j <= i && at.has_token(a, j); ++j) {
        of_chunk += a.g[(at.first_token + j) * a.num_value_heads + at.head];
      }
      sum[i] = of_chunk;
      beta[i] =
          at.has_token(a, i) ? a.beta[(at.first_token + i) * a.num_value_heads + at.head] : 0.0f;
      document[i] = a.documents[at.first_token + i];
    }
    __syncthreads();
    if (i < kC) {
      const long long before = at.chunk == 0 ? *a.document_before : a.documents[at.first_token - 1];
      const int last = kC - 1;
      since[i] = document[i] == before ? expf(static_cast<float>(sum[i])) : 0.0f;
      to_end[i] =
          document[i] == document[last] ? expf(static_cast<float>(sum[last] - sum[i])) : 0.0f;
    }
    __syncthreads();
  }
  __device__ __forceinline__ float decay(int i, int j) const {
    return j <= i && document[i] == document[j] ? expf(static_cast<float>(sum[i] - sum[j])) : 0.0f;
  }
  /// The decay of the chunk; 0: the chunk ends in another document.
  __device__ __forceinline__ float whole() const { return since[kC - 1]; }
};

/// rows[kC, kRuleStride]: (1 + lower)^-1, for `lower` below the diagonal. Rows of a band of kBand
/// depend on earlier rows, which all threads sum, and on the band's own, which one thread for each
/// column solves. All threads of the block call it; it reads `lower` behind a barrier.
constexpr int kBand = 16;
__device__ __forceinline__ void invert(const float* lower, float* rows) {
  const int thread = thread_of_block(), column = thread % kC;
  for (int first = 0; first < kC; first += kBand) {
    constexpr int kRowsOfThread = kBand * kC / kBlockThreads;
    const int row = first + thread / kC * kRowsOfThread;
    float sum[kRowsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) sum[i] = row + i == column ? 1.0f : 0.0f;
    for (int k = 0; k < first; ++k) {
      const float earlier = rows[k * kRuleStride + column];
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        sum[i] -= lower[(row + i) * kRuleStride + k] * earlier;
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) rows[(row + i) * kRuleStride + column] = sum[i];
    __syncthreads();
    if (thread < kC) {
      float solved[kBand];
#pragma unroll
      for (int i = 0; i < kBand; ++i) {
        solved[i] = rows[(first + i) * kRuleStride + column];
#pragma unroll
        for (int k = 0; k < i; ++k) {
          solved[i] -= lower[(first + i) * kRuleStride + first + k] * solved[k];
        }
        rows[(first + i) * kRuleStride + column] = solved[i];
      }
    }
    __syncthreads();
  }
}

/// A block computes a chunk of a value head: left = [since q, decay q k^T], right = [-beta since k,
/// beta v], kept = to_end k, inverse = (1 + beta decay k k^T)^-1.
template <typename S>
__device__ __forceinline__ void chunk_operands(const DeltaChunks& a) {
  LONGSPAN_SHARED(ChunkGates, gates);
  LONGSPAN_SHARED_FLOATS(shared);
  float* const lower = shared;                       // [kC, kRuleStride], read below the diagonal
  float* const inverse = shared + kC * kRuleStride;  // the same
  const DeltaPart& part = a.part;
  const int K = part.key_dim, V = part.value_dim, thread = thread_of_block();
  const ChunkOfHead at(part, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  gates.load(part, at);
  if (thread == 0) a.whole[at.place] = gates.whole();
  S* const left = static_cast<S*>(a.left) + at.place * kC * (K + kC);
  S* const right = static_cast<S*>(a.right) + at.place * kC * (K + V);
  S* const kept = static_cast<S*>(a.kept) + at.place * kC * K;

  constexpr int kStep = kBlockThreads * kRuleVector;
  const float *const qk = a.products + at.key_place * 2 * kC * kC, *const kk = qk + kC * kC;
  for (int n = thread * kRuleVector; n < kC * kC; n += kStep) {
    const int i = n / kC, j = n % kC;
    float scores[kRuleVector], products[kRuleVector];
    load_numbers(qk + n, scores);
    load_numbers(kk + n, products);
#pragma unroll
    for (int v = 0; v < kRuleVector; ++v) {
      const float decay = gates.decay(i, j + v);
      scores[v] *= decay;
      products[v] *= gates.beta[i] * decay;
    }
    store_numbers(left + i * (K + kC) + K + j, scores);
    store_numbers(lower + i * kRuleStride + j, products);
  }
  const float *const q = part.heads + at.key_place * 2 * kC * K, *const k = q + kC * K;
  for (int n = thread * kRuleVector; n < kC * K; n += kStep) {
    const int i = n / K, column = n % K;
    const float since = gates.since[i], of_key = -gates.beta[i] * since;
    float query[kRuleVector], key[kRuleVector], moved[kRuleVector];
    load_numbers(q + n, query);
    load_numbers(k + n, key);
#pragma unroll
    for (int v = 0; v < kRuleVector; ++v) {
      query[v] *= since;
      moved[v] = of_key * key[v];
      key[v] *= gates.to_end[i];
    }
    store_numbers(left + i * (K + kC) + column, query);
    store_numbers(right + i * (K + V) + column, moved);
    store_numbers(kept + n, key);
  }
  for (int n = thread * kRuleVector; n < kC * V; n += kStep) {
    const int i = n / V, column = n % V;
    float value[kRuleVector] = {}, dout[kRuleVector] = {};
    if (at.has_token(part, i)) {
      const long long token = at.first_token + i;
      load_numbers(static_cast<const S*>(part.v) + token * part.at_v.row_stride +
                       at.head * part.at_v.head_stride + column,
                   value);
      if (a.dout != nullptr) {
        load_numbers(
            static_cast<const S*>(a.dout) + (token * part.num_value_heads + at.head) * V + column,
            dout);
      }
    }
#pragma unroll
    for (int v = 0; v < kRuleVector; ++v) value[v] *= gates.beta[i];
    store_numbers(right + i * (K + V) + K + column, value);
    if (a.dout != nullptr) {
      store_numbers(static_cast<S*>(a.dout_in_chunks) + at.place * kC * V + n, dout);
    }
  }
  invert(lower, inverse);
  for (int n = thread * kRuleVector; n < kC * kC; n += kStep) {
    float numbers[kRuleVector];
    load_numbers(inverse + n / kC * kRuleStride + n % kC, numbers);
    store_numbers(static_cast<S*>(a.inverse) + at.place * kC * kC + n, numbers);
  }
}

LONGSPAN_KERNEL(unit_heads_f, UnitHeads, kBlockThreads) { unit_heads<float>(a); }
LONGSPAN_KERNEL(unit_heads_b, UnitHeads, kBlockThreads) { unit_heads<bf16>(a); }
LONGSPAN_KERNEL(unit_heads_backward_f, UnitHeads, kBlockThreads) { unit_heads_back<float>(a); }
LONGSPAN_KERNEL(unit_heads_backward_b, UnitHeads, kBlockThreads) { unit_heads_back<bf16>(a); }
LONGSPAN_KERNEL(delta_chunks_f, DeltaChunks, kBlockThreads) { chunk_operands<float>(a); }
LONGSPAN_KERNEL(delta_chunks_b, DeltaChunks, kBlockThreads) { chunk_operands<bf16>(a); }

}  // namespace longspan::cuda
