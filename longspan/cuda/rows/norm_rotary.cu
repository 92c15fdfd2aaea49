// Norms of heads (RMSNorm, arXiv 1910.07467), each followed by a rotation by halves (arXiv
// 2104.09864), and the gradient of both. The threads of a head hold it in registers, so memory is
// read and written once, and nothing is rounded in between. threadIdx.x: place in the head,
// threadIdx.y: head of the block.

namespace longspan::cuda {

/// The places of a thread's two vectors of a head, and the angles of their pairs. Numbers without
/// rotation are taken likewise: one vector of the first half, one of the second.
template <int V>
struct PairOfVectors {
  int first, second;
  bool is_any, has_second, is_rotated;

  __device__ __forceinline__ PairOfVectors(int head_dim, int num_pairs, int i) {
    const int rotated = num_pairs / V, left = (head_dim - 2 * num_pairs) / V, half = (left + 1) / 2;
    is_rotated = i < rotated;
    is_any = i < rotated + half;
    first = is_rotated ? i * V : 2 * num_pairs + (i - rotated) * V;
    second = first + (is_rotated ? num_pairs : half * V);
    has_second = is_any && second < head_dim;
  }
};

/// A thread's numbers of a head.
template <typename S, int V>
struct HeldPair {
  Packed<S, V> words[2] = {};

  __device__ __forceinline__ void load_from(const S* head, const PairOfVectors<V>& at) {
    if (at.is_any) words[0] = load<S, V>(head + at.first);
    if (at.has_second) words[1] = load<S, V>(head + at.second);
  }
  __device__ __forceinline__ void unpack_to(float (&x)[2][V]) const {
    unpack(words[0], x[0]);
    unpack(words[1], x[1]);
  }
};

template <int V>
__device__ __forceinline__ void load_weights(const void* weight, bool is_bf16,
                                             const PairOfVectors<V>& at, float (&w)[2][V]) {
  load_weight(weight, is_bf16, at.first, w[0]);
  // Without a second vector, any weights will do: its numbers are 0.
  load_weight(weight, is_bf16, at.has_second ? at.second : at.first, w[1]);
}

template <typename S, int V>
__device__ __forceinline__ void store_pair(S* head, const PairOfVectors<V>& at,
                                           const float (&x)[2][V]) {
  store_numbers(head + at.first, x[0]);
  if (at.has_second) store_numbers(head + at.second, x[1]);
}

/// Rotates by the angles of a row; backwards where `sign` is -1.
template <int V>
__device__ __forceinline__ void turn(const float* cosines, const float* sines,
                                     const PairOfVectors<V>& at, float sign, float (&x)[2][V]) {
  if (!at.is_rotated) return;
  float cosine[V], sine[V];
  load_numbers(cosines + at.first, cosine);
  load_numbers(sines + at.first, sine);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float s = sign * sine[v], was = x[0][v];
    x[0][v] = was * cosine[v] - x[1][v] * s;
    x[1][v] = x[1][v] * cosine[v] + was * s;
  }
}

template <typename S, int V, int K>
__device__ __forceinline__ float sum_of_squares(const HeldPair<S, V> (&held)[K]) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float x[2][V];
    held[k].unpack_to(x);
#pragma unroll
    for (int v = 0; v < V; ++v) sum += x[0][v] * x[0][v] + x[1][v] * x[1][v];
  }
  return sum;
}

/// y = rotation of weight * x * rstd, with rstd = 1 / sqrt(mean(x^2) + eps).
template <typename S, int V, int K>
__device__ __forceinline__ void norm_rotate(const NormRotate& a) {
  LONGSPAN_SHARED(float, parts, [kMostWarps]);
  const int head = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const bool mine = head < a.num_all;
  const int row = head / a.num_heads, of_row = head % a.num_heads;
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const S* x = static_cast<const S*>(a.x) + row * a.at_x.row_stride + of_row * a.at_x.head_stride;
  HeldPair<S, V> held[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (mine) held[k].load_from(x, PairOfVectors<V>(a.head_dim, a.num_pairs, first + k * step));
  }
  const float mean = row_sum(sum_of_squares(held), parts) / static_cast<float>(a.head_dim);
  const float rstd = 1.0f / sqrtf(mean + a.eps);
  if (!mine) return;
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[head] = rstd;
  S* y = static_cast<S*>(a.y) + row * a.at_y.row_stride + of_row * a.at_y.head_stride;
  const long long angles = static_cast<long long>(row) * a.num_pairs;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const PairOfVectors<V> at(a.head_dim, a.num_pairs, first + k * step);
    if (!at.is_any) break;
    float numbers[2][V], w[2][V];
    held[k].unpack_to(numbers);
    load_weights(a.weight, a.weight_is_bf16, at, w);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      numbers[0][v] = w[0][v] * (numbers[0][v] * rstd);
      numbers[1][v] = w[1][v] * (numbers[1][v] * rstd);
    }
    turn(a.cos + angles, a.sin + angles, at, 1.0f, numbers);
    store_pair(y, at, numbers);
  }
}

/// With g = dy rotated backwards: dx = r (w g) - x r^3 mean(w g x), as in norm_backward. Block b
/// takes heads b, b + blocks, ... With kSums it writes its sum of g x r.
template <typename S, int V, int K, bool kSums>
__device__ __forceinline__ void norm_rotate_backward(const NormRotateBackward& a) {
  LONGSPAN_SHARED(float, parts, [2][2][kMostWarps]);
  LONGSPAN_SHARED_FLOATS(sums);
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  float dweight[kSums ? K : 1][2][V] = {};
  int turn_of = 0;
  for (int begin = static_cast<int>(blockIdx.x * blockDim.y); begin < a.num_all;
       begin += static_cast<int>(gridDim.x * blockDim.y)) {
    const int head = begin + static_cast<int>(threadIdx.y);
    const bool mine = head < a.num_all;
    const int row = head / a.num_heads, of_row = head % a.num_heads;
    const S* x = static_cast<const S*>(a.x) + row * a.at_x.row_stride + of_row * a.at_x.head_stride;
    const S* dy =
        static_cast<const S*>(a.dy) + row * a.at_dy.row_stride + of_row * a.at_dy.head_stride;
    HeldPair<S, V> held[K], held_dy[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const PairOfVectors<V> at(a.head_dim, a.num_pairs, first + k * step);
      if (mine) {
        held_dy[k].load_from(dy, at);
        held[k].load_from(x, at);
      }
    }
    const long long angles = static_cast<long long>(row) * a.num_pairs;
    float dot = 0;
    float g[K][2][V];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      held_dy[k].unpack_to(g[k]);
      const PairOfVectors<V> at(a.head_dim, a.num_pairs, first + k * step);
      if (!mine || !at.is_any) continue;
      turn(a.cos + angles, a.sin + angles, at, -1.0f, g[k]);
      float numbers[2][V], w[2][V];
      held[k].unpack_to(numbers);
      load_weights(a.weight, a.weight_is_bf16, at, w);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        dot += g[k][0][v] * w[0][v] * numbers[0][v] + g[k][1][v] * w[1][v] * numbers[1][v];
      }
    }
    dot = row_sum(dot, parts[turn_of][0]);
    float rstd;
    if (a.rstd != nullptr) {
      rstd = mine ? a.rstd[head] : 0.0f;
    } else {
      const float sum = row_sum(sum_of_squares(held), parts[turn_of][1]);
      rstd = 1.0f / sqrtf(sum / static_cast<float>(a.head_dim) + a.eps);
    }
    turn_of ^= 1;
    const float factor = rstd * rstd * rstd * dot / static_cast<float>(a.head_dim);
    S* dx = static_cast<S*>(a.dx) + static_cast<long long>(head) * a.head_dim;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const PairOfVectors<V> at(a.head_dim, a.num_pairs, first + k * step);
      if (!mine || !at.is_any) break;
      float numbers[2][V], w[2][V];
      held[k].unpack_to(numbers);
      load_weights(a.weight, a.weight_is_bf16, at, w);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          if constexpr (kSums) dweight[k][i][v] += g[k][i][v] * (numbers[i][v] * rstd);
          numbers[i][v] = rstd * g[k][i][v] * w[i][v] - numbers[i][v] * factor;
        }
      }
      store_pair(dx, at, numbers);
    }
  }
  if constexpr (kSums) {
    float* total = a.dweight + static_cast<long long>(blockIdx.x) * a.head_dim;
    const bool alone = blockDim.y == 1;
    float* own = alone ? total : sums + static_cast<int>(threadIdx.y) * a.head_dim;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const PairOfVectors<V> at(a.head_dim, a.num_pairs, first + k * step);
      if (at.is_any) store_pair(own, at, dweight[k]);
    }
    if (!alone) sum_of_rows(sums, a.head_dim, total);
  }
}

// norm_rotate_<dtype>_v<numbers of a memory access>; norm_rotate_backward_sums_ where the weight
// trains
#define LONGSPAN_NORM_ROTATE(name, S, V) \
  LONGSPAN_KERNEL(name, NormRotate, kMostThreads<V>) { norm_rotate<S, V, kPairsOfThread>(a); }
#define LONGSPAN_NORM_ROTATE_BACKWARD(name, S, V, sums)        \
  LONGSPAN_KERNEL(name, NormRotateBackward, kMostThreads<V>) { \
    norm_rotate_backward<S, V, kPairsOfThread, sums>(a);       \
  }
#define LONGSPAN_NORM_ROTATES(type, S, V)                                        \
  LONGSPAN_NORM_ROTATE(norm_rotate_##type##_v##V, S, V)                          \
  LONGSPAN_NORM_ROTATE_BACKWARD(norm_rotate_backward_##type##_v##V, S, V, false) \
  LONGSPAN_NORM_ROTATE_BACKWARD(norm_rotate_backward_sums_##type##_v##V, S, V, true)

LONGSPAN_NORM_ROTATES(f, float, 4)
LONGSPAN_NORM_ROTATES(f, float, 1)
LONGSPAN_NORM_ROTATES(b, bf16, 8)
LONGSPAN_NORM_ROTATES(b, bf16, 1)

}  // namespace longspan::cuda
